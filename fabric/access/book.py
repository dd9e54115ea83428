"""AccessBook: the principals, keys and invitations of a hub, from the access file and the enrolled file.

The router asks the book for roles and lets it change the enrolled file. The ZAP handler, in another thread, has
`view`: an immutable copy of the keys that is replaced as a whole. A change is on disk before it counts. A file that
cannot be read keeps the rights that were read before, and `problem` says why.
"""

import errno
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from fabric.access import enrolled_file
from fabric.access.access_file import NAME, NAME_RULE, STARTER, read_access
from fabric.access.enrolled_file import ENROLLED_MAX, INVITATIONS_MAX, EnrolledFile, Enrolment, Invitation
from fabric.access.keys import KeyPair, open_hub_key, parse_key, raw_key
from fabric.access.tries import Tries
from fabric.router.access.identity import GUEST_NAME, LOCAL_NAME, REFUSED_NAME, Identity
from fabric.router.access.role import Role
from fabric_protocol.errors import Code, FabricError, ProtocolError

ACCESS_FILE: Final = "access.toml"  # in the data folder
CODE_BYTES: Final = 16  # 128 bits
CODE_CHARS_MAX: Final = 100
TTL_S_MAX: Final = 30 * 86_400
LATE_US: Final = 86_400_000_000  # an expired invitation is kept for a day, so that its error says that it has expired
LOOK_EVERY_S: Final = 1.0
PROBLEM_CHARS_MAX: Final = 500
# Between two rotations of one principal. Each writes the file to disk while the hub waits, and needs no right.
ROTATE_EVERY_US: Final = 1_000_000

Stamp = tuple[int, int, int] | None  # of a file: time of the last change, size and inode; None: there is no file


class KeyView(NamedTuple):
    """What the ZAP handler needs of the book."""

    keys: Mapping[bytes, str]  # of all principals: raw -> Z85
    guests_until_us: int = 0  # any key is let in before this time, as a guest, because an invitation is open


class _Watched:
    """A file that is read again when it has changed. A file that is being written is left alone until it rests."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read_as = self._seen = stamp_of(path)
        self.problem = ""

    def is_changed(self) -> bool:
        """True if the file differs from the one that was read, and did not change since the last look."""
        stamp = stamp_of(self.path)
        rests, self._seen = stamp == self._seen, stamp
        return rests and stamp != self.read_as

    def note(self, problem: str = "") -> None:
        """The file as it is now was read, or cannot be read because of a problem."""
        self.read_as = self._seen
        self.problem = problem

    def written(self) -> None:
        self.read_as = self._seen = stamp_of(self.path)
        self.problem = ""


class AccessBook:
    """Implements `fabric.router.access.book.Book`."""

    def __init__(self, data: Path, access: Path | None = None, advertise: str = "") -> None:
        """Read the files of a data folder; make those that are missing. Raises FabricError."""
        self.path = access or data / ACCESS_FILE
        self._advertise = advertise  # the address that invitations name
        if access is None:
            _write_starter(self.path)
        self._access_file = _Watched(self.path)
        self._access = read_access(self.path)
        self._enrolled_file = _Watched(enrolled_file.enrolled_path(data))
        self._enrolled = enrolled_file.read_enrolled(self._enrolled_file.path)
        self._pair, self.is_new = open_hub_key(data)  # after the files: with keys, the next hub here encrypts
        self._tries = Tries()
        self._rotated_us: dict[str, int] = {}  # by principal
        self._look_at = 0.0
        self.revision = 0  # rises with each change
        self._index(time.time_ns() // 1000)

    @property
    def hub_key(self) -> str:
        """The public key of the hub."""
        return self._pair.public

    @property
    def hub_pair(self) -> KeyPair:
        """The key pair of the hub, for its sockets."""
        return self._pair

    @property
    def problem(self) -> str:
        """Why a file does not count, or counts in part; empty: all is well."""
        found = [self._access_file.problem, self._enrolled_file.problem, *self._doubts]
        return "; ".join(filter(None, found))[:PROBLEM_CHARS_MAX]

    # What others read.

    def roles(self) -> Mapping[str, Role]:
        return self._roles

    def identity_of(self, key: str, address: str = "") -> Identity:
        """The identity of a connection that has proved a key."""
        name = self._names.get(key)
        if name is None:
            name = GUEST_NAME if self.view.guests_until_us else REFUSED_NAME
        return Identity(name, key, address)

    def listed(self) -> dict[str, Any]:
        """The fields of INFO keys."""
        rows: list[dict[str, Any]] = []
        for name, role in self._roles.items():
            enrolment = None if name in self._access.principals else self._enrolled.principals[name]
            keys = [enrolment.key] if enrolment else list(self._access.principals[name].keys)
            file, since_us = ("enrolled", enrolment.since_us) if enrolment else ("access", 0)
            rows.append({"principal": name, "role": role.name, "keys": keys, "file": file, "since_us": since_us})
        invitations = [{"name": one.name, "role": one.role, "expires_us": one.expires_us} for one in self._invitations]
        return {"principals": rows, "invitations": invitations, "hub_key": self.hub_key}

    # What the router changes.

    def invite(self, name: str, role: str, ttl_s: int, wall_us: int) -> dict[str, Any]:
        """Open an invitation. It replaces an open invitation of the same name."""
        self._require_free_name(name)
        self._require_role(role)
        if not 1 <= ttl_s <= TTL_S_MAX:
            raise ProtocolError(Code.BAD_OPTION, f"an invitation is open for 1 s to 30 days, not for {ttl_s} s")
        others = [one for one in self._open(wall_us - LATE_US) if one.name != name]
        if len(others) >= INVITATIONS_MAX:
            others = [one for one in others if one.expires_us > wall_us]
        if len(others) >= INVITATIONS_MAX or len(self._enrolled.principals) >= ENROLLED_MAX:
            raise ProtocolError(
                Code.CONFLICT,
                f"a hub has at most {INVITATIONS_MAX:,} open invitations and {ENROLLED_MAX:,} enrolled principals: "
                "revoke some",
            )
        code = secrets.token_urlsafe(CODE_BYTES)
        expires_us = wall_us + ttl_s * 1_000_000
        invitation = Invitation(name, role, _hash(code), expires_us)
        self._write(self._enrolled._replace(invitations=(*others, invitation)), wall_us)
        url = {"url": self._advertise} if self._advertise else {}
        return {
            "name": name, "role": role, "code": code, "hub_key": self.hub_key, "expires_us": expires_us, **url,
        }  # fmt: skip

    def enrol(self, code: str, identity: Identity, wall_us: int) -> dict[str, Any]:
        if not identity.key:
            raise ProtocolError(Code.BAD_OPTION, "this connection has no key to enrol: connect by CURVE")
        self._require_free_key(identity.key)
        if wait_us := self._tries.wait_us(identity.address, wall_us):
            raise ProtocolError(
                Code.BUSY,
                f"{identity.address or 'this client'} has presented too many wrong codes: wait for a minute",
                retry_ms=wait_us // 1000 + 1,
            )
        invitation = self._invitation_of(code)
        if invitation is None or invitation.expires_us <= wall_us:
            self._tries.failed(identity.address, wall_us)
            why = "is wrong or was used" if invitation is None else "has expired"
            raise ProtocolError(Code.AUTH_FAILED, f"the code of the invitation {why}: ask for a new invitation")
        name, role = invitation.name, invitation.role
        self._require_free_name(name)
        others = tuple(one for one in self._enrolled.invitations if one.name != name)
        principals = {**self._enrolled.principals, name: Enrolment(role, identity.key, wall_us)}
        self._write(EnrolledFile(principals, others), wall_us)
        return {"principal": name, "role": role, "key": identity.key}

    def create(self, name: str, role: str, key: str, wall_us: int) -> dict[str, Any]:
        self._require_free_name(name)
        self._require_role(role)
        key = _parsed(key)
        self._require_free_key(key)
        if len(self._enrolled.principals) >= ENROLLED_MAX:
            raise ProtocolError(Code.CONFLICT, f"a hub has at most {ENROLLED_MAX:,} enrolled principals: revoke some")
        others = tuple(one for one in self._enrolled.invitations if one.name != name)
        principals = {**self._enrolled.principals, name: Enrolment(role, key, wall_us)}
        self._write(EnrolledFile(principals, others), wall_us)
        return {"name": name, "role": role, "key": key, "hub_key": self.hub_key}

    def rotate(self, identity: Identity, key: str, wall_us: int) -> dict[str, Any]:
        name = identity.name
        self._require_not_listed(name, "replace the key there")
        enrolment = self._enrolled.principals.get(name)
        if enrolment is None or enrolment.key != identity.key:
            raise ProtocolError(Code.NOT_FOUND, f"this connection has no enrolled key: it is {name or 'not known'}")
        if 0 <= (since_us := wall_us - self._rotated_us.get(name, 0)) < ROTATE_EVERY_US:
            retry_ms = (ROTATE_EVERY_US - since_us) // 1000 + 1
            raise ProtocolError(Code.BUSY, "this key was changed a moment ago: try again later", retry_ms=retry_ms)
        key = _parsed(key)
        self._require_free_key(key)
        principals = {**self._enrolled.principals, name: enrolment._replace(key=key, since_us=wall_us)}
        self._write(self._enrolled._replace(principals=principals), wall_us)
        self._rotated_us[name] = wall_us
        return {"principal": name, "key": key, "before": identity.key}

    def revoke(self, name: str, wall_us: int) -> dict[str, Any]:
        """Remove a principal with its key, and its open invitations."""
        self._require_not_listed(name, "remove it there")
        left = tuple(one for one in self._enrolled.invitations if one.name != name)
        keys = int(name in self._enrolled.principals)
        invitations = len(self._enrolled.invitations) - len(left)
        if not keys and not invitations:
            raise ProtocolError(Code.NOT_FOUND, f"there is no principal {name!r:.80} and no invitation for it")
        principals = {one: row for one, row in self._enrolled.principals.items() if one != name}
        self._write(EnrolledFile(principals, left), wall_us)
        self._rotated_us.pop(name, None)
        return {"name": name, "keys": keys, "invitations": invitations}

    # Files that change.

    def reload_if_changed(self, now: float, wall_us: int) -> bool:
        """Each second: read files that have changed, and close invitations that have expired. True if `revision` or
        `problem` has changed."""
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_EVERY_S
        before = self.revision, self.problem
        has_changed = self._reload(self._access_file, self._read_access)
        has_changed |= self._reload(self._enrolled_file, self._read_enrolled)
        if has_changed or any(one.expires_us <= wall_us for one in self._invitations):
            self.revision += 1
            self._index(wall_us)
        return before != (self.revision, self.problem)

    def _reload(self, file: _Watched, read: Callable[[], None]) -> bool:
        """Read a file if it has changed; True if its new content counts."""
        if not file.is_changed():
            return False
        if file.read_as is not None and stamp_of(file.path) is None:
            file.note(f"{file.path} has vanished; the rights that were read before stay")
            return False
        try:
            read()
        except FabricError as error:
            hint = f" ({error.hint})" if error.hint else ""
            file.note(f"{error}{hint}; the rights that were read before stay")
            return False
        file.note()
        return True

    def _read_access(self) -> None:
        self._access = read_access(self.path)

    def _read_enrolled(self) -> None:
        self._enrolled = enrolled_file.read_enrolled(self._enrolled_file.path)

    # Parts.

    def _index(self, wall_us: int) -> None:
        """Compute what is asked often. A principal of the access file wins over an enrolled one."""
        access, enrolled = self._access, self._enrolled
        self._roles = {name: access.roles[one.role] for name, one in access.principals.items()}
        self._names = {key: name for name, one in access.principals.items() for key in one.keys}
        self._doubts = list[str]()
        for name, enrolment in enrolled.principals.items():
            if name in self._roles:
                self._doubts.append(
                    f"{self.path}: [principal.{name}] is enrolled as well; the enrolled key does not count"
                )
                continue
            if enrolment.key in self._names:
                owner = self._names[enrolment.key]
                self._doubts.append(f"{self.path}: [principal.{owner}] has the key of the enrolled principal {name}")
                continue
            if enrolment.role not in access.roles:
                self._doubts.append(
                    f"{self.path}: there is no [role.{enrolment.role}], which {name} has: it has no rights"
                )
            self._roles[name] = access.roles.get(enrolment.role, Role(enrolment.role))
            self._names[enrolment.key] = name
        self._invitations = self._open(wall_us)
        until_us = max((one.expires_us for one in self._invitations), default=0)
        self.view = KeyView({raw_key(key): key for key in self._names}, until_us)

    def _write(self, enrolled: EnrolledFile, wall_us: int) -> None:
        """Replace the enrolled file, then let it count."""
        try:
            enrolled_file.write_enrolled(self._enrolled_file.path, enrolled)
        except OSError as error:
            code = Code.DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else Code.INTERNAL
            raise ProtocolError(
                code, f"the hub cannot write {self._enrolled_file.path}: {error.strerror}; nothing was changed"
            ) from error
        self._enrolled = enrolled
        self._enrolled_file.written()
        self.revision += 1
        self._index(wall_us)

    def _open(self, wall_us: int) -> list[Invitation]:
        """Invitations that expire after a time."""
        return [one for one in self._enrolled.invitations if one.expires_us > wall_us]

    def _invitation_of(self, code: str) -> Invitation | None:
        """The invitation of a code. All are compared, each in constant time."""
        wanted, found = _hash(code[:CODE_CHARS_MAX]), None
        for one in self._enrolled.invitations:
            if hmac.compare_digest(one.code_hash, wanted):
                found = one
        return found

    def _require_free_name(self, name: str) -> None:
        if not NAME.fullmatch(name):
            raise ProtocolError(Code.BAD_OPTION, f"{name!r:.80} is not a name of a principal, which has {NAME_RULE}")
        if name == LOCAL_NAME:
            raise ProtocolError(Code.CONFLICT, "local is the principal of connections without a key: use another name")
        if name in self._roles or name in self._enrolled.principals:
            raise ProtocolError(Code.CONFLICT, f"there is a principal {name!r}: use another name, or revoke it before")

    def _require_free_key(self, key: str) -> None:
        if (owner := self._names.get(key)) is not None:
            raise ProtocolError(Code.CONFLICT, f"this key is known already, as {owner!r}")
        if key == self.hub_key:
            raise ProtocolError(Code.CONFLICT, "this is the key of the hub: a client makes its own")

    def _require_role(self, role: str) -> None:
        if role not in self._access.roles:
            known = ", ".join(sorted(self._access.roles)[:20]) or "none"
            raise ProtocolError(Code.NOT_FOUND, f"{self.path} has no [role.{role:.64}]; it has: {known}")

    def _require_not_listed(self, name: str, what: str) -> None:
        if name in self._access.principals:
            raise ProtocolError(Code.CONFLICT, f"{name!r} stands in {self.path}, which people write: {what}")


def stamp_of(path: Path) -> Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ctime_ns, found.st_size, found.st_ino  # ctime: also when its permissions change


def _write_starter(path: Path) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(STARTER)
    except FileExistsError:
        return
    except OSError as error:
        raise FabricError(
            f"cannot write the access file {path}: {error.strerror}", "the data folder must be writable"
        ) from error


def _parsed(key: str) -> str:
    try:
        return parse_key(key)
    except ValueError as error:
        raise ProtocolError(Code.BAD_OPTION, f"key: {error}") from None


def _hash(code: str) -> str:
    return hashlib.sha256(code.encode(errors="replace")).hexdigest()
