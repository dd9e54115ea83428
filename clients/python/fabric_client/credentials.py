"""Credentials: the address of a hub, the key that the hub must prove, and the key pair of one client.

A file of credentials is TOML. It is written with mode 0600, and replaced as a whole, so that a crash leaves the old
file or the new one. A file without keys is an address alone. The secret key is in the file and in `secret`, and nowhere
else: `repr`, logs and errors do not show it.
"""

import contextlib
import dataclasses
import difflib
import errno
import json
import logging
import os
import stat
import tempfile
from pathlib import Path
from typing import Any, Final

from fabric_client.keys import CurveKeys, key, public_of
from fabric_client.links import is_link, parse_link
from fabric_protocol.errors import FabricError

log = logging.getLogger("fabric_client")

FILE_BYTES_MAX: Final = 65_536  # a file of credentials has less than one
_HEAD: Final = "# Credentials of Fabric. This file has a secret key: do not copy it into an image or a repository.\n"
_PLAIN_HEAD: Final = "# The address of a Fabric hub.\n"
_JOIN: Final = "join the hub with 'fabric join LINK', or copy the file again from where it was made"


@dataclasses.dataclass(frozen=True, slots=True)
class Credentials:
    """Where the hub is, and which keys prove the hub and this client. Keys may be given in Z85 or base64url."""

    url: str
    hub_key: str = ""  # without it the connection is not encrypted
    public: str = ""
    secret: str = dataclasses.field(default="", repr=False)
    principal: str = ""  # the name that the key proves, as the hub said when it was enrolled
    hub: str = ""  # a name for the hub, for people
    pending: str = dataclasses.field(default="", repr=False)  # the next secret key, while a rotation has not ended

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str):
                raise FabricError(f"{field.name} of credentials is not a text", "write it in quotes")
            if any(ord(letter) < 32 or ord(letter) == 127 for letter in value):
                raise FabricError(f"{field.name} of credentials has control characters", _JOIN)
        if not self.url:
            raise FabricError("credentials have no url", 'add url = "tcp://HOST:PORT"')
        if is_link(self.url):
            link = parse_link(self.url)
            if self.hub_key and key(self.hub_key, "hub_key") != link.hub_key:
                raise FabricError("url and hub_key of credentials name different keys of the hub", "leave one out")
            self._set(url=link.url, hub_key=link.hub_key)
        for name in ("hub_key", "public", "secret", "pending"):
            if getattr(self, name):
                self._set(**{name: key(getattr(self, name), name)})
        if self.secret:
            self._check_pair()

    def _check_pair(self) -> None:
        public = public_of(self.secret)
        if self.public and self.public != public:
            raise FabricError("public and secret of credentials are not one key pair", _JOIN)
        self._set(public=public)
        if not self.hub_key:
            raise FabricError(
                "credentials have a secret key and no hub_key: a hub that proves nothing is not trusted",
                "add hub_key; 'fabric keys show NAME' on the hub prints it",
            )

    def _set(self, **fields: str) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)  # frozen for all others

    @property
    def keys(self) -> CurveKeys | None:
        """The keys for a socket; None for a connection without encryption."""
        if not self.hub_key:
            return None
        if not self.secret:
            raise FabricError(
                f"there is a key of the hub at {self.url}, and no key of this client",
                "set FABRIC_SECRET_KEY to its secret key, pass credentials=, or join the hub with 'fabric join LINK'",
            )
        return CurveKeys(self.hub_key, self.public, self.secret)

    def replace(self, **changes: str) -> "Credentials":
        """A copy with other fields. A new secret key needs no new public key: it is computed."""
        if "secret" in changes:
            changes.setdefault("public", "")
        return dataclasses.replace(self, **changes)

    @classmethod
    def load(cls, path: str | Path) -> "Credentials":
        """Read a file. Logs a warning if other users can read it, and refuses a file that all users can write."""
        if "\n" in str(path):  # and the error must not show it
            raise FabricError("this is what stands in a credentials file, not its path", "give the path of a file")
        path = Path(path)
        fields = _read(path)
        names = [field.name for field in dataclasses.fields(cls)]
        for name in fields:
            if name not in names:
                near = difflib.get_close_matches(name, names, 1)
                raise FabricError(
                    f"{path} has the unknown key {name!r}",
                    f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(names)}",
                )
        if "url" not in fields:
            raise FabricError(f"{path} has no url", 'add url = "tcp://HOST:PORT"')
        try:
            found = cls(**fields)
        except FabricError as error:
            raise FabricError(f"{path}: {error}", error.hint) from None
        _check_mode(path, bool(found.secret))
        return found

    def save(self, path: str | Path, *, replace: bool = True, keep_owner: bool = False) -> None:
        """Write a file with mode 0600 as a whole; folders are made with mode 0700. Raises for a file that exists,
        unless it may be replaced. `keep_owner`: with the owner of that file, and the group that may read it, which is
        right for a file that was read before: root may change the key of a service."""
        path = Path(path)
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items() if value]
        write(path, "".join([_HEAD if self.secret else _PLAIN_HEAD, *lines]), replace=replace, keep_owner=keep_owner)


def write(path: Path, text: str, *, replace: bool = True, keep_owner: bool = False) -> None:
    """Write a file that only its owner can read, as a whole: after a crash the old file is there, or the new one."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                if keep_owner:
                    with contextlib.suppress(OSError):  # there is none, or only root may do this
                        before = path.stat()
                        os.fchown(descriptor, before.st_uid, before.st_gid)
                        os.fchmod(descriptor, before.st_mode & 0o640)
                os.fsync(file.fileno())
            if replace:
                Path(temporary).replace(path)
            else:
                os.link(temporary, path)  # fails if it exists, also if it was made just now
        finally:
            with contextlib.suppress(FileNotFoundError):
                Path(temporary).unlink()
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except FileExistsError:
        if not path.exists():
            raise FabricError(f"cannot write {path}: {path.parent} is not a folder", "remove that file") from None
        raise FabricError(f"{path} exists", "choose another name, or remove it first") from None
    except OSError as error:
        raise FabricError(f"cannot write {path}: {error.strerror}", _write_hint(error)) from None


def _write_hint(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space there, then try again"
    return "check the folder and its mode; FABRIC_HOME names another folder for contexts"


def _read(path: Path) -> dict[str, Any]:
    import tomllib  # late: only a file of credentials needs it

    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise FabricError(f"there is no file {path}", _JOIN) from None
    except OSError as error:
        raise FabricError(f"cannot read {path}: {error.strerror}", "check its mode and its owner") from None
    if len(raw) > FILE_BYTES_MAX:
        raise FabricError(f"{path} is too large for credentials", _JOIN)
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        place = f" ({error})" if isinstance(error, tomllib.TOMLDecodeError) else ""
        raise FabricError(f"{path} is not a file of credentials in TOML{place}", _JOIN) from None


_warned: set[Path] = set()  # files whose mode was reported, once each


def _check_mode(path: Path, secret: bool) -> None:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return
    if mode & stat.S_IWOTH:
        raise FabricError(
            f"all users can write {path} (mode {mode:04o}), and so replace the key of the hub", f"chmod 600 {path}"
        )
    if secret and mode & (stat.S_IRGRP | stat.S_IROTH) and path not in _warned:
        _warned.add(path)
        log.warning("other users can read the secret key in %s (mode %04o); run: chmod 600 %s", path, mode, path)
