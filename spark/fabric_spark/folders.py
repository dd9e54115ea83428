"""Folders in the temporary directory into which no other user can have put files."""

import os
import tempfile
from pathlib import Path


def private(name: str) -> Path:
    """A folder of this user's own, the same each time. Where another user has taken the name, a new one."""
    folder = Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        return Path(tempfile.mkdtemp(prefix=f"{name}-"))
    return folder
