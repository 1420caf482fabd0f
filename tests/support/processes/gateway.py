"""A broker process with its gateway, and callers of the REST proxy and the line protocol."""

from __future__ import annotations

import http.client
import json
import re
import shlex
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support.processes.broker import BrokerProcess

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "gateway.md"


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in this language ("" for none)."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [text for name, text in fenced if name == language]


def transcript(page: Path) -> list[tuple[bytes, bytes]]:
    """A line typed after `$ nc`, and the whole answer to it: up to the line that starts with OK or ERR."""
    session = next(block for block in blocks(page, "") if block.startswith("$ nc "))
    lines = session.splitlines()[1:]
    turns: list[tuple[bytes, bytes]] = []
    while lines:
        typed, received = lines.pop(0), ""
        while True:
            line = lines.pop(0)
            received += line + "\n"
            if line.startswith(("OK", "ERR")):
                break
        turns.append((typed.encode() + b"\n", received.encode()))
    return turns


def walkthrough(page: Path) -> list[tuple[str, str]]:
    """Commands and what they print."""
    turns: list[tuple[str, str]] = []
    for block in blocks(page, "console"):
        for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = piece.partition("\n")
            turns.append((command, printed))
    return turns


class Netcat:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        self._file = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def line(self) -> bytes:
        return self._file.readline()

    def answer(self) -> bytes:
        """Up to the line that ends it."""
        received = b""
        while True:
            line = self.line()
            assert line, f"closed after {received!r}"
            received += line
            if line.startswith((b"OK", b"ERR")):
                return received

    def ask(self, text: str) -> str:
        self.send(text.encode() + b"\n")
        return self.answer().decode().removesuffix("\n")

    def rest(self) -> bytes:
        """Send end of file, as nc -N does, and read to the end."""
        self.socket.shutdown(socket.SHUT_WR)
        return self._file.read()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def __enter__(self) -> Netcat:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Http:
    """One connection a call; the answer as status, headers, bytes."""

    def __init__(self, port: int) -> None:
        self.port = port

    def call(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def get(self, path: str, accept: str | None = None) -> Any:
        status, _, body = self.call("GET", path, headers={} if accept is None else {"Accept": accept})
        assert status == 200, (status, body)
        return json.loads(body)

    def post(self, path: str, body: object, content_type: str = "application/json", status: int = 200) -> Any:
        got, _, answer = self.call("POST", path, json.dumps(body).encode(), {"Content-Type": content_type})
        assert got == status, (got, answer)
        return json.loads(answer) if answer else None

    def refused(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, int, str]:
        """Status, error_code and message of a refusal. A body is JSON unless a header says otherwise."""
        given = {} if body is None else {"Content-Type": "application/json"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        status, _, answer = self.call(method, path, data, given)
        shape = json.loads(answer)
        assert set(shape) == {"error_code", "message"}, shape
        return status, shape["error_code"], shape["message"]

    def curl(self, command: str) -> str:
        """The few options of curl that the pages use, with localhost:8082 as this listener."""
        words = shlex.split(command)
        assert words.pop(0) == "curl"
        method, headers, body, url = "GET", {"Host": "localhost:8082"}, None, ""
        while words:
            word = words.pop(0)
            if word == "-X":
                method = words.pop(0)
            elif word == "-H":
                name, _, value = words.pop(0).partition(": ")
                headers[name] = value
            elif word == "-d":
                body = words.pop(0).encode()
            elif word not in ("-s", "-N"):
                url = word
        parts = urlsplit(f"//{url}")
        assert parts.netloc == "localhost:8082"
        _, _, answer = self.call(method, f"{parts.path}?{parts.query}".removesuffix("?"), body, headers)
        return answer.decode()


def gateway_port(broker: BrokerProcess, name: str) -> int:
    found = re.search(rf"{name} on 127\.0\.0\.1:(\d+)", broker.ready_line)
    assert found, broker.ready_line
    return int(found[1])
