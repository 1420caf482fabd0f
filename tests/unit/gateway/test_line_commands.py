from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.line import commands as c


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (b"PUBLISH orders hello world", c.Publish("orders", None, None, b"hello world")),
        (b"publish orders  two blanks ", c.Publish("orders", None, None, b" two blanks ")),
        (b"PUBLISH orders \r", c.Publish("orders", None, None, b"")),
        (b"PUBLISH orders/2 x\r", c.Publish("orders", 2, None, b"x")),
        (b"PUBLISH orders \xff\x00", c.Publish("orders", None, None, b"\xff\x00")),
        (b"PUBLISHKEY orders k v w", c.Publish("orders", None, b"k", b"v w")),
        (b"CONSUME orders", c.Consume("orders", None, c.EARLIEST, 100)),
        (b"CONSUME orders 1 7 5", c.Consume("orders", 1, 7, 5)),
        (b"consume orders * latest", c.Consume("orders", None, c.LATEST, 100)),
        (b"CONSUME orders 0 @1763221000000 10000", c.Consume("orders", 0, c.AtTime(1763221000000), 10000)),
        (b"FOLLOW orders", c.Follow("orders", None, c.LATEST)),
        (b"FOLLOW orders 0 3", c.Follow("orders", 0, 3)),
        (b"COMMIT g orders 0 12", c.Commit("g", "orders", 0, 12)),
        (b"OFFSET g orders 0", c.Offset("g", "orders", 0)),
        (b"CREATE orders", c.Create("orders", None)),
        (b"CREATE orders 3", c.Create("orders", 3)),
        (b"  topics  ", c.Topics()),
        (b"HELP", c.Help()),
        (b"quit\r", c.Quit()),
        (b"", c.Nothing()),
        (b"\r", c.Nothing()),
        (b"STOP", c.Nothing()),
    ],
)
def test_commands(line: bytes, command: c.Command) -> None:
    assert c.parse(line) == command


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (b"PUSH orders x", "unknown command PUSH; HELP lists"),
        (b"\xff\xfe", "HELP lists"),
        (b"GET / HTTP", "unknown command GET"),
        (b"Note: this", "unknown command NOTE:"),
        (b"PUBLISH", "usage: PUBLISH <topic>"),
        (b"PUBLISH orders", "usage: PUBLISH <topic>"),
        (b"PUBLISHKEY orders k", "usage: PUBLISHKEY"),
        (b"PUBLISHKEY orders  v", "usage: PUBLISHKEY"),
        (b"PUBLISH or/ders x", "partition must be a number"),
        (b"PUBLISH or+ders x", "topic's name"),
        (b"PUBLISH .. x", "topic's name"),
        (b"PUBLISH \xff x", "UTF-8"),
        (b"CONSUME", "usage: CONSUME"),
        (b"CONSUME a b", "partition must be a number, not 'b'"),
        (b"CONSUME a 0 -5", "'-5' is not an offset: write a number, earliest, latest, or @ and milliseconds"),
        (b"CONSUME a 0 -1", "is not an offset: write a number"),
        (b"CONSUME a * 5", "needs a partition"),
        (b"CONSUME a 0 0 0", "max must be from 1 to 10000"),
        (b"CONSUME a 0 0 10001", "max must be from 1 to 10000"),
        (b"CONSUME a 99999999999", "partition must be a number"),
        (b"CONSUME a 0 99999999999999999999", "is not an offset: write a number"),
        (b"CONSUME a 0 @soon", "a time must be a number"),
        (b"COMMIT g a 0", "usage: COMMIT"),
        (b"OFFSET g a", "usage: OFFSET"),
        (b"CREATE", "usage: CREATE"),
        (b"TOPICS all", "usage: TOPICS"),
    ],
)
def test_refusals_say_what_to_write(line: bytes, part: str) -> None:
    with pytest.raises(c.BadCommand) as refused:
        c.parse(line)
    assert part in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "line",
    [b"GET / HTTP/1.1\r", b"POST /x?y HTTP/1.0", b"PRI * HTTP/2.0\r", b"Host: localhost:9099\r", b"content-length:7"],
)
def test_a_line_of_http(line: bytes) -> None:
    with pytest.raises(c.SpokenHttp):
        c.parse(line)


@pytest.mark.parametrize("line", [b"PUBLISH t HTTP/1.1", b"publishkey t host: x"])
def test_messages_may_look_like_http(line: bytes) -> None:
    assert isinstance(c.parse(line), c.Publish)


@given(st.binary(max_size=100))
def test_any_line_is_a_command_or_one_printable_sentence(line: bytes) -> None:
    line = line.replace(b"\n", b"")
    try:
        said = repr(c.parse(line))
    except (c.BadCommand, c.SpokenHttp) as error:
        said = str(error)
    assert said.isprintable()


def test_help_names_every_command() -> None:
    for verb in ("PUBLISH", "PUBLISHKEY", "CONSUME", "FOLLOW", "COMMIT", "OFFSET", "TOPICS", "CREATE", "HELP", "QUIT"):
        assert any(line.startswith(verb + " ") for line in c.HELP.splitlines())
