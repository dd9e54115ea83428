"""The access file: roles and principals, written by people and read by the hub.

    [role.worker]
    subscribe = ["orders.*"]
    [principal.billing]
    role = "worker"
    key = "…"

A file is accepted as a whole or refused as a whole. An error names the file, the place in it, the value, what is
allowed, and for an unknown word the word that was probably meant.
"""

import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from fabric.access.files import read_file
from fabric.access.keys import parse_key
from fabric.router.access.identity import LOCAL_NAME
from fabric.router.access.role import ADMIN_RIGHTS, Limits, Role
from fabric_protocol.errors import FabricError, ProtocolError
from fabric_protocol.names import canonical, unaliased

FILE_BYTES_MAX: Final = 1 << 20
ROLES_MAX: Final = 1_000
PRINCIPALS_MAX: Final = 10_000
PATTERNS_MAX: Final = 256  # of one list; each subscription is compared with all of them
KEYS_MAX: Final = 16  # of one principal; a rotation needs two
GLOB_CHARS_MAX: Final = 128  # as the names of groups and producers
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
NAME_RULE: Final = "1 to 64 letters, digits, _ . - with a letter or digit first"
SHOWN_CHARS: Final = 60
_PATTERNS: Final = ("publish", "subscribe", "request", "respond", "deny")
_GLOBS: Final = ("groups", "producers")
_ROLE_WORDS: Final = (*_PATTERNS, *_GLOBS, "admin", "limits")
_PRINCIPAL_WORDS: Final = ("role", "key", "keys")
_AMOUNT: Final = re.compile(r"([0-9]{1,15})\s*([kKMGT]?)(i?)(B?)(/s)?")
_AMOUNT_MAX: Final = 1 << 60
_EXAMPLES: Final = {"rate": '"20k/s"', "bytes": '"20MB/s"', "inflight": '"16MB"', "sessions": "10", "groups": "20"}
STARTER: Final = """\
# The access file: which principal may do what. The hub reads it again when it changes, within two seconds.
# A file with a mistake is refused as a whole: the old rights stay, and the log of the hub and `fabric check` say why.
#
# Principals that join by an invitation (`fabric keys invite NAME --role ROLE`) are in keys/enrolled.toml, which the hub
# writes. Their roles are defined here.
#
# Patterns: * is one word, # is any number of words. A right that is not given is refused.

[role.admin]
publish = ["#"]
subscribe = ["#", "$sys.#", "$dlq.#"]
groups = ["*"]            # names of groups to join or create
request = ["#"]
respond = ["#"]
producers = ["*"]         # names of producers that are shared with other principals
admin = ["groups", "topics", "dlq", "schedules", "sessions", "hub", "keys", "links", "info"]

[role.client]
publish = ["#"]
subscribe = ["#"]
groups = ["*"]
request = ["#"]
respond = ["#"]

[role.reader]
subscribe = ["#"]
admin = ["info"]

# A role of your own, for one service:
# [role.billing]
# subscribe = ["orders.*"]
# groups = ["billing*"]
# publish = ["invoices.#"]
# deny = ["orders.secret.#"]      # wins over all of the above
# limits = { rate = "20k/s", bytes = "20MB/s", sessions = 10, inflight = "16MB", groups = 20 }

# A principal whose key you know already:
# [principal.billing]
# role = "billing"
# key = "the public key, 40 characters"

# Connections without a key (hub.sock, ipc) are of the principal `local`, which has all rights. To restrict it:
# [principal.local]
# role = "reader"
"""


class Listed(NamedTuple):
    """A principal of the access file."""

    role: str
    keys: tuple[str, ...]


class AccessFile(NamedTuple):
    roles: Mapping[str, Role]
    principals: Mapping[str, Listed]


class _Mistake(Exception):
    """What is wrong at which place; the file is not known here."""

    def __init__(self, place: str, text: str, hint: str = "") -> None:
        super().__init__(place, text, hint)
        self.place, self.text, self.hint = place, text, hint


def read_access(path: Path) -> AccessFile:
    """Roles and principals of a file. Raises FabricError."""
    return parse_access(read_bounded(path, FILE_BYTES_MAX), str(path))


def read_bounded(path: Path, bytes_max: int) -> bytes:
    """The bytes of a file that not every user may change."""
    try:
        text, mode = read_file(path, bytes_max)
    except OSError as error:
        raise FabricError(
            f"cannot read {path}: {error.strerror}", "the user of the hub must be able to read it"
        ) from error
    if mode & stat.S_IWOTH:
        raise FabricError(f"{path} gives rights, and every user may change it (mode {mode:o})", f"chmod o-w {path}")
    if len(text) > bytes_max:
        raise FabricError(f"{path} is larger than {bytes_max:,} bytes", "use fewer roles, with wildcards")
    return text


def parse_access(text: bytes, file: str) -> AccessFile:
    """Roles and principals of the text of a file; `file` is named in errors."""
    fields = parse_toml(text, file)
    try:
        _known(fields, ("role", "principal"), "the top level")
        roles = {name: _role(name, value) for name, value in _tables(fields, "role", ROLES_MAX)}
        principals = {
            name: _principal(name, value, roles) for name, value in _tables(fields, "principal", PRINCIPALS_MAX)
        }
        _keys_differ(principals)
    except _Mistake as mistake:
        raise FabricError(f"{file}: {mistake.place}: {mistake.text}", mistake.hint) from None
    return AccessFile(roles, principals)


def parse_toml(text: bytes, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text.decode())
    except UnicodeDecodeError as error:
        line = text[: error.start].count(b"\n") + 1
        raise FabricError(f"{file}: line {line}: a byte that is not UTF-8", "save the file as UTF-8") from None
    except RecursionError:
        raise FabricError(f"{file}: it is nested too deeply", "tables are [role.NAME] and [principal.NAME]") from None
    except ValueError as error:  # with the line and the column
        raise FabricError(f"{file}: it is not TOML: {error}", "texts need quotes, lists need [ and ]") from None


def _tables(fields: dict[str, Any], kind: str, count_max: int) -> list[tuple[str, dict[str, Any]]]:
    tables = fields.get(kind, {})
    if not isinstance(tables, dict):
        raise _Mistake(kind, f"expected tables [{kind}.NAME], and not {_shown(tables)}")
    if len(tables) > count_max:
        raise _Mistake(kind, f"{len(tables)} are more than the {count_max} that a hub has")
    for name, value in tables.items():
        if not NAME.fullmatch(name):
            raise _Mistake(f"[{kind}.{name[:SHOWN_CHARS]!r}]", f"a name has {NAME_RULE}")
        if not isinstance(value, dict):
            raise _Mistake(f"{kind}.{name}", f"expected a table [{kind}.{name}], and not {_shown(value)}")
    return list(tables.items())


def _role(name: str, fields: dict[str, Any]) -> Role:
    place = f"[role.{name}]"
    _known(fields, _ROLE_WORDS, place)
    rights: dict[str, Any] = {
        word: tuple(dict.fromkeys(_pattern(text, where) for text, where in _texts(fields, word, place)))
        for word in _PATTERNS
    }
    rights |= {word: tuple(_glob(text, where) for text, where in _texts(fields, word, place)) for word in _GLOBS}
    for right, where in _texts(fields, "admin", place):
        if right not in ADMIN_RIGHTS:
            raise _Mistake(
                where, f"{_shown(right)} is not one of {', '.join(ADMIN_RIGHTS)}", _meant(right, ADMIN_RIGHTS)
            )
    return Role(name, **rights, admin=frozenset(fields.get("admin", ())), limits=_limits(fields, place))


def _pattern(text: str, where: str) -> str:
    try:
        return canonical(unaliased(text))
    except ProtocolError as error:
        raise _Mistake(where, str(error), 'patterns are words with dots: "orders.*", "orders.#"') from None


def _glob(text: str, where: str) -> str:
    if not 0 < len(text) <= GLOB_CHARS_MAX or not text.isprintable():
        raise _Mistake(
            where, f"{_shown(text)} is not a name of 1 to {GLOB_CHARS_MAX} characters, with * for any characters"
        )
    return text


def _limits(fields: dict[str, Any], place: str) -> Limits:
    limits = fields.get("limits", {})
    place += " limits"
    if not isinstance(limits, dict):
        raise _Mistake(place, f"expected {{ rate = {_EXAMPLES['rate']}, … }}, and not {_shown(limits)}")
    _known(limits, Limits._fields, place)
    return Limits(**{word: _amount(word, value, f"{place}.{word}") for word, value in limits.items()})


def _amount(word: str, value: Any, where: str) -> int:
    """A number, or a text with a unit: 20k/s for rate, 20MB/s for bytes, 16MB for inflight."""
    wrong = _Mistake(where, f"{_shown(value)} is not a limit; write {word} = {_EXAMPLES[word]}, or 0 for no limit")
    if type(value) is int:
        if not 0 <= value <= _AMOUNT_MAX:
            raise wrong
        return value
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise wrong
    digits, scale, binary, unit, per_second = match.groups()
    has_unit, is_rate = word in ("bytes", "inflight"), word in ("rate", "bytes")
    if (unit and not has_unit) or (per_second and not is_rate) or (binary and not (scale and unit)):
        raise wrong
    number = int(digits) * int((1024 if binary else 1000) ** " KMGT".index(scale.upper() or " "))
    if number > _AMOUNT_MAX:
        raise wrong
    return number


def _principal(name: str, fields: dict[str, Any], roles: Mapping[str, Role]) -> Listed:
    place = f"[principal.{name}]"
    _known(fields, _PRINCIPAL_WORDS, place)
    role = fields.get("role")
    if not isinstance(role, str):
        raise _Mistake(place, 'it needs a role: role = "NAME of a [role.NAME]"')
    if role not in roles:
        raise _Mistake(f"{place} role", f"there is no [role.{role[:SHOWN_CHARS]}] in this file", _meant(role, roles))
    if "key" in fields and "keys" in fields:
        raise _Mistake(place, "it has key and keys: write all keys in keys")
    written = [(fields["key"], f"{place} key")] if "key" in fields else _texts(fields, "keys", place, KEYS_MAX)
    keys = tuple(dict.fromkeys(_key(value, where) for value, where in written))
    if name == LOCAL_NAME and keys:
        raise _Mistake(
            place, "local is the principal of connections without a key: remove the key, or use another name"
        )
    if name != LOCAL_NAME and not keys:
        raise _Mistake(
            place, "it has no key", f'add key = "…", or remove it here and run: fabric keys invite {name} --role {role}'
        )
    return Listed(role, keys)


def _key(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _Mistake(where, f"expected a public key in quotes, and not {_shown(value)}")
    try:
        return parse_key(value)
    except ValueError as error:
        raise _Mistake(where, f"{_shown(value)} is not a public key: {error}") from None


def _keys_differ(principals: Mapping[str, Listed]) -> None:
    owners: dict[str, str] = {}
    for name, listed in principals.items():
        for key in listed.keys:
            if key in owners:
                raise _Mistake(
                    f"[principal.{name}]", f"its key {key[:8]}… is a key of [principal.{owners[key]}] as well"
                )
            owners[key] = name


def _texts(fields: dict[str, Any], word: str, place: str, count_max: int = PATTERNS_MAX) -> list[tuple[str, str]]:
    """The texts of a list, each with its place."""
    values = fields.get(word, [])
    if not isinstance(values, list):
        raise _Mistake(f"{place} {word}", f'expected a list such as ["…"], and not {_shown(values)}')
    if len(values) > count_max:
        raise _Mistake(f"{place} {word}", f"{len(values)} are more than the {count_max} that are allowed")
    for number, value in enumerate(values, 1):
        if not isinstance(value, str):
            raise _Mistake(f"{place} {word}, number {number}", f"expected a text in quotes, and not {_shown(value)}")
    return [(value, f"{place} {word}, number {number}") for number, value in enumerate(values, 1)]


def _known(fields: Mapping[str, Any], words: Iterable[str], place: str) -> None:
    known = tuple(words)
    for word in fields:
        if word not in known:
            raise _Mistake(place, f"{_shown(word)} is not one of {', '.join(known)}", _meant(word, known))


def _meant(word: str, known: Iterable[str]) -> str:
    import difflib  # late: only a wrong name needs it

    close = difflib.get_close_matches(word[:SHOWN_CHARS], list(known), 1)
    return f"did you mean {close[0]}?" if close else ""


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number with thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"
