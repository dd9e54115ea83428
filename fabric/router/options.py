"""Reading what clients ask for: every field is checked, and an error names the field, the value and what is allowed."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from fabric.errors import Code, ProtocolError
from fabric.messages import GroupSettings, Level
from fabric.names import canonical, check_topic
from fabric.router.shelf import Reader

LEASE_MS: Final = (100, 30_000, 43_200_000)  # least, default, most
ATTEMPTS: Final = (1, 5, 1_000)
PATTERNS_MAX: Final = 64
GROUP_CHARS_MAX: Final = 128


def bounded(fields: Mapping[str, Any], name: str, least: int, default: int, most: int) -> int:
    """A whole number in least..most, or the default when the field is absent."""
    value = fields.get(name)
    if value is None:
        return default
    if type(value) is not int or not least <= value <= most:
        raise ProtocolError(Code.BAD_OPTION, f"{name} is {least}..{most}, not {value!r}")
    return value


def text(fields: Mapping[str, Any], name: str, default: str, chars_max: int) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str) or len(value) > chars_max:
        raise ProtocolError(Code.BAD_OPTION, f"{name} is text of at most {chars_max} characters")
    return value


def group_settings(fields: Mapping[str, Any], existing: GroupSettings | None, *, durable: bool) -> GroupSettings:
    """The settings that SUB asks for; those of the existing group where it is silent. A difference is refused."""
    if durable:
        name = text(fields, "group", "", GROUP_CHARS_MAX)
        if not name or name.startswith("$"):
            raise ProtocolError(Code.BAD_OPTION, f"group {name!r}: a name is not empty and does not start with $")
        try:
            check_topic(f"$dlq.{name}")
        except ProtocolError as error:
            raise ProtocolError(Code.BAD_OPTION, f"group: its dead letters would need a bad topic: {error}") from None
    patterns = _patterns(fields.get("patterns"))
    if existing is None and not patterns:
        raise ProtocolError(Code.BAD_OPTION, "patterns is missing: a new group needs at least one")
    base = existing or GroupSettings(patterns)
    level = fields.get("level", Level(base.level).name.lower())
    if level not in ("journaled", "received"):
        raise ProtocolError(Code.BAD_OPTION, f"level is 'journaled' or 'received', not {level!r}")
    asked = GroupSettings(
        patterns=patterns or base.patterns,
        lease_ms=bounded(fields, "lease_ms", LEASE_MS[0], base.lease_ms, LEASE_MS[2]),
        attempts_max=bounded(fields, "attempts_max", ATTEMPTS[0], base.attempts_max, ATTEMPTS[2]),
        level=Level[level.upper()],
    )
    for field, have, want in zip(GroupSettings._fields, base, asked, strict=True):
        if existing is not None and have != want:
            raise ProtocolError(
                Code.GROUP_MISMATCH,
                f"group {fields['group']!r} exists with {field} {have!r}, not {want!r}",
                field=field,
                have=str(have),
                want=str(want),
            )
    return asked


def _patterns(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > PATTERNS_MAX or not all(isinstance(p, str) for p in value):
        raise ProtocolError(Code.BAD_OPTION, f"patterns is a list of at most {PATTERNS_MAX} texts")
    return tuple(dict.fromkeys(canonical(pattern) for pattern in value))


def start_position(start: Any, first_seq: int, next_seq: int, wanted: Callable[[str], bool], reader: Reader) -> int:
    """The seq at which a new group begins."""
    match start:
        case "first":
            return first_seq
        case "new":
            return next_seq
        case "last":
            found = reader.last_match(wanted)
            return next_seq if found is None else found
        case {"seq": int(seq)} if seq >= 0:
            return min(max(seq, first_seq), next_seq)
        case {"time_us": int(time_us)}:
            return max(reader.seek_time(time_us), first_seq)
    raise ProtocolError(
        Code.BAD_OPTION, f"start is 'first', 'new', 'last', {{seq: n}} or {{time_us: t}}, not {start!r}"
    )
