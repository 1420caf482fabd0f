"""Encoding and decoding of messages: cached codecs per class and version, headers, frames.

`wire.reading` and `wire.writing` generate the codecs on first use, so that only the versions in use cost anything.
Nothing here knows what a message means.

Frame:           size int32 | header | body
Request header:  api key int16 | version int16 | correlation id int32 | client id nullable
                 string, int16 length in every version | tagged fields if flexible
Response header: correlation id int32 | tagged fields if flexible, except for ApiVersions
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple, TypeVar, cast

from penstock.model.errors import ProtocolError
from penstock.ports.channel import Part
from penstock.ports.disk import Buffer, FileSlice
from penstock.wire.apis import ApiSpec, api, find_api
from penstock.wire.primitives import Encoded, Message, skip_tagged_section
from penstock.wire.reading import NO_BOUND, Read, StepReader, compile_reader, compile_step_reader
from penstock.wire.writing import StepWriter, carries_records, compile_step_writer, compile_writer

M = TypeVar("M", bound=Message)
Reader = Callable[[Buffer, int], tuple[M, int]]
Writer = Callable[[M, list[Part]], None]

_readers: dict[tuple[type[Message], int], Reader[Message]] = {}
_writers: dict[tuple[type[Message], int], Writer[Message]] = {}
_request_writers: dict[tuple[int, int], tuple[bool, bool, Writer[Message]]] = {}
_response_readers: dict[tuple[int, int], Reader[Message]] = {}
_request_readers: dict[tuple[int, int], Callable[[Buffer, int, int], Read]] = {}
_request_step_readers: dict[tuple[int, int], StepReader] = {}
_step_writers: dict[tuple[type[Message], int], StepWriter] = {}
_response_step_writers: dict[tuple[int, int], tuple[struct.Struct, bool, StepWriter]] = {}
_response_writers: dict[tuple[int, int], tuple[struct.Struct, bool, Writer[Message]]] = {}

_REQUEST_HEADER = struct.Struct(">hhih")
_INT32 = struct.Struct(">i")
_RESPONSE_PREFIX = struct.Struct(">ii")
_FLEXIBLE_RESPONSE_PREFIX = struct.Struct(">iix")
_NO_TAGS = b"\0"


def reader(cls: type[M], version: int) -> Reader[M]:
    """A function (buffer, offset) -> (message, offset after it). Bad input raises ProtocolError.

    Strings and bytes are copies; records are views into `buffer`.
    """
    read = _readers.get((cls, version))
    if read is None:
        _check_version(cls, version)
        read = _readers[cls, version] = compile_reader(cls, version)
    return cast("Reader[M]", read)


def writer(cls: type[M], version: int) -> Writer[M]:
    """A function (message, parts) that appends the encoded message to `parts`.

    Fields that `version` lacks are dropped silently. Records are appended unchanged.
    """
    write = _writers.get((cls, version))
    if write is None:
        _check_version(cls, version)
        write = _writers[cls, version] = compile_writer(cls, version)
    return cast("Writer[M]", write)


def _check_version(cls: type[Message], version: int) -> None:
    first, last = cls.VERSIONS
    if not first <= version <= last:
        raise ProtocolError(f"{cls.__name__} has no version {version}")


def decode(cls: type[M], version: int, buffer: Buffer, offset: int = 0) -> M:
    """Reads a message that fills the rest of the buffer."""
    message, end = reader(cls, version)(buffer, offset)
    if end != len(buffer):
        raise ProtocolError(f"{len(buffer) - end} bytes after {cls.__name__} v{version}")
    return message


def encode(message: Message, version: int) -> bytes:
    """The bytes of a message alone; a FileSlice in it is read."""
    parts: list[Part] = []
    writer(type(message), version)(message, parts)
    return b"".join(part.read() if isinstance(part, FileSlice) else part for part in parts)


def frame(parts: Sequence[Part]) -> tuple[list[Part], int]:
    """Joins neighbouring bytes and puts the size in front. Returns the parts and their total size."""
    joined, size = _join(parts)
    return _prefixed(_INT32.pack(size), joined), size + 4


def _join(parts: Sequence[Part]) -> tuple[list[Part], int]:
    joined: list[Part] = []
    pending: list[bytes] = []
    size = 0
    for part in parts:
        if isinstance(part, FileSlice):
            if pending:
                joined.append(b"".join(pending))
                pending = []
            joined.append(part)
            size += part.size
        else:
            pending.append(part)
            size += len(part)
    if pending:
        joined.append(b"".join(pending))
    return joined, size


def _prefixed(prefix: bytes, parts: list[Part]) -> list[Part]:
    """Puts `prefix` before the first part, joined with it if possible."""
    if not parts or isinstance(parts[0], FileSlice):
        return [prefix, *parts]
    parts[0] = prefix + parts[0]
    return parts


# Requests


class RequestHeader(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_at: int
    """The offset of the body. For an unknown API or version the one after the client id, which is enough to answer a
    newer ApiVersions request.
    """


def read_request_header(buffer: Buffer, offset: int = 0) -> RequestHeader:
    size = len(buffer)
    try:
        api_key, version, correlation_id, length = _REQUEST_HEADER.unpack_from(buffer, offset)
        offset += 10
        client_id = None
        if length >= 0:
            end = offset + length
            if end > size:
                raise ProtocolError("client id runs past the end of the request")
            client_id = str(buffer[offset:end], "utf-8")
            offset = end
        spec = find_api(api_key)
        if spec is not None and spec.flexible_from <= version <= spec.max_version:
            offset = skip_tagged_section(buffer, offset, size) if buffer[offset] else offset + 1
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"request header: {error}") from error
    return RequestHeader(api_key, version, correlation_id, client_id, offset)


def decode_request(api_key: int, version: int, buffer: Buffer, offset: int, max_elements: int = NO_BOUND) -> Message:
    """The request body at `offset`. Bytes after it are ignored, as Kafka does."""
    read = _request_readers.get((api_key, version))
    if read is None:
        bounded = cast("Callable[[Buffer, int, int], Read]", reader(api(api_key).request, version))
        read = _request_readers[api_key, version] = bounded
    return read(buffer, offset, max_elements)[0]


def request_steps(
    api_key: int, version: int, buffer: Buffer, offset: int, max_elements: int
) -> Generator[None, None, Read]:
    """`decode_request` in steps of about a millisecond, bounded in the elements of all arrays together.

    Returns (message, offset after it). Most requests need only the first step.
    """
    read = _request_step_readers.get((api_key, version))
    if read is None:
        read = _request_step_readers[api_key, version] = compile_step_reader(api(api_key).request, version)
    return read(buffer, offset, max_elements)


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, message: Message
) -> tuple[list[Part], int]:
    """A whole request frame and its size."""
    known = _request_writers.get((api_key, version))
    if known is None:
        spec = _spec(api_key, version)
        known = (spec.is_flexible(version), carries_records(spec.request), writer(spec.request, version))
        _request_writers[api_key, version] = known
    is_flexible, records, write = known
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    parts: list[Part] = [_REQUEST_HEADER.pack(api_key, version, correlation_id, length), name]
    if is_flexible:
        parts.append(_NO_TAGS)
    write(message, parts)
    if records:
        return frame(parts)
    body = b"".join(parts)  # type: ignore[arg-type]  # without records there is no FileSlice
    return [_INT32.pack(len(body)) + body], len(body) + 4


# Responses


def encode_response(api_key: int, version: int, correlation_id: int, message: Message) -> tuple[list[Part], int]:
    """A whole response frame and its size."""
    known = _response_writers.get((api_key, version))
    if known is None:
        spec = _spec(api_key, version)
        prefix = response_prefix(api_key, version)
        known = (prefix, carries_records(spec.response), writer(spec.response, version))
        _response_writers[api_key, version] = known
    prefix, records, write = known
    parts: list[Part] = []
    write(message, parts)
    return _response_frame(prefix, records, correlation_id, parts)


def response_steps(
    api_key: int, version: int, correlation_id: int, message: Message
) -> Generator[None, None, tuple[list[Part], int]]:
    """`encode_response` in steps, for answers with many elements.

    A message that is `Encoded` was encoded before (by `body_steps`): its `encoded` bytes are used.
    """
    known = _response_step_writers.get((api_key, version))
    if known is None:
        spec = _spec(api_key, version)
        prefix = response_prefix(api_key, version)
        known = (prefix, carries_records(spec.response), compile_step_writer(spec.response, version))
        _response_step_writers[api_key, version] = known
    prefix, records, write = known
    if isinstance(message, Encoded):
        body = message.encoded
        size = prefix.size + len(body)
        return [prefix.pack(size - 4, correlation_id), body], size
    parts: list[Part] = []
    yield from _joining(write(message, parts), parts)
    return _response_frame(prefix, records, correlation_id, parts)


def _joining(steps: Iterator[None], parts: list[Part]) -> Generator[None, None, None]:
    """Joins the parts of each step within the step: joining a hundred thousand parts at the end takes milliseconds."""
    done = 0
    for _ in steps:
        parts[done:] = _join(parts[done:])[0]
        done = len(parts)
        yield


def body_steps(cls: type[Message], message: Message, version: int) -> Generator[None, None, bytes]:
    """The bytes of a message without records, in the layout of `cls`, in steps."""
    write = _step_writers.get((cls, version))
    if write is None:
        write = _step_writers[cls, version] = compile_step_writer(cls, version)
    parts: list[Part] = []
    yield from _joining(write(message, parts), parts)
    return b"".join(cast("list[bytes]", parts))


def response_prefix(api_key: int, version: int) -> struct.Struct:
    """Packs the size of the rest and the correlation id."""
    is_flexible = _spec(api_key, version).response_header_is_flexible(version)
    return _FLEXIBLE_RESPONSE_PREFIX if is_flexible else _RESPONSE_PREFIX


def _response_frame(
    prefix: struct.Struct, records: bool, correlation_id: int, parts: list[Part]
) -> tuple[list[Part], int]:
    if records:
        joined, size = _join(parts)
        size += prefix.size
        return _prefixed(prefix.pack(size - 4, correlation_id), joined), size
    body = b"".join(parts)  # type: ignore[arg-type]  # without records there is no FileSlice
    size = len(body) + prefix.size
    return [prefix.pack(size - 4, correlation_id) + body], size


def read_response_header(api_key: int, version: int, buffer: Buffer, offset: int = 0) -> tuple[int, int]:
    """(correlation id, offset of the body)."""
    try:
        (correlation_id,) = _INT32.unpack_from(buffer, offset)
        offset += 4
        if _spec(api_key, version).response_header_is_flexible(version):
            offset = skip_tagged_section(buffer, offset, len(buffer))
    except (IndexError, struct.error) as error:
        raise ProtocolError(f"response header: {error}") from error
    return correlation_id, offset


def decode_response(api_key: int, version: int, buffer: Buffer, offset: int) -> Message:
    """The response body at `offset`. Bytes after it are ignored."""
    read = _response_readers.get((api_key, version))
    if read is None:
        read = _response_readers[api_key, version] = reader(_spec(api_key, version).response, version)
    return read(buffer, offset)[0]


def _spec(api_key: int, version: int) -> ApiSpec:
    spec = api(api_key)
    if not spec.knows(version):
        raise ProtocolError(f"{spec.name} has no version {version}")
    return spec
