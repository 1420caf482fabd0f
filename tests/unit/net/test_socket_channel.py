"""A channel on a real socket: what one peer takes of a turn of the loop."""

from __future__ import annotations

import asyncio
import socket

from penstock.net.channel import DISCARDED_PER_TURN_BYTES, NOBODY, WRITE_BYTES_PER_TURN, SocketChannel

LARGE_BYTES = 8 * WRITE_BYTES_PER_TURN


def _pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    for sock in (near, far):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGE_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LARGE_BYTES)
    return near, far


async def test_a_large_answer_leaves_in_pieces() -> None:
    """However much the socket would take at once."""
    near, far = _pair()
    channel = SocketChannel(asyncio.get_running_loop(), near)
    channel.start(NOBODY)
    parts = [bytes([at]) * (LARGE_BYTES // 4) for at in range(4)]
    channel.send(list(parts))
    assert channel.queued_bytes >= LARGE_BYTES - WRITE_BYTES_PER_TURN
    received = bytearray()
    far.setblocking(False)
    while len(received) < LARGE_BYTES:
        received += await asyncio.get_running_loop().sock_recv(far, 1 << 20)
    assert bytes(received) == b"".join(parts)
    channel.close()
    far.close()


async def test_a_peer_that_sends_on_after_we_hung_up_has_a_bounded_part_of_a_turn() -> None:
    near, far = _pair()
    channel = SocketChannel(asyncio.get_running_loop(), near)
    channel.start(NOBODY)
    channel.close(drain=True)
    far.sendall(bytes(2 * DISCARDED_PER_TURN_BYTES))
    left = [_unread(near)]
    channel._discard()
    left.append(_unread(near))
    assert 0 < left[0] - left[1] <= DISCARDED_PER_TURN_BYTES + (1 << 16)
    far.close()
    channel.close()


def _unread(sock: socket.socket) -> int:
    return len(sock.recv(LARGE_BYTES, socket.MSG_PEEK))
