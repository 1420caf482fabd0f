"""`penstock produce`: send lines of standard input or files as records."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import IO, TYPE_CHECKING, Literal, TypeAlias

import click

from penstock.cli.arguments.numbers import NUMBER
from penstock.cli.arguments.pairs import parse_pair
from penstock.cli.cluster.min_insync import too_few_in_sync
from penstock.cli.output import progress, show_json
from penstock.cli.reach.connection import Target, cluster_command, complete_topics, json_option
from penstock.cli.records.batching import batching
from penstock.cli.records.lines import read_hex, read_json
from penstock.model.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.sdk import BlockingProducer, ClientError, Delivery, NewRecord

WAITED = ("TIMED_OUT", "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND")
LINE_LIMIT = 64 * 1024 * 1024
PROGRESS_STEP = 64 * 1024
Format = Literal["raw", "json", "hex", "file"]
Place: TypeAlias = tuple[str, int]
"""A source and a line number; 0 means the whole source."""


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--topic", required=True, help="Topic to write to.", shell_complete=complete_topics)
@click.option(
    "--format",
    "form",
    type=click.Choice(["raw", "json", "hex", "file"]),
    default="raw",
    show_default=True,
    help="raw: each line is a value. json: each line is an object as `consume --format json` writes it. "
    "hex: each line is a value in hexadecimal. file: each file is one value.",
)
@click.option("--key", help="Give every record this key.")
@click.option("--key-separator", metavar="TEXT", help="Text between key and value in a line (\\t for a tab).")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Give every record this header; repeatable."
)
@click.option("--partition", type=NUMBER, help="Write to this partition only.")
@click.option("--null-value", metavar="TEXT", help="Send a tombstone (null) for a value equal to TEXT.")
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True)
@click.option(
    "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none", show_default=True
)
@click.option("--partitioner", type=click.Choice(["hash", "round-robin"]), default="hash", show_default=True)
@json_option
@cluster_command
def produce(
    target: Target,
    files: tuple[str, ...],
    topic: str,
    form: Format,
    key: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    null_value: str | None,
    acks: Literal["all", "0", "1"],
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"],
    partitioner: Literal["hash", "round-robin"],
    as_json: bool,
) -> None:
    """Send the lines of FILEs or standard input as records."""
    from penstock.sdk import BlockingProducer

    if key_separator == "":
        raise click.UsageError("--key-separator is empty: give the text between key and value, for example :")
    reader = LineReader(
        form,
        key.encode() if key is not None else None,
        key_separator.replace("\\t", "\t").encode() if key_separator else None,
        [parse_pair("--header", header) for header in headers],
        null_value.encode() if null_value is not None else None,
    )
    _check_files(files)
    target.check()
    is_typed = not files and sys.stdin.isatty()
    if is_typed:
        click.echo(f"Each line is a record for {topic}; Ctrl-D ends.", err=True)
    count = Count(is_telling=is_typed)
    producer = BlockingProducer(
        target.servers,
        **batching(target, topic, is_typed=is_typed),
        acks="all" if acks == "all" else 0 if acks == "0" else 1,
        compression=compression,
        partitioner=partitioner,
        delivery_timeout_ms=int(target.timeout_s * 1000),
        timeout_counts_from="progress",
        client_id="penstock-cli",
        settings=target.settings,
    )
    bad_line: BadLine | None = None
    with producer:
        try:
            for source in files or ("-",):
                _send(producer, reader, source, topic, partition, count)
        except BadLine as error:
            bad_line = error  # raised once the records before it are delivered
    if bad_line is not None:
        failed = f"; {count.failures()}" if count.failed else ""
        raise ConfigError(f"{bad_line}; {_records(count.delivered)} before it sent to {topic}{failed}") from bad_line
    if count.first is not None:
        from penstock.cli.reach.no_controller import no_controller

        reason = no_controller(target, count.first)
        if reason is None and acks == "all" and count.first.name in WAITED:
            reason = too_few_in_sync(target, topic, partition)
        raise PenstockError(count.failures(reason))
    if as_json:
        show_json({"topic": topic, "sent": count.delivered})
    else:
        click.echo(f"Sent {_records(count.delivered)} to {topic}.", err=True)


class BadLine(ConfigError):
    """A line that cannot be read: reading stops there."""


class Count:
    """Counts delivered and failed records. `is_telling`: print the outcome of each, for a person who types them."""

    def __init__(self, *, is_telling: bool = False) -> None:
        self._is_telling = is_telling
        self._lock = threading.Lock()
        self.delivered = 0
        self.failed = 0
        self.first: ClientError | None = None
        self._place = ""

    def note(self, place: Place, result: Delivery | ClientError) -> None:
        """Called in the producer's thread, and during a flush in ours."""
        if self._is_telling:
            click.echo(_outcome(result), err=True)
        with self._lock:
            if isinstance(result, PenstockError):
                self.failed += 1
                if self.first is None:
                    self.first, self._place = result, _place(place)
            else:
                self.delivered += 1

    def failures(self, reason: PenstockError | None = None) -> str:
        """`reason`: a cause that explains more than the first failure."""
        return (
            f"{self.failed} of {_records(self.failed + self.delivered)} not delivered, "
            f"the first from {self._place}: {reason or self.first}"
        )


class LineReader:
    def __init__(
        self,
        form: Format,
        key: bytes | None,
        separator: bytes | None,
        headers: list[tuple[str, str]],
        null_value: bytes | None,
    ) -> None:
        self._form = form
        self._key = key
        self._separator = separator
        self._headers = headers
        self._null_value = null_value

    def records(self, stream: IO[bytes], name: str) -> Iterator[tuple[NewRecord, int, Place]]:
        """The records, each with its size in the source and its place."""
        from penstock.sdk import NewRecord

        if self._form == "file":
            data = stream.read(LINE_LIMIT + 1)
            if len(data) > LINE_LIMIT:
                raise BadLine(f"{name} is larger than {LINE_LIMIT} bytes, the limit for a record")
            yield NewRecord(data, self._key, self._headers), len(data), (name, 0)
            return
        number = 0
        while line := stream.readline(LINE_LIMIT + 1):
            number += 1
            if len(line) > LINE_LIMIT:
                raise BadLine(f"{name}, line {number}: longer than {LINE_LIMIT} bytes")
            if self._form == "json" and not line.strip():
                continue
            try:
                record = self._record(line.removesuffix(b"\n").removesuffix(b"\r"))
            except ValueError as error:
                raise BadLine(f"{name}, line {number}: {error}") from error
            yield record, len(line), (name, number)

    def _record(self, line: bytes) -> NewRecord:
        from penstock.sdk import NewRecord

        if self._form == "json":
            found = read_json(line)
            return NewRecord(
                found.value,
                found.key if found.key is not None else self._key,
                [*found.headers, *self._headers],
                partition=found.partition,
                timestamp_ms=found.timestamp_ms,
            )
        key, value = self._key, line
        if self._separator is not None:
            before, found_separator, after = line.partition(self._separator)
            if not found_separator:
                raise ValueError(f"no {self._separator.decode()!r} between key and value")
            key, value = before, after
        if self._null_value is not None and value == self._null_value:
            return NewRecord(None, key, self._headers)
        if self._form == "hex":
            return NewRecord(read_hex(value), None if key is None else key, self._headers)
        return NewRecord(value, key, self._headers)


def _send(
    producer: BlockingProducer, reader: LineReader, source: str, topic: str, partition: int | None, count: Count
) -> None:
    from penstock.sdk import DeliveryFailed, Refused

    name = "standard input" if source == "-" else source
    with click.open_file(source, "rb") as stream, progress(_size(source), name) as bar:
        unseen = 0
        for record, size, place in reader.records(stream, name):
            noted = partial(count.note, place)
            try:
                producer.enqueue(
                    topic,
                    record.value,
                    then=noted,
                    key=record.key,
                    partition=record.partition if partition is None else partition,
                    headers=record.headers,
                    timestamp_ms=record.timestamp_ms,
                )
            except (DeliveryFailed, Refused) as error:
                noted(error)  # refused before it was sent
            unseen += size
            if unseen >= PROGRESS_STEP:
                bar.update(unseen)
                unseen = 0
        bar.update(unseen)


def _outcome(result: Delivery | ClientError) -> str:
    if isinstance(result, PenstockError):
        return f"  not delivered: {result}"
    # With acks=0 the broker does not return an offset.
    return "  sent" if result.offset is None else f"  partition {result.partition}, offset {result.offset}"


def _check_files(files: tuple[str, ...]) -> None:
    """Refuses unreadable files before anything is sent."""
    if not files and sys.stdin is None:
        raise ConfigError("standard input is closed: give files, or pipe records in")
    for path in files:
        if os.path.isdir(path):
            raise ConfigError(f"{path} is a directory: give files")
        if path != "-" and not os.path.exists(path):
            raise ConfigError(f"{path}: there is no such file")
        if path != "-" and not os.access(path, os.R_OK):
            raise ConfigError(f"{path} cannot be read")


def _place(place: Place) -> str:
    name, number = place
    return f"{name}, line {number}" if number else name


def _records(count: int) -> str:
    return f"{count} record{'' if count == 1 else 's'}"


def _size(source: str) -> int:
    return 0 if source == "-" else os.path.getsize(source)
