"""Several topics that are followed in one process, by the sections of a TOML file.

A topic that fails is followed again, after a pause that grows; the others do not notice. An error that is none of ours
(a bug) ends them all.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.tables.follow_output import Output
from penstock.cli.tables.follow_topic import FollowRun, Stopped, TopicSettings, follow_topic
from penstock.model.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.topic_tables.progress import FollowProgress

FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 60.0
LOOK_S = 0.5
MAX_TOPICS = 100


def read_sections(path: Path, options: click.Command) -> list[TopicSettings]:
    """A section for each topic, whose keys are the options of the command; keys before the first one are for all.

    Raises ConfigError, which names the section.
    """
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config: cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config: {path} is not TOML: {error}") from None
    common = {name: value for name, value in told.items() if not isinstance(value, dict)}
    sections = {name: value for name, value in told.items() if isinstance(value, dict)}
    if not 0 < len(sections) <= MAX_TOPICS:
        raise ConfigError(f"--config: {path} has {len(sections)} sections: write one a topic, at most {MAX_TOPICS}")
    found = [_settings(path, name, {**common, **section}, options) for name, section in sections.items()]
    directories = [one.directory.resolve() for one in found]
    for one in found:
        if directories.count(one.directory.resolve()) > 1:
            raise ConfigError(f"--config: {path} has {one.directory} as the table of several topics")
    return found


def _settings(path: Path, topic: str, section: dict[str, Any], options: click.Command) -> TopicSettings:
    arguments = [f"--topic={topic}"]
    try:
        known = {name: option for option in options.params for name in option.opts}
        for name, value in section.items():
            arguments += _arguments(known, name.replace("_", "-"), value)
        with options.make_context("follow", arguments) as context:
            if context.params["directory"] is None:
                raise click.UsageError('to = "DIR" is missing')
            settings = TopicSettings(**context.params)
            _check_schema(settings.schema_text)
            return settings
    except click.UsageError as error:
        raise ConfigError(f"--config: {path}, section [{topic}]: {error.format_message()}") from None


def _check_schema(text: str | None) -> None:
    from penstock.arrow.values import parse_schema

    if text is None:
        return
    try:
        parse_schema(text)
    except ConfigError as error:
        raise click.UsageError(f"schema: {error}") from None


def _arguments(known: Mapping[str, click.Parameter], name: str, value: Any) -> list[str]:
    option = known.get(f"--{name}")
    if name == "topic":
        raise click.UsageError("the name of the section is the topic")
    if not isinstance(option, click.Option):
        raise click.NoSuchOption(f"--{name}")
    if isinstance(value, bool) and option.is_flag:
        return [f"--{name}"] * value
    if isinstance(value, bool):
        raise click.UsageError(f"{name} is {str(value).lower()}: write a text")
    if isinstance(value, str | int):
        return [f"--{name}={value}"]
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return [f"--{name}={one}" for one in value]
    raise click.UsageError(f"{name} is {value!r}: write a text, true, or a list of texts")


@dataclass(frozen=True, slots=True)
class FollowedSection:
    settings: TopicSettings
    progress: FollowProgress
    output: Output


def follow_all(running: FollowRun, topics: Sequence[FollowedSection]) -> list[str]:
    """Until it is stopped, or until all have caught up. Returns the topics that failed, with `once`."""
    with ThreadPoolExecutor(len(topics), "penstock-follow") as pool:
        futures = [pool.submit(_keep_following, running, one) for one in topics]
        waiting = set(futures)
        while waiting:
            done, waiting = wait(waiting, LOOK_S, FIRST_EXCEPTION)
            if any(future.exception() for future in done):
                running.stop.set()
    return [one.settings.topic for one, future in zip(topics, futures, strict=True) if not future.result()]


def _keep_following(running: FollowRun, one: FollowedSection) -> bool:
    """False if it failed."""
    pause_s = FIRST_PAUSE_S
    while not running.stop.is_set():
        commits = one.progress.commits
        try:
            follow_topic(running, one.settings, one.progress, one.output)
        except Stopped:
            return True
        except PenstockError as error:
            if running.once:
                one.output.warn(str(error))
                return False
            if one.progress.commits > commits:
                pause_s = FIRST_PAUSE_S
            one.output.warn(f"{error}; starting again in {pause_s:.0f} s")
            one.progress.restarts += 1
            running.stop.wait(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)
        else:
            return True
    return True
