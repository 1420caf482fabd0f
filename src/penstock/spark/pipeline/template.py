"""A new project: an example for events of a website that runs as it is and is meant to be changed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from string import Template

from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.project import SPEC_NAMES
from penstock.spark.pipeline.template_files import FILES

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class ProjectPlan:
    name: str
    topics: tuple[str, ...]
    output_topic: str
    dead_letter_topic: str
    servers: str

    @classmethod
    def make(
        cls, name: str, topics: tuple[str, ...], output_topic: str | None, dead_letter_topic: str | None, servers: str
    ) -> ProjectPlan:
        """By default, output topics are named after the first source topic. Raises PipelineError."""
        if not _NAME.fullmatch(name):
            raise PipelineError(f"'{name}' is not a valid project name: use letters, digits, - and _, a letter first")
        output_topic = output_topic or f"{topics[0]}-clean"
        dead_letter_topic = dead_letter_topic or f"{topics[0]}-dead-letters"
        every = [*topics, output_topic, dead_letter_topic]
        for topic in every:
            if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
                raise PipelineError(f"'{topic}' is not a valid topic name: use letters, digits, ., _ and -")
        if len(set(every)) < len(every):
            raise PipelineError(
                f"a topic is named twice among {', '.join(every)}, so the pipeline would feed itself: "
                "name different topics"
            )
        return cls(name, topics, output_topic, dead_letter_topic, servers)


def create_project(parent: Path, plan: ProjectPlan) -> list[Path]:
    """Writes the project into a new directory `plan.name`. Returns the files. Raises PipelineError."""
    root = parent / plan.name
    values = {
        "name": plan.name,
        "module": plan.name.replace("-", "_").lower(),
        "topics": ",".join(plan.topics),
        "first_topic": plan.topics[0],
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
    for name, text in FILES.items():
        path = root / Template(name).substitute(values)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template(text).substitute(values), encoding="utf-8")
        written.append(path)
    assert (root / SPEC_NAMES[0]).is_file()
    return written
