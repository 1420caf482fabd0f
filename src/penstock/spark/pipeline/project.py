"""A pipeline project: its directory, its specification, and the paths of its files.

    spark-pipeline.yml    the specification, which Spark's own `spark-pipelines` also reads
    transformations/      definitions in Python and SQL
    storage/              checkpoints (`storage` in the specification)
    warehouse/            tables, each a directory
    .penstock/            lock, status, logs, the catalog of tables, their format and locations

Penstock's settings are keys of `configuration` that begin with `penstock.`, so that definitions can read them with
`spark.conf`. Those that begin with `penstock.kafka.` are client settings. References such as `${env:NAME}` in values
stay as they are until `resolved` is called: only what connects to a cluster needs them. This module does not know
Spark.
Invariant: a run writes nothing outside the directory, unless `storage` is elsewhere. A run of a test writes nothing in
it: `for_test` moves all of that into a directory of its own.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock.spark.pipeline.errors import DefinitionError, Mistake, NoProject, PipelineError
from penstock.spark.pipeline.secrets import Secrets, Unresolved, has_reference, resolved

SPEC_NAMES = ("spark-pipeline.yml", "spark-pipeline.yaml")
STATE_DIRECTORY = ".penstock"
WAREHOUSE = "warehouse"
DEFAULT_CATALOG = "spark_catalog"
DEFAULT_DATABASE = "default"
OWN_PREFIX = "penstock."
SPARK_PREFIX = "spark."
CLIENT_PREFIX = "penstock.kafka."
SERVERS_KEY = "penstock.kafka.bootstrap.servers"
_SECURITY = tuple(f"{CLIENT_PREFIX}{what}." for what in ("security", "sasl", "ssl"))
TOPIC_KEYS = ("penstock.source.topics", "penstock.output.topic", "penstock.dead.letter.topic")

MASTERS = "local[*], spark://HOST:PORT, yarn or k8s://HOST:PORT"
_MASTER = re.compile(r"local(\[(\*|\d+)(\s*,\s*\d+)?\])?|local-cluster\[[\d\s,]+\]|yarn|[a-z][a-z0-9+.-]*://.+")

_FIELDS = ("name", "storage", "catalog", "database", "schema", "configuration", "libraries")


def is_master(text: str) -> bool:
    """Whether it is a valid master, as far as this can be checked without Java. Cluster managers that are not part of
    Spark have URLs."""
    return _MASTER.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class PipelineProject:
    root: Path
    spec_path: Path
    name: str
    storage: str
    """A URI."""
    catalog: str | None
    database: str
    configuration: Mapping[str, str]
    libraries: tuple[str, ...]
    references: Mapping[str, str] = field(default_factory=dict)
    """The values of the configuration that have references, as they are in the file."""
    secrets: Secrets = field(default_factory=Secrets)
    workspace: Path | None = None
    """Where a run writes, if not in the project's directory."""

    @classmethod
    def find(cls, directory: Path) -> PipelineProject:
        """The project of this directory or its nearest parent with a specification."""
        start = directory.resolve()
        if not start.is_dir():
            raise PipelineError(f"there is no directory {directory}")
        for candidate in (start, *start.parents):
            found = [candidate / name for name in SPEC_NAMES if (candidate / name).is_file()]
            if len(found) > 1:
                raise PipelineError(f"{candidate} has {' and '.join(SPEC_NAMES)}: keep one of them")
            if found:
                return cls.load(found[0])
        raise NoProject(
            f"there is no {SPEC_NAMES[0]} in {start} or above it: create a project with `penstock pipeline init NAME`, "
            "or choose one with --project"
        )

    @classmethod
    def load(cls, spec_path: Path) -> PipelineProject:
        given = _read(spec_path)
        for name in given:
            if name not in _FIELDS:
                raise _wrong(spec_path, f"'{name}' is not known here: there are {', '.join(_FIELDS)}", f"{name}:")
        _refuse_references(spec_path, given)
        root = spec_path.parent
        configuration = _configuration(spec_path, given.get("configuration") or {})
        name = _text(spec_path, given, "name")
        return cls(
            root=root,
            spec_path=spec_path,
            name=name,
            storage=_storage(root, spec_path, _text(spec_path, given, "storage")),
            catalog=_optional_text(spec_path, given, "catalog"),
            database=_optional_text(spec_path, given, "database")
            or _optional_text(spec_path, given, "schema")
            or DEFAULT_DATABASE,
            configuration=configuration,
            libraries=_libraries(spec_path, given.get("libraries")),
            references={key: value for key, value in configuration.items() if "${" in value},
        )

    def with_servers(self, servers: str) -> PipelineProject:
        references = {key: value for key, value in self.references.items() if key != SERVERS_KEY}
        return replace(self, configuration={**self.configuration, SERVERS_KEY: servers}, references=references)

    def for_test(self, servers: str, workspace: Path, settings: Mapping[str, str]) -> PipelineProject:
        """With a test's broker, which is not secured, and with `settings` in place of those in the file."""
        chosen = {
            key: value for key, value in {**self.configuration, **settings}.items() if not key.startswith(_SECURITY)
        }
        return replace(
            self,
            storage=(workspace / "storage").as_uri(),
            configuration={**chosen, SERVERS_KEY: servers},
            references={
                key: value
                for key, value in self.references.items()
                if key in chosen and key != SERVERS_KEY and key not in settings
            },
            workspace=workspace,
        )

    def resolved(self) -> PipelineProject:
        """With the present values of all references. Raises PipelineError if something is missing."""
        found: dict[str, str] = {}
        for key, text in {**self.configuration, **self.references}.items():
            try:
                found[key] = resolved(key, text, self.root, self.secrets, is_public=_is_public(key))
            except Unresolved as missing:
                place = f"{self.spec_path.name}:{_line_of(self.spec_path, f'{key}:')}"
                raise PipelineError(f"{place}: '{key}' needs {missing}") from missing
        _check_master(self.spec_path, found.get("spark.master"))
        return replace(self, configuration=found)

    # -- places -------------------------------------------------------------------------

    @property
    def state(self) -> Path:
        return (self.workspace or self.root) / STATE_DIRECTORY

    @property
    def lock_path(self) -> Path:
        return self.state / "lock"

    @property
    def status_path(self) -> Path:
        return self.state / "status.json"

    @property
    def history_path(self) -> Path:
        return self.state / "history.jsonl"

    @property
    def tables_path(self) -> Path:
        return self.state / "tables.json"

    @property
    def reset_path(self) -> Path:
        """A file that exists while a reset is unfinished."""
        return self.state / "reset.json"

    @property
    def good_definitions_path(self) -> Path:
        return self.state / "definitions.json"

    @property
    def log_path(self) -> Path:
        return self.state / "spark.log"

    @property
    def metastore(self) -> Path:
        return self.state / "metastore"

    @property
    def warehouse(self) -> Path:
        return (self.workspace or self.root) / WAREHOUSE

    @property
    def checkpoints(self) -> Path | None:
        """None if the storage is not a directory of this machine."""
        parts = urlsplit(self.storage)
        return Path(unquote(parts.path), "_checkpoints") if parts.scheme == "file" else None

    def relative(self, path: str | Path) -> str:
        """The path for messages: relative to the project if it is inside."""
        try:
            return str(Path(path).resolve().relative_to(self.root.resolve()))
        except ValueError:
            return str(path)

    # -- settings -----------------------------------------------------------------------

    @property
    def client_options(self) -> dict[str, str]:
        """The client options of sources and sinks, such as `kafka.bootstrap.servers`."""
        return {
            name.removeprefix(OWN_PREFIX): value
            for name, value in self.configuration.items()
            if name.startswith(CLIENT_PREFIX)
        }

    @property
    def servers(self) -> str:
        return self.configuration.get(SERVERS_KEY, "")

    @property
    def configured_topics(self) -> list[str]:
        """The topics in the settings, in order."""
        named = ",".join(self.configuration.get(key, "") for key in TOPIC_KEYS)
        return list(dict.fromkeys(part.strip() for part in named.split(",") if part.strip()))

    def matching(self, pattern: str) -> list[Path]:
        """The files of an entry of `libraries`."""
        return sorted(
            path
            for path in self.root.glob(f"{pattern}/*" if pattern.endswith("/**") else pattern)
            if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
        )

    def definition_files(self) -> list[Path]:
        """The files of `libraries`, sorted by name. Raises DefinitionError if there are none."""
        found: dict[Path, None] = {}
        for pattern in self.libraries:
            matching = self.matching(pattern)
            if not matching:
                raise _wrong(self.spec_path, f"no file matches '{pattern}' of libraries", pattern)
            found.update(dict.fromkeys(matching))
        for path in found:
            if path.suffix not in (".py", ".sql"):
                raise DefinitionError([Mistake("only .py and .sql files can be definitions", file=self.relative(path))])
        return list(found)


# -- the specification ------------------------------------------------------------------


def _read(path: Path) -> dict[str, Any]:
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        raise PipelineError("pipelines need more packages: pip install 'penstock[spark]'") from None
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PipelineError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PipelineError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "cannot be read as YAML"
        raise DefinitionError([Mistake(str(problem), path.name, mark.line + 1 if mark else 0)]) from error
    if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
        raise DefinitionError([Mistake("must have fields such as name: and storage:", path.name)])
    return given


def _wrong(path: Path, what: str, near: str = "") -> DefinitionError:
    """`near`: text at the place of the error."""
    return DefinitionError([Mistake(what, path.name, _line_of(path, near) if near else 0)])


def _line_of(path: Path, near: str) -> int:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((number for number, text in enumerate(lines, 1) if near in text), 0)


def _is_public(key: str) -> bool:
    return key in TOPIC_KEYS or key.startswith(CLIENT_PREFIX) or key == "spark.master"


def _refuse_references(path: Path, given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if isinstance(value, str) and has_reference(value):
            raise _wrong(path, f"'{name}' is {value!r}: only values of configuration can have references", f"{name}:")


def _text(path: Path, given: Mapping[str, Any], name: str) -> str:
    found = _optional_text(path, given, name)
    if not found:
        raise _wrong(path, f"'{name}' is missing: write for example {name}: clicks")
    return found


def _optional_text(path: Path, given: Mapping[str, Any], name: str) -> str | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise _wrong(path, f"'{name}' is {value!r}: write text, in quotes if necessary", f"{name}:")
    return value


def _storage(root: Path, path: Path, given: str) -> str:
    """Spark needs a URI. A path is relative to the specification, so that a project can be copied."""
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", given):
        return given
    if not given.strip():
        raise _wrong(path, "'storage' is empty: write for example storage: storage", "storage:")
    return (root.resolve() / given).as_uri()


def _configuration(path: Path, given: object) -> dict[str, str]:
    if not isinstance(given, dict):
        raise _wrong(path, f"'configuration' is {given!r}: write names with values below it", "configuration:")
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise _wrong(path, f"'{name}' in configuration is {value!r}: put it in quotes", f"{name}:")
    if not has_reference(given.get("spark.master", "")):
        _check_master(path, given.get("spark.master"))
    return dict(given)


def _check_master(path: Path, master: str | None) -> None:
    if master is not None and not is_master(master):
        raise _wrong(path, f"'spark.master' is {master!r}, not a Spark master: write {MASTERS}", "spark.master:")


def _libraries(path: Path, given: object) -> tuple[str, ...]:
    example = 'write "libraries:", and below it "  - glob: {include: transformations/**}"'
    if not isinstance(given, list) or not given:
        raise _wrong(path, f"'libraries' names no definitions: {example}", "libraries:")
    patterns: list[str] = []
    for entry in given:
        pattern = entry.get("glob", {}).get("include") if isinstance(entry, dict) else None
        if not isinstance(pattern, str):
            raise _wrong(path, f"'libraries' has {entry!r}: {example}", "libraries:")
        folder = pattern.removesuffix("/**")
        if Path(pattern).is_absolute() or re.search(r"[*?\[]", folder):
            raise _wrong(path, f"'{pattern}' of libraries is neither a file nor a folder with /** at its end", pattern)
        patterns.append(pattern)
    return tuple(patterns)
