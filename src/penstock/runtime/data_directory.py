"""The data directory as a whole: one process at a time, owned by one node of one cluster.

    .lock            held (flock) while a broker runs
    meta.properties  Kafka's file: cluster id, node id, directory id; created if missing. A joining node writes it once
                     it knows the cluster id
    cluster.secret   the secret that nodes present to each other (`runtime.cluster_secret`)

A metadata log without meta.properties is refused: formatting would give the data another cluster id. So is the
directory in which `penstock start --nodes` keeps the data directories of several nodes (node-1, node-1.properties and
so on): a broker must not use that directory as its own.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import os
import re

from penstock.config.properties import parse_properties
from penstock.model.errors import ConfigError
from penstock.ports.clock import Entropy
from penstock.runtime.cluster_secret import secrets_of_node

META_PROPERTIES = "meta.properties"
LOCK = ".lock"
METADATA_LOG = "__cluster_metadata-0"
_NODE = re.compile("node-[0-9]+")
RESTORE = "restore the file from a copy or use another data directory"


def random_id(entropy: Entropy) -> str:
    """A Kafka-style id: 22 characters of URL-safe base64 that do not start with a dash."""
    while True:
        text = base64.urlsafe_b64encode(entropy.random_bytes(16)).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def holds_nodes(path: str) -> bool:
    """Whether this directory holds the data directories of a local cluster, each with its properties file."""
    try:
        names = os.listdir(path)
    except OSError:
        return False  # opening the directory reports the error
    return any(
        os.path.exists(os.path.join(path, name, file))
        for name in names
        if _NODE.fullmatch(name) and f"{name}.properties" in names
        for file in (LOCK, META_PROPERTIES)  # partition directories of a topic named "node" have neither file
    )


def lock_directory(path: str) -> int | None:
    """A descriptor that holds the lock until it is closed, or None: another process has it. Raises OSError."""
    os.makedirs(path, exist_ok=True)
    lock = os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return None
    return lock


class DataDirectory:
    """An open, locked, formatted data directory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.cluster_id = ""
        """Empty until a joining node knows it."""
        self.is_new = False
        self._lock_fd = -1
        self._node_id = -1
        self.directory_id = ""
        self.secrets: tuple[bytes, ...] = ()

    @classmethod
    def open(
        cls,
        path: str,
        node_id: int,
        cluster_id: str | None,
        entropy: Entropy,
        *,
        is_joining: bool = False,
        secret_file: str | None = None,
    ) -> DataDirectory:
        """`is_joining`: an empty directory without a given cluster id stays unformatted until `adopt`."""
        directory = cls(os.path.abspath(path))
        directory._node_id = node_id
        directory.directory_id = random_id(entropy)
        if holds_nodes(directory.path):
            raise ConfigError(
                f"{path} holds the nodes of a cluster: start it with penstock start --nodes, "
                f"or one node with penstock start {os.path.join(path, 'node-1.properties')}"
            )
        directory._lock()
        try:
            directory.secrets = secrets_of_node(directory.path, secret_file, entropy, is_clustered=is_joining)
            if not directory._read(cluster_id) and (cluster_id or not is_joining):
                directory._format(cluster_id or random_id(entropy))
        except BaseException:
            directory.close()
            raise
        return directory

    def _lock(self) -> None:
        try:
            lock = lock_directory(self.path)
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigError(
                f"{self.path} is not a directory; choose another data directory with --data or log.dirs"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"data directory {self.path} is not writable: {error.strerror}; choose another with --data or log.dirs"
            ) from error
        if lock is None:
            raise ConfigError(
                f"data directory {self.path} is in use by another broker; stop it or choose another directory"
            )
        self._lock_fd = lock

    def adopt(self, cluster_id: str) -> None:
        """Belong to this cluster from now on. Raises ConfigError."""
        if self.cluster_id != cluster_id:
            self._write(cluster_id)

    def _read(self, cluster_id: str | None) -> bool:
        """Whether the directory is formatted."""
        node_id = self._node_id
        path = os.path.join(self.path, META_PROPERTIES)
        try:
            with open(path, encoding="utf-8") as file:
                found = parse_properties(file.read())
        except FileNotFoundError:
            return False
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        except (UnicodeDecodeError, ConfigError) as error:
            raise ConfigError(f"{path} is damaged: it is not a properties file; {RESTORE}") from error
        for name in ("node.id", "cluster.id"):
            if not found.get(name):
                raise ConfigError(f"{path} is damaged: it has no {name}; {RESTORE}")
        if found["node.id"] != str(node_id):
            raise ConfigError(
                f"data directory {self.path} belongs to node.id={found['node.id']}, "
                f"this broker is node.id={node_id}; use the right directory or node.id"
            )
        if cluster_id and found["cluster.id"] != cluster_id:
            raise ConfigError(
                f"data directory {self.path} belongs to cluster {found['cluster.id']}, not to {cluster_id}"
            )
        self.cluster_id = found["cluster.id"]
        self.directory_id = found.get("directory.id", "")
        return True

    def _format(self, cluster_id: str) -> None:
        if os.path.isdir(os.path.join(self.path, METADATA_LOG)):
            path = os.path.join(self.path, META_PROPERTIES)
            raise ConfigError(f"{path} is missing, but there is data beside it; {RESTORE}")
        self._write(cluster_id)
        self.is_new = True

    def _write(self, cluster_id: str) -> None:
        path = os.path.join(self.path, META_PROPERTIES)
        text = f"cluster.id={cluster_id}\ndirectory.id={self.directory_id}\nnode.id={self._node_id}\nversion=1\n"
        try:
            with open(path + ".tmp", "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.rename(path + ".tmp", path)
            fd = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise ConfigError(f"cannot format data directory {self.path}: {error.strerror}") from error
        self.cluster_id = cluster_id

    def close(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
