"""Errors say what happened, also after they crossed a process boundary."""

from __future__ import annotations

import pickle

import pytest

from penstock.wire_client.requests.errors import (
    AuthenticationFailed,
    FetchStalled,
    OffsetOutOfRange,
    TopicRecreated,
    UnsupportedClientSetting,
    WireClientError,
)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OffsetOutOfRange(("t", 1), 5, 7, 9), "offset 5 is outside t-1: it begins at 7 and ends before 9"),
        (
            TopicRecreated("t", b"\0" * 16, b"\xff" * 16),
            "topic 't' was deleted and created again: its id is _____________________w, "
            "not AAAAAAAAAAAAAAAAAAAAAA, so offsets from before mean nothing",
        ),
        (
            FetchStalled(("t", 1), 5, 9, "2 at h:1", 12.34, "it sleeps"),
            "t-1: no records from broker 2 at h:1 at offset 5 (reading up to 9) for 12.3 s: it sleeps",
        ),
        (AuthenticationFailed("no"), "no"),
        (UnsupportedClientSetting("no"), "no"),
    ],
)
def test_what_they_say(error: WireClientError, text: str) -> None:
    assert str(error) == text
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == text
    assert vars(again) == vars(error)
