"""An atomic exchange of two directories.

Linux has renameat2 with RENAME_EXCHANGE (on ext4, xfs, btrfs, tmpfs and others); Python has no function for it.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_HERE = -100  # AT_FDCWD
_EXCHANGE = 2
_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV)


def exchange(one: Path, other: Path) -> bool:
    """False if the system or the file system does not support it; then nothing was changed. Raises OSError."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT:
        return False
    raise OSError(code, os.strerror(code), str(other))
