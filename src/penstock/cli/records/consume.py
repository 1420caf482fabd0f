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
from penstock.cli.records.waiting import GroupPatience, Patience, Waiting, Watch
from penstock.model.errors import ConfigError

if TYPE_CHECKING:
    from penstock.sdk import BlockingConsumer, Record, TopicPartition

Format = Literal["raw", "json", "hex", "template"]
POLL_S = 0.1
PROGRESS_STEP = 1000


@click.command()
@click.option("--topic", required=True, help="What to read.", shell_complete=complete_topics)
@click.option("--group", help="Read as a member of this group and commit.", shell_complete=complete_groups)
@click.option("--partition", "partitions", type=NUMBER, multiple=True, help="Only this one; repeatable.")
@click.option("--from-beginning", is_flag=True, help="From the first record there is (the default without --follow).")
@click.option("--from-time", type=PointInTime(), help="From the first record not older than TIME.")
@click.option("--offset", type=int, help="From this offset; -10 is ten records before the end.")
@click.option("--follow", "-f", is_flag=True, help="Wait for more when the end is reached; alone, only what is new.")
@click.option("--max", "max_records", type=Number(1, INT64_MAX), help="Stop after so many records.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["raw", "json", "hex", "template"]),
    default="raw",
    show_default=True,
    help="raw and hex: the value, with --keys and --headers before it. json: everything, an object a line.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--template", help='A line of your own: "{offset} {key} {value} {time} {header.NAME} {json.PATH}".')
@click.option("--keys", "--key", "with_key", is_flag=True, help="The key before the value.")
@click.option("--headers", "with_headers", is_flag=True, help="Headers before key and value.")
@click.option("--separator", default="\t", help="What stands between them (default: a tab).")
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="TEST",
    help="Only records that pass: REGEX (on the value), key=TEXT, value~REGEX, header.NAME=TEXT, json.PATH!=TEXT; "
    "repeatable, all must hold.",
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
    """Print records of a topic: those that are there now, or with --follow also those to come."""
    from penstock.sdk import BlockingConsumer

    _check_start(group, partitions, from_beginning, from_time, offset)
    if as_json and form not in ("raw", "json"):
        raise click.UsageError("--json is --format json: give one format")
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
        fetch_max_wait_ms=500 if follow else 50,  # the end is known when a fetch comes back empty
        request_timeout_ms=int(target.timeout_s * 1000),
        client_id="penstock-cli",
        settings=target.settings,
    )
    with consumer, terminated_as_interrupted():
        found = consumer.partitions(topic)
        if group is not None:
            consumer.subscribe(topic)
            waiting: Waiting = (
                Watch(target, consumer, topic) if follow else GroupPatience(target, topic, consumer, group)
            )
            records = _of_group(consumer, waiting, None if follow else consumer.at_end)
        else:
            wanted = [one for one in found if not partitions or one.partition in partitions]
            if len(wanted) < len(set(partitions)):
                raise ConfigError(f"topic {topic} has partitions 0 to {len(found) - 1}")
            ends = {one: consumer.bounds(one) for one in wanted}
            if offset is not None and all(offset > end for _, end in ends.values()):
                last_end = max((end for _, end in ends.values()), default=0)
                click.echo(f"penstock: offset {offset} is past the end of {topic}, which is {last_end}", err=True)
            _assign(consumer, ends, from_start, from_time, offset)
            last = None if follow else {one: end for one, (_, end) in ends.items()}
            waiting = Watch(target, consumer, topic, partitions) if follow else Patience(target, topic)
            records = _of_partitions(consumer, last, waiting)
            if last is not None and from_time is None and offset is None and not sys.stdout.isatty():
                total = sum(end - start for start, end in ends.values())
                records = _watched(records, min(total, max_records or total), topic)
        with contextlib.suppress(KeyboardInterrupt):  # the way --follow ends
            _print(filter(passes, records), line, max_records, sys.stdout.buffer)
        sys.stdout.buffer.flush()  # before it counts as done


def _print(records: Iterator[Record | None], line: Line, max_records: int | None, out: IO[bytes]) -> None:
    """None in between: nothing came for a moment, so what was written should be seen."""
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
    """A progress bar for whoever redirects the output and watches."""
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
    """SIGTERM ends as Ctrl-C does: what was printed is committed, and the group is left."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _of_partitions(
    consumer: BlockingConsumer, ends: dict[TopicPartition, int] | None, waiting: Waiting
) -> Iterator[Record | None]:
    """With `ends`, what lies before them."""
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
    consumer: BlockingConsumer, waiting: Waiting, is_end: Callable[[], bool] | None
) -> Iterator[Record | None]:
    """With `is_end`, to the end of what this member was given."""
    while True:
        batch = consumer.poll(max_records=1, timeout_s=POLL_S)  # what was not printed must not be committed
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
        # Outside of the log means its nearest end.
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
            "with --group the coordinator gives partitions and the committed offset says where to start; "
            "`penstock groups reset-offsets` moves it"
        )


def _line(form: Format, template: str | None, with_key: bool, with_headers: bool, separator: str) -> Line:
    if template is not None and form in ("raw", "template"):
        return template_line(template)
    if (template is not None) or form == "template":
        raise click.UsageError("--template goes with --format template")
    if form == "json":
        return json_line
    separator = separator.replace("\\t", "\t")
    line = raw_line if form == "raw" else hex_line
    return functools.partial(line, with_key=with_key, with_headers=with_headers, separator=separator)
