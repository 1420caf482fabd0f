"""Ends TLS in front of a broker that has none. The certificate is for localhost and 127.0.0.1, until 2120."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

_DIRECTORY = Path(__file__).parents[2] / "unit" / "wire_client" / "blocking" / "tls"
CERTIFICATE, KEY = str(_DIRECTORY / "certificate.pem"), str(_DIRECTORY / "key.pem")


class TlsProxy:
    def __init__(self, port: int, *, wants_client_certificate: bool = False) -> None:
        self._target = ("127.0.0.1", port)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(CERTIFICATE, KEY)
        if wants_client_certificate:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(CERTIFICATE)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        try:
            with (
                self._context.wrap_socket(accepted, server_side=True) as outer,
                socket.create_connection(self._target) as inner,
            ):
                back = threading.Thread(target=pump, args=(inner, outer), daemon=True)
                back.start()
                pump(outer, inner)
                back.join(10)
        except OSError:
            accepted.close()

    def __enter__(self) -> TlsProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


def pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return
