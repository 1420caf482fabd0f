"""The four codecs of record batches, as Kafka frames them.

    id  name    framing
    0   none
    1   gzip    RFC 1952
    2   snappy  xerial blocks (magic, versions, then length-prefixed raw blocks); raw accepted
    3   lz4     LZ4 frame
    4   zstd    zstd frame

Batches pass through the broker compressed. This module is for recompression
Batches pass through the broker compressed. This module is for recompression
(`compression.type` on a topic), for the few lookups that need a record, and for tools.
The decompressed size is bounded: a few bytes from a client must not become gigabytes here.
The codec libraries are imported on first use; a broker that only passes batches through
never loads them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct
from typing import Final

from penstock.model.errors import ApiError, ErrorCode
from penstock.ports.disk import Buffer
from penstock.records.batch import COMPRESSION_MASK, HEADER_SIZE, BatchHeader
from penstock.records.builder import seal

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")
CODEC_BY_NAME: Final = {**{name: codec for codec, name in enumerate(NAMES)}, "uncompressed": NONE}
MAX_DECOMPRESSED_BYTES: Final = 256 << 20

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\0\0\0\1\0\0\0\1"
_XERIAL_BLOCK_BYTES = 32 << 10
_LENGTH = Struct(">i")
_PIECE_BYTES = 64 << 10


def decompress(codec: int, payload: Buffer) -> bytes:
    """Raises ApiError(CORRUPT_MESSAGE) if the payload is invalid for the codec."""
    if codec == NONE:
        return bytes(payload)
    try:
        if codec == GZIP:
            return _gunzip(payload)
        if codec == SNAPPY:
            return _unsnappy(payload)
        if codec == LZ4:
            return _unlz4(payload)
        if codec == ZSTD:
            return _unzstd(payload)
    except _codec_errors() as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{NAMES[codec]} payload does not decompress: {error}") from error
    raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {codec}")


def stream(codec: int, payload: Buffer) -> Iterator[bytes]:
    """Yield the result of `decompress` in pieces, so that the caller can stop early. Same ApiError."""
    if codec == NONE:
        yield bytes(payload)
        return
    if codec >= len(NAMES):
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {codec}")
    pieces = (_gzip_pieces, _snappy_pieces, _lz4_pieces, _zstd_pieces)[codec - 1](payload)
    total = 0
    errors = _codec_errors()
    while True:
        try:
            piece = next(pieces, None)
            if piece is None:
                return
            total += len(piece)
            _check_bound(total)
        except errors as error:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{NAMES[codec]} payload does not decompress: {error}") from error
        yield piece


def _gzip_pieces(payload: Buffer) -> Iterator[bytes]:
    data: bytes = bytes(payload)
    while data:  # concatenated members are one stream
        decompressor = zlib.decompressobj(31)
        while not decompressor.eof:
            piece = decompressor.decompress(data, _PIECE_BYTES)
            data = decompressor.unconsumed_tail
            if not piece and not data and not decompressor.eof:
                raise ValueError("stream ends early")
            yield piece
        data = decompressor.unused_data


def _snappy_pieces(payload: Buffer) -> Iterator[bytes]:
    view = memoryview(payload)
    if bytes(view[:8]) != _XERIAL_MAGIC:
        yield _unsnappy_block(view)
        return
    at = len(_XERIAL_HEADER)
    while at < len(view):
        if at + 4 > len(view):
            raise ValueError("block length cut off")
        (size,) = _LENGTH.unpack_from(view, at)
        at += 4
        if size < 0 or at + size > len(view):
            raise ValueError(f"block of {size} bytes runs past the end")
        yield _unsnappy_block(view[at : at + size])
        at += size


def _lz4_pieces(payload: Buffer) -> Iterator[bytes]:
    import lz4.frame

    decompressor = lz4.frame.LZ4FrameDecompressor()
    yield decompressor.decompress(payload, max_length=_PIECE_BYTES)
    while not decompressor.eof and not decompressor.needs_input:
        yield decompressor.decompress(b"", max_length=_PIECE_BYTES)
    if not decompressor.eof:
        raise ValueError("frame ends early")


def _zstd_pieces(payload: Buffer) -> Iterator[bytes]:
    import zstandard

    with zstandard.ZstdDecompressor().stream_reader(payload, read_across_frames=True) as reader:
        while piece := reader.read(_PIECE_BYTES):
            yield piece


def _codec_errors() -> tuple[type[Exception], ...]:
    import cramjam
    import zstandard

    return (cramjam.DecompressionError, zstandard.ZstdError, zlib.error, ValueError, EOFError, RuntimeError)


def compress(codec: int, payload: Buffer, level: int | None = None) -> bytes:
    data = bytes(payload)
    if codec == NONE:
        return data
    if codec == GZIP:
        compressor = zlib.compressobj(6 if level is None else level, zlib.DEFLATED, 31)
        return compressor.compress(data) + compressor.flush()
    if codec == SNAPPY:
        return _snappy(data)
    if codec == LZ4:
        import lz4.frame

        # Independent blocks, no content checksum: all clients can read these.
        return bytes(lz4.frame.compress(data, compression_level=level or 0, block_linked=False, store_size=False))
    if codec == ZSTD:
        import zstandard

        return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)
    raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {codec}")


def recompress(header: BatchHeader, data: Buffer, codec: int, level: int | None = None) -> bytes:
    """The same records with another codec; offsets, producer and timestamps do not change."""
    payload = decompress(header.compression, memoryview(data)[HEADER_SIZE:])
    attributes = header.attributes & ~COMPRESSION_MASK | codec
    return seal(header._replace(attributes=attributes), compress(codec, payload, level))


def _gunzip(payload: Buffer) -> bytes:
    out: list[bytes] = []
    left = MAX_DECOMPRESSED_BYTES
    data: bytes = bytes(payload)
    while data:  # concatenated members are one stream
        decompressor = zlib.decompressobj(31)
        piece = decompressor.decompress(data, left)
        out.append(piece)
        left -= len(piece)
        if decompressor.unconsumed_tail or left <= 0:
            raise ValueError(f"more than {MAX_DECOMPRESSED_BYTES} bytes when decompressed")
        if not decompressor.eof:
            raise ValueError("stream ends early")
        data = decompressor.unused_data
    return b"".join(out)


def _unlz4(payload: Buffer) -> bytes:
    import lz4.frame

    decompressor = lz4.frame.LZ4FrameDecompressor()
    room = _first_room(payload)  # the library allocates max_length at once
    out: list[bytes] = [decompressor.decompress(payload, max_length=room)]
    total = len(out[0])
    while not decompressor.eof and not decompressor.needs_input:
        _check_bound(total)
        room = min(room * 2, MAX_DECOMPRESSED_BYTES + 1 - total)
        out.append(decompressor.decompress(b"", max_length=room))
        total += len(out[-1])
    _check_bound(total)
    if not decompressor.eof:
        raise ValueError("frame ends early")
    return out[0] if len(out) == 1 else b"".join(out)


def _unzstd(payload: Buffer) -> bytes:
    import zstandard

    room = _first_room(payload)
    out: list[bytes] = []
    total = 0
    with zstandard.ZstdDecompressor().stream_reader(payload, read_across_frames=True) as reader:
        while piece := reader.read(min(room, MAX_DECOMPRESSED_BYTES + 1 - total)):
            out.append(piece)
            total += len(piece)
            _check_bound(total)
            room *= 2
    return out[0] if len(out) == 1 else b"".join(out)


def _first_room(payload: Buffer) -> int:
    return min(max(4 * len(payload), 64 << 10), MAX_DECOMPRESSED_BYTES + 1)


def _check_bound(size: int) -> None:
    if size > MAX_DECOMPRESSED_BYTES:
        raise ValueError(f"more than {MAX_DECOMPRESSED_BYTES} bytes when decompressed")


def _unsnappy(payload: Buffer) -> bytes:
    out: list[bytes] = []
    total = 0
    for block in _snappy_pieces(payload):
        total += len(block)
        _check_bound(total)
        out.append(block)
    return out[0] if len(out) == 1 else b"".join(out)


def _unsnappy_block(block: memoryview) -> bytes:
    size = shift = 0
    for byte in block[:5]:  # the block's length prefix, checked before allocating memory
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    _check_bound(size)
    import cramjam

    return bytes(cramjam.snappy.decompress_raw(bytes(block)))


def _snappy(data: bytes) -> bytes:
    import cramjam

    out = [_XERIAL_HEADER]
    for at in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + _XERIAL_BLOCK_BYTES]))
        out += (_LENGTH.pack(len(block)), block)
    return b"".join(out)
