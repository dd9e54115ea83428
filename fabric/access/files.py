"""Reads small files of the data folder, in bounds."""

import errno
import os
import stat
from pathlib import Path


def read_file(path: Path, bytes_max: int) -> tuple[bytes, int]:
    """The bytes of a file, at most one more than a limit, and its permissions. Raises OSError, also for what is no
    regular file: to open a pipe would wait for its writer, and the hub with it."""
    with open(path, "rb", opener=_open) as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return file.read(bytes_max + 1), stat.S_IMODE(mode)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
