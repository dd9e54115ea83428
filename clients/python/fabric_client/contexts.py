"""Contexts: named credentials of this user, one of which is current.

They are files `contexts/NAME.toml` in the folder of the configuration, and `current` there has the name of the current
one. The folder is FABRIC_HOME, or `fabric` in XDG_CONFIG_HOME, or `~/.config/fabric`.
"""

import difflib
import hashlib
import os
import re
from pathlib import Path
from typing import Final

from fabric_client.credentials import Credentials, write
from fabric_client.errors import Conflict, NotFound
from fabric_client.links import check_address, split_urls
from fabric_protocol.errors import Code, FabricError

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LIST: Final = "'fabric ctx list' shows the contexts, 'fabric join LINK' and 'fabric ctx add' make one"


def home() -> Path:
    """The folder of the configuration of this user."""
    if found := os.environ.get("FABRIC_HOME"):
        return Path(found)
    if found := os.environ.get("XDG_CONFIG_HOME"):
        return Path(found) / "fabric"
    try:
        return Path("~/.config/fabric").expanduser()
    except RuntimeError:  # the system does not know this user, as in many containers; HOME is mostly / there
        return Path("/.config/fabric")


def path_of(name: str) -> Path:
    """The file of a context."""
    check_name(name)
    return home() / "contexts" / f"{name}.toml"


def draft_of(code: str) -> Path:
    """The file for the key of a client while it joins with a one-time code."""
    return home() / "joining" / f"{hashlib.sha256(code.encode()).hexdigest()[:32]}.toml"


def check_name(name: str) -> None:
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise FabricError(
            f"{name!r} is not a name of a context", "1..64 letters, digits, '_', '.' or '-'; the first is no sign"
        )


def names() -> list[str]:
    """The names of all contexts, in order."""
    try:
        files = sorted(file.stem for file in (home() / "contexts").glob("*.toml"))
    except OSError as error:
        raise FabricError(f"cannot read {home()}: {error.strerror}", "check the folder and its mode") from None
    return [name for name in files if NAME.fullmatch(name)]


def load(name: str) -> Credentials:
    """The credentials of a context."""
    path = path_of(name)
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        raise _unknown(name) from None
    except OSError as error:
        raise FabricError(f"cannot read {path}: {error.strerror}", "check the folder and its mode") from None
    return Credentials.load(path)


def add(name: str, credentials: Credentials, *, replace: bool = False) -> Path:
    """Save a context, which becomes the current one if there is none. Raises Conflict if the name is taken."""
    path = path_of(name)
    if os.path.exists(path) and not replace:
        raise Conflict(
            f"the context {name!r} exists", f"choose another name, or 'fabric ctx rm {name}'", code=Code.CONFLICT
        )
    for url in split_urls(credentials.url):
        check_address(url)
    credentials.save(path, replace=replace)
    if current() not in names():  # there is none, or it was removed by hand
        use(name)
    return path


def use(name: str) -> None:
    """Make a context the current one. Raises if it cannot be read."""
    load(name)
    write(home() / "current", f"{name}\n")


def current() -> str:
    """The name of the current context; empty if there is none."""
    try:
        name = (home() / "current").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return name if NAME.fullmatch(name) else ""


def remove(name: str) -> None:
    """Remove a context with its keys. If it was the current one, there is none after it."""
    path = path_of(name)
    try:
        path.unlink()
        if current() == name:
            (home() / "current").unlink()
    except FileNotFoundError:
        raise _unknown(name) from None
    except OSError as error:
        raise FabricError(f"cannot remove {path}: {error.strerror}", "check the folder and its mode") from None


def _unknown(name: str) -> NotFound:
    near = difflib.get_close_matches(name, names(), 1)
    hint = f"did you mean {near[0]!r}? {_LIST}" if near else _LIST
    return NotFound(f"there is no context {name!r}", hint, code=Code.NOT_FOUND)
