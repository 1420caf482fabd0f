"""`penstock consume`: records as lines on standard output."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import IO, TYPE_CHECKING, Literal

import click

from penstock.cli.arguments.numbers import INT64_MAX, NUMBER, Number
from penstock.cli.arguments.times import PointInTime
from penstock.cli.output import progress
from penstock.cli.reach.connection import Target, cluster_command, complete_groups, complete_topics
from penstock.cli.records.filter import parse_filters
from penstock.cli.records.lines import Line, hex_line, json_line, raw_line, template_line
from penstock.cli.records.waiting import GroupPatience, IdleWatch, OutageWatch, Patience
from penstock.model.errors import ConfigError

if TYPE_CHECKING:
    from penstock.sdk import BlockingConsumer, Record, TopicPartition

Format = Literal["raw", "json", "hex", "template"]
POLL_S = 0.1
PROGRESS_STEP = 1000


@click.command()
@click.option("--topic", required=True, help="Topic to read.", shell_complete=complete_topics)
@click.option("--group", help="Read as a member of this group and commit.", shell_complete=complete_groups)
@click.option("--partition", "partitions", type=NUMBER, multiple=True, help="Read only this partition; repeatable.")
@click.option("--from-beginning", is_flag=True, help="Start at the first record (the default without --follow).")
@click.option("--from-time", type=PointInTime(), help="Start at the first record at or after TIME.")
@click.option("--offset", type=int, help="Start at this offset; -10 is ten before the end.")
@click.option("--follow", "-f", is_flag=True, help="Wait for new records at the end, which is also the default start.")
@click.option("--max", "max_records", type=Number(1, INT64_MAX), help="Stop after this number of records.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["raw", "json", "hex", "template"]),
    default="raw",
    show_default=True,
    help="raw, hex: print the value, after the key with --keys and the headers with --headers. "
    "json: print the whole record, one object per line. template: see --template.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--template", help='Print this line: "{offset} {key} {value} {time} {header.NAME} {json.PATH}".')
@click.option("--keys", "--key", "with_key", is_flag=True, help="Print the key before the value.")
@click.option("--headers", "with_headers", is_flag=True, help="Print the headers before key and value.")
@click.option("--separator", default="\t", help="Text between headers, key and value (default: a tab).")
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="TEST",
    help="Print only records that match: REGEX (on the value), key=TEXT, value~REGEX, header.NAME=TEXT, "
    "json.PATH!=TEXT; repeatable, all must match.",
)
@cluster_command
def consume(
    target: Target,
    topic: str,
    group: str | None,
    partitions: tuple[int, ...],
    from_beginning: bool,
    from_time: datetime | None,
    offset: int | None,
    follow: bool,
    max_records: int | None,
    form: Format,
    as_json: bool,
    template: str | None,
    with_key: bool,
    with_headers: bool,
    separator: str,
    filters: tuple[str, ...],
) -> None:
    """Print the records of a topic. With --follow, keep running and print new records too."""
    from penstock.sdk import BlockingConsumer

    _check_start(group, partitions, from_beginning, from_time, offset)
    if as_json and form not in ("raw", "json"):
        raise click.UsageError("--json means --format json: give only one format")
    line = _line("json" if as_json else form, template, with_key, with_headers, separator)
    wanted_by_filters = parse_filters(filters)

    def passes(record: Record | None) -> bool:
        return record is None or wanted_by_filters(record)

    serving = target.serving()
    from_start = from_beginning or not follow
    consumer = BlockingConsumer(
        target.servers,
        begin_with=serving,
        group=group,
        auto_offset_reset="earliest" if from_start else "latest",
        fetch_max_wait_ms=500 if follow else 50,  # an empty fetch marks the end
        request_timeout_ms=int(target.timeout_s * 1000),
        client_id="penstock-cli",
        settings=target.settings,
    )
    with consumer, terminated_as_interrupted():
        found = consumer.partitions(topic)
        if group is not None:
            consumer.subscribe(topic)
            waiting: IdleWatch = (
                OutageWatch(target, consumer, topic) if follow else GroupPatience(target, topic, consumer, group)
            )
            records = _of_group(consumer, waiting, None if follow else consumer.at_end)
        else:
            wanted = [one for one in found if not partitions or one.partition in partitions]
            if len(wanted) < len(set(partitions)):
                raise ConfigError(f"topic {topic} has partitions 0 to {len(found) - 1}")
            ends = {one: consumer.bounds(one) for one in wanted}
            if offset is not None and all(offset > end for _, end in ends.values()):
                last_end = max((end for _, end in ends.values()), default=0)
                click.echo(f"penstock: offset {offset} is past the end of {topic}, {last_end}", err=True)
            _assign(consumer, ends, from_start, from_time, offset)
            last = None if follow else {one: end for one, (_, end) in ends.items()}
            waiting = OutageWatch(target, consumer, topic, partitions) if follow else Patience(target, topic)
            records = _of_partitions(consumer, last, waiting)
            if last is not None and from_time is None and offset is None and not sys.stdout.isatty():
                total = sum(end - start for start, end in ends.values())
                records = _watched(records, min(total, max_records or total), topic)
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends --follow
            _print(filter(passes, records), line, max_records, sys.stdout.buffer)
        sys.stdout.buffer.flush()  # the command succeeds only if this write does


def _print(records: Iterator[Record | None], line: Line, max_records: int | None, out: IO[bytes]) -> None:
    """Prints records. A None among them means a pause: the lines so far are flushed."""
    printed = 0
    for record in records:
        if record is None:
            out.flush()
        else:
            out.write(line(record))
            printed += 1
            if printed == max_records:
                break
    out.flush()


def _watched(records: Iterator[Record | None], total: int, label: str) -> Iterator[Record | None]:
    """Shows a progress bar, for a person who has redirected the output."""
    with progress(total, label) as bar:
        unseen = 0
        for record in records:
            yield record
            unseen += record is not None
            if record is None or unseen >= PROGRESS_STEP:
                bar.update(unseen)
                unseen = 0
        bar.update(unseen)


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Makes SIGTERM end as Ctrl-C does: the printed records are committed, and the consumer leaves its group."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _of_partitions(
    consumer: BlockingConsumer, ends: dict[TopicPartition, int] | None, waiting: IdleWatch
) -> Iterator[Record | None]:
    """With `ends`, only the records before them."""
    left = {one for one, end in (ends or {}).items() if end > 0}
    while ends is None or left:
        batch = consumer.poll(timeout_s=POLL_S)
        if batch:
            waiting.heard()
        for record in batch:
            at = record.topic_partition
            if ends is None or record.offset < ends[at]:
                yield record
            if ends is not None and record.offset + 1 >= ends[at]:
                left.discard(at)
        if not batch:
            yield None
            if ends is not None and consumer.at_end():
                return
            waiting.wait()


def _of_group(
    consumer: BlockingConsumer, waiting: IdleWatch, is_end: Callable[[], bool] | None
) -> Iterator[Record | None]:
    """With `is_end`, stops at the end of this member's partitions."""
    while True:
        batch = consumer.poll(max_records=1, timeout_s=POLL_S)  # an unprinted record must not be committed
        if batch:
            waiting.heard()
            yield from batch
        else:
            yield None
            if is_end is not None and is_end():
                return
            waiting.wait()


def _assign(
    consumer: BlockingConsumer,
    bounds: dict[TopicPartition, tuple[int, int]],
    from_start: bool,
    from_time: datetime | None,
    offset: int | None,
) -> None:
    if from_time is not None:
        consumer.assign(*bounds, at=from_time)
    elif offset is None:
        consumer.assign(*bounds, at="earliest" if from_start else "latest")
    else:
        # An offset outside the log means the nearest end of the log.
        consumer.assign(
            at={
                one: min(max(offset if offset >= 0 else end + offset, start), end)
                for one, (start, end) in bounds.items()
            }
        )


def _check_start(
    group: str | None, partitions: tuple[int, ...], from_beginning: bool, from_time: datetime | None, offset: int | None
) -> None:
    if from_beginning + (from_time is not None) + (offset is not None) > 1:
        raise click.UsageError("give one of --from-beginning, --from-time, --offset")
    if group is not None and (partitions or from_time is not None or offset is not None):
        raise click.UsageError(
            "with --group the coordinator assigns the partitions, and reading starts at the committed offset; "
            "`penstock groups reset-offsets` moves that offset"
        )


def _line(form: Format, template: str | None, with_key: bool, with_headers: bool, separator: str) -> Line:
    if template is not None and form in ("raw", "template"):
        return template_line(template)
    if (template is not None) or form == "template":
        raise click.UsageError("use --template together with --format template")
    if form == "json":
        return json_line
    separator = separator.replace("\\t", "\t")
    line = raw_line if form == "raw" else hex_line
    return functools.partial(line, with_key=with_key, with_headers=with_headers, separator=separator)
