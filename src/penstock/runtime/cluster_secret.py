"""The cluster's secret as a file: 256 bits that every node has, readable by its owner alone.

    cluster.secret   in the data directory, or the file named by penstock.cluster.secret.file: one secret per line,
                     43 characters of URL-safe base64. The first is presented to other nodes, all are accepted: so a
                     secret can be changed without stopping the cluster. Lines that begin with # are ignored.

A single node creates its own at the first start. A node of a larger cluster must be given one: nodes with different
secrets would reject each other.
"""

from __future__ import annotations

import base64
import binascii
import os

from penstock.model.errors import ConfigError
from penstock.ports.clock import Entropy

CLUSTER_SECRET = "cluster.secret"
SECRET_BYTES = 32
MAX_SECRETS = 4
MAX_FILE_BYTES = 4 << 10
_HOW = "penstock cluster secret --new FILE writes one"


def new_secret(entropy: Entropy) -> str:
    return base64.urlsafe_b64encode(entropy.random_bytes(SECRET_BYTES)).decode().rstrip("=")


def parse_secrets(text: str, path: str) -> tuple[bytes, ...]:
    """Raises ConfigError, whose message never contains the file's content."""
    lines = [line.strip() for line in text.splitlines()]
    words = [line for line in lines if line and not line.startswith("#")]
    if not 1 <= len(words) <= MAX_SECRETS:
        raise ConfigError(f"{path} has {len(words)} secrets: write 1 to {MAX_SECRETS}, one per line; {_HOW}")
    return tuple(_decode(word, path) for word in words)


def is_secret(word: str) -> bool:
    """Whether the text has the form of a secret."""
    return len(_bytes_of(word.strip())) == SECRET_BYTES


def _bytes_of(word: str) -> bytes:
    """Empty if it is not base64."""
    try:
        return base64.b64decode(word + "=" * (-len(word) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""


def _decode(word: str, path: str) -> bytes:
    secret = _bytes_of(word)
    if len(secret) != SECRET_BYTES:
        raise ConfigError(f"{path}: a line is not a cluster secret (43 characters of URL-safe base64); {_HOW}")
    return secret


def read_secrets(path: str) -> tuple[bytes, ...] | None:
    """None: there is no such file. Raises ConfigError."""
    try:
        with open(path, encoding="ascii") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise ConfigError(f"{path} can be read by others: run chmod 600 {path}")
            text = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a file of cluster secrets; {_HOW}") from error
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_FILE_BYTES} bytes: it is not a file of cluster secrets; {_HOW}")
    return parse_secrets(text, path)


def write_secrets(path: str, text: str) -> None:
    """Write all or nothing, and only if there is no file yet. Raises ConfigError."""
    parse_secrets(text, path)
    passing = f"{path}.tmp"
    try:
        file = os.open(passing, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(file, 0o600)
            os.write(file, text.strip().encode() + b"\n")
            os.fsync(file)
        finally:
            os.close(file)
        os.link(passing, path)  # unlike a rename it does not replace
        os.unlink(passing)
        directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except FileExistsError as error:
        os.unlink(passing)
        raise ConfigError(f"{path} exists already: remove it first if no node needs it") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def secrets_of_node(directory: str, named: str | None, entropy: Entropy, *, is_clustered: bool) -> tuple[bytes, ...]:
    """The secrets of the configured file, else of the data directory. Raises ConfigError."""
    path = named or os.path.join(directory, CLUSTER_SECRET)
    found = read_secrets(path)
    if found is not None:
        return found
    if named is not None:
        raise ConfigError(f"penstock.cluster.secret.file: there is no {named}; {_HOW}")
    if is_clustered:
        raise ConfigError(
            f"this node is one of several and has no cluster secret: put the file that all nodes share at {path}, or "
            f"name it in penstock.cluster.secret.file ({_HOW}, penstock cluster secret prints the secret of a node)"
        )
    write_secrets(path, new_secret(entropy))
    return read_secrets(path) or ()
