"""Walks the records of a batch for their keys without creating record objects.

    length varint | attributes 1 | timestamp delta varint | offset delta varint | key length varint | key
    | value length varint | value | headers

Varints are zigzag: a length appears doubled, and 1 means null. Everything is inlined, because a compaction reads
every record twice. `reference` in the tests is the plain version.

Keys of up to 32 bytes represent themselves. Longer keys are represented by a digest of 33 bytes, so that memory is
bounded and no digest equals a short key.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from penstock.records.builder import MalformedRecords, read_varint, write_varint

_LONGEST_KEY = 2 * 32  # as a zigzag varint
_DIGEST_SIZE = 33
_NULL = 1


class Retained(NamedTuple):
    """`runs` are the kept records as start, end, start, end ... in the payload."""

    runs: list[int]
    kept: int
    read: int
    has_tombstones: bool


def digest(key: bytes) -> bytes:
    """The representation of a key in the map."""
    return key if 2 * len(key) <= _LONGEST_KEY else blake2b(key, digest_size=_DIGEST_SIZE).digest()


def put_keys(data: bytes, at: int, end: int, base_offset: int, start_offset: int, offsets: dict[bytes, int]) -> int:
    """Note the offset of every key from `start_offset` on; return the number of records. Raises MalformedRecords."""
    start_delta = 2 * (start_offset - base_offset)
    count = 0
    try:
        while at < end:
            size = data[at]
            at += 1
            if size >= 0x80:
                size, at = _long_varint(data, at - 1)
            stop = at + (size >> 1)
            at += 1
            while data[at] >= 0x80:
                at += 1
            delta = data[at + 1]
            at += 2
            if delta >= 0x80:
                delta, at = _long_varint(data, at - 1)
            key = data[at]
            at += 1
            if key >= 0x80:
                key, at = _long_varint(data, at - 1)
            if key != _NULL:
                key_end = at + (key >> 1)
                if key_end >= stop or stop > end:
                    raise MalformedRecords(f"record at {at} runs past its end")
                if delta >= start_delta:
                    if key > _LONGEST_KEY:
                        offsets[blake2b(data[at:key_end], digest_size=_DIGEST_SIZE).digest()] = base_offset + (
                            delta >> 1
                        )
                    else:
                        offsets[data[at:key_end]] = base_offset + (delta >> 1)
            at = stop
            count += 1
    except IndexError as error:
        raise MalformedRecords("records run past the end") from error
    if at != end:
        raise MalformedRecords("the last record runs past the end")
    return count


def retain(
    data: bytes,
    at: int,
    end: int,
    base_offset: int,
    latest_offset: int,
    offsets: dict[bytes, int],
    drops_tombstones: bool,
) -> Retained:
    """Select the records that stay: those whose key has no later offset, and all beyond `latest_offset`.

    A record without a key is removed. A tombstone that is the last of its key is removed if `drops_tombstones`.
    """
    runs: list[int] = []
    kept = count = 0
    has_tombstones = False
    last_end = -1
    get = offsets.get
    try:
        while at < end:
            start = at
            size = data[at]
            at += 1
            if size >= 0x80:
                size, at = _long_varint(data, at - 1)
            stop = at + (size >> 1)
            at += 1
            while data[at] >= 0x80:
                at += 1
            delta = data[at + 1]
            at += 2
            if delta >= 0x80:
                delta, at = _long_varint(data, at - 1)
            key = data[at]
            at += 1
            if key >= 0x80:
                key, at = _long_varint(data, at - 1)
            count += 1
            offset = base_offset + (delta >> 1)
            if key != _NULL:
                key_end = at + (key >> 1)
                if key_end >= stop or stop > end:
                    raise MalformedRecords(f"record at {at} runs past its end")
                if key > _LONGEST_KEY:
                    found = get(blake2b(data[at:key_end], digest_size=_DIGEST_SIZE).digest(), -1)
                else:
                    found = get(data[at:key_end], -1)
                is_tombstone = data[key_end] == _NULL
                at = stop
                if offset < found or (is_tombstone and drops_tombstones and offset <= latest_offset):
                    continue
            else:
                is_tombstone = data[at] == _NULL
                at = stop
                if offset <= latest_offset:
                    continue
            if is_tombstone:
                has_tombstones = True
            kept += 1
            if start == last_end:
                runs[-1] = stop
            else:
                runs.append(start)
                runs.append(stop)
            last_end = stop
    except IndexError as error:
        raise MalformedRecords("records run past the end") from error
    if at != end:
        raise MalformedRecords("the last record runs past the end")
    return Retained(runs, kept, count, has_tombstones)


def copy_runs(data: bytes, runs: list[int], shift: int) -> tuple[bytes, int]:
    """Copy the records of `runs` with timestamp deltas reduced by `shift`; return (bytes, largest old delta)."""
    largest = -(1 << 63)
    out = bytearray()
    for number in range(0, len(runs), 2):
        at, end = runs[number], runs[number + 1]
        if not shift:
            out += data[at:end]
        while at < end:
            size, at = read_varint(data, at)
            stop = at + size
            delta, rest = read_varint(data, at + 1)
            if delta > largest:
                largest = delta
            if shift:
                body = bytearray(data[at : at + 1])
                write_varint(delta - shift, body)
                body += data[rest:stop]
                write_varint(len(body), out)
                out += body
            at = stop
    return bytes(out), largest


def _long_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned varint at `at`, still zigzag, and its end."""
    result = shift = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7
        if shift > 63:
            raise MalformedRecords("varint of more than 64 bits")
