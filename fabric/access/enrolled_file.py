"""The enrolled file: principals that joined by an invitation, and open invitations. Only the hub writes it.

It is a file of its own, because a program that rewrites the file of a person loses its comments. Codes are stored as
hashes: a copy of the file lets no program join.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from fabric.access.access_file import NAME, parse_toml, read_bounded
from fabric.access.keys import FOLDER, parse_key, replace_private
from fabric_protocol.errors import FabricError

NAME_OF_FILE: Final = "enrolled.toml"
FILE_BYTES_MAX: Final = 16 << 20
ENROLLED_MAX: Final = 10_000
INVITATIONS_MAX: Final = 1_000
HASH_CHARS: Final = 64
TIME_US_MAX: Final = 1 << 62
HEAD: Final = """\
# Written by the hub, which replaces this file: do not change it. `fabric keys list` shows it, and `fabric keys revoke`
# removes a principal. Roles are in the access file.
"""


class Enrolment(NamedTuple):
    """A principal that the hub has enrolled."""

    role: str
    key: str
    since_us: int


class Invitation(NamedTuple):
    """A code that makes one key known."""

    name: str
    role: str
    code_hash: str
    expires_us: int


class EnrolledFile(NamedTuple):
    principals: Mapping[str, Enrolment] = {}
    invitations: tuple[Invitation, ...] = ()


def enrolled_path(data: Path) -> Path:
    return data / FOLDER / NAME_OF_FILE


def read_enrolled(path: Path) -> EnrolledFile:
    """The file, empty if it does not exist yet. Raises FabricError."""
    if not path.exists():
        return EnrolledFile()
    return parse_enrolled(read_bounded(path, FILE_BYTES_MAX), str(path))


def parse_enrolled(text: bytes, file: str) -> EnrolledFile:
    fields = parse_toml(text, file)
    try:
        if unknown := fields.keys() - {"principal", "invitation"}:
            raise ValueError(f"{min(unknown)[:60]!r} is not principal or invitation")
        principals = {name: _enrolment(name, row) for name, row in _table(fields, "principal").items()}
        rows = fields.get("invitation", [])
        if not isinstance(rows, list) or len(rows) > INVITATIONS_MAX or len(principals) > ENROLLED_MAX:
            raise ValueError("it has more rows than a hub writes")
        keys = [enrolment.key for enrolment in principals.values()]
        if len(keys) != len(set(keys)):
            raise ValueError("two principals have one key")
        return EnrolledFile(principals, tuple(map(_invitation, rows)))
    except ValueError as error:
        raise FabricError(
            f"{file}: {error}", "restore the file from a backup; without it, invite all of its principals again"
        ) from None


def write_enrolled(path: Path, enrolled: EnrolledFile) -> None:
    """Replace the file. It is on disk when this returns. Raises OSError."""
    replace_private(path, text_of(enrolled))


def text_of(enrolled: EnrolledFile) -> str:
    """The file as TOML. Names, roles and keys have no character that would need an escape."""
    parts = [HEAD]
    for name, (role, key, since_us) in enrolled.principals.items():
        parts.append(f'[principal."{name}"]\nrole = "{role}"\nkey = "{key}"\nsince_us = {since_us}\n')
    for name, role, code_hash, expires_us in enrolled.invitations:
        parts.append(
            f'[[invitation]]\nname = "{name}"\nrole = "{role}"\ncode_hash = "{code_hash}"\nexpires_us = {expires_us}\n'
        )
    return "\n".join(parts)


def _table(fields: Mapping[str, Any], word: str) -> dict[str, Any]:
    value = fields.get(word, {})
    if not isinstance(value, dict):
        raise ValueError(f"{word} is not a table")
    return value


def _enrolment(name: str, row: Any) -> Enrolment:
    _name(name)
    try:
        key = parse_key(_text(row, "key"))
    except ValueError as error:
        raise ValueError(f"principal {name}: key: {error}") from None
    return Enrolment(_name(_text(row, "role")), key, _time(row, "since_us"))


def _invitation(row: Any) -> Invitation:
    code_hash = _text(row, "code_hash")
    if len(code_hash) != HASH_CHARS or not code_hash.isascii():
        raise ValueError("an invitation has a code_hash that is not one")
    return Invitation(_name(_text(row, "name")), _name(_text(row, "role")), code_hash, _time(row, "expires_us"))


def _name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name[:60]!r} is not a name")
    return name


def _text(row: Any, word: str) -> str:
    value = row.get(word) if isinstance(row, dict) else None
    if not isinstance(value, str):
        raise ValueError(f"{word} is missing in a row")
    return value


def _time(row: Any, word: str) -> int:
    value = row.get(word)
    if type(value) is not int or not 0 <= value <= TIME_US_MAX:
        raise ValueError(f"{word} is not a time in microseconds")
    return value
