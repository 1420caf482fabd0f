"""A new project from a template: an example that runs as it is and is meant to be changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template as Text
from types import MappingProxyType

from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.project import SPEC_NAMES
from penstock.spark.pipeline.templates.clicks import CLICKS
from penstock.spark.pipeline.templates.deduplication import DEDUPLICATION
from penstock.spark.pipeline.templates.joins import JOINS
from penstock.spark.pipeline.templates.project_files import Template
from penstock.spark.pipeline.templates.windows import WINDOWS

TEMPLATES: Mapping[str, Template] = MappingProxyType(
    {"clicks": CLICKS, "windows": WINDOWS, "joins": JOINS, "deduplication": DEDUPLICATION}
)
DEFAULT = "clicks"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class ProjectPlan:
    name: str
    topics: tuple[str, ...]
    output_topic: str
    """Empty if the template writes tables only, like the next one."""
    dead_letter_topic: str
    servers: str
    template: str = DEFAULT

    @classmethod
    def make(
        cls,
        name: str,
        topics: tuple[str, ...],
        output_topic: str | None,
        dead_letter_topic: str | None,
        servers: str,
        template: str = DEFAULT,
    ) -> ProjectPlan:
        """By default, topics to read are those of the template, and output topics are named after the first of them.

        Raises PipelineError.
        """
        if not _NAME.fullmatch(name):
            raise PipelineError(f"'{name}' is not a valid project name: use letters, digits, - and _, a letter first")
        chosen = TEMPLATES[template]
        topics = topics or chosen.topics
        if chosen.roles and len(topics) != len(chosen.roles):
            raise PipelineError(
                f"the template {template} reads {len(chosen.roles)} topics, {' and '.join(chosen.roles)}: "
                f"give --topic {len(chosen.roles)} times, in this order"
            )
        if chosen.is_writing_topics:
            output_topic = output_topic or f"{topics[0]}-clean"
            dead_letter_topic = dead_letter_topic or f"{topics[0]}-dead-letters"
        elif output_topic or dead_letter_topic:
            raise PipelineError(
                f"the template {template} writes tables only: leave out --output-topic and --dead-letter-topic"
            )
        every = [*topics, *filter(None, (output_topic, dead_letter_topic))]
        for topic in every:
            if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
                raise PipelineError(f"'{topic}' is not a valid topic name: use letters, digits, ., _ and -")
        if len(set(every)) < len(every):
            why = ", so the pipeline would feed itself" if chosen.is_writing_topics else ""
            raise PipelineError(f"a topic is named twice among {', '.join(every)}{why}: name different topics")
        return cls(name, topics, output_topic or "", dead_letter_topic or "", servers, template)


def create_project(parent: Path, plan: ProjectPlan) -> list[Path]:
    """Writes the project into a new directory `plan.name`. Returns the files. Raises PipelineError."""
    root = parent / plan.name
    values = {
        "name": plan.name,
        "module": plan.name.replace("-", "_").lower(),
        "topics": ",".join(plan.topics),
        "first_topic": plan.topics[0],
        "last_topic": plan.topics[-1],
        "output_topic": plan.output_topic,
        "dead_letter_topic": plan.dead_letter_topic,
        "servers": plan.servers,
    }
    try:
        root.mkdir(parents=True)
    except FileExistsError:
        raise PipelineError(f"{root} exists already: choose another name, or remove it") from None
    except OSError as error:
        raise PipelineError(f"cannot create {root}: {error.strerror}") from error
    written = []
    for name, text in TEMPLATES[plan.template].files.items():
        path = root / Text(name).substitute(values)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Text(text).substitute(values), encoding="utf-8")
        written.append(path)
    assert (root / SPEC_NAMES[0]).is_file()
    return written
