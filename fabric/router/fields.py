"""Fields of commands: each is checked, and an error names the field, the value and what is allowed."""

from collections.abc import Mapping
from typing import Any, Final

from fabric.records import GroupSettings
from fabric_protocol.bounds import (
    ATTEMPTS,
    BACKOFF_MAX_MS,
    BACKOFF_MS,
    GROUP_EXPIRES_MS,
    IN_FLIGHT,
    JITTER_PCT,
    LEASE_MAX_MS,
    LEASE_MS,
    NUMBER_MAX,
    RATE,
    RATE_MS,
)
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.messages import Level
from fabric_protocol.names import REDRIVE, canonical, check_topic, unaliased

CHOICES: Final = {
    "level": ("journaled", "received"),
    "backoff": ("fixed", "linear", "exponential"),
    "order": ("none", "key", "strict"),
    "ack": ("explicit", "auto"),
    "on_expire": ("drop", "dead"),
}
# Settings that cannot be changed while a group exists: its position would mean something else.
FIXED: Final = ("level", "order")
PATTERNS_MAX: Final = 64
GROUP_CHARS_MAX: Final = 128


def bounded(fields: Mapping[str, Any], name: str, least: int, default: int, most: int) -> int:
    """A whole number in least..most, or the default when the field is absent."""
    value = fields.get(name)
    if value is None:
        return default
    if type(value) is not int or not least <= value <= most:
        raise ProtocolError(Code.BAD_OPTION, f"{name} is {least}..{most}, not {value!r:.60}")
    return value


def dry_run(fields: Mapping[str, Any]) -> bool:
    """Whether a command only answers what it would change."""
    value = fields.get("dry_run", False)
    if not isinstance(value, bool):
        raise ProtocolError(Code.BAD_OPTION, f"dry_run is true or false, not {value!r:.60}")
    return value


def is_number(value: object) -> bool:
    """Whether a value from a peer is a whole number that the wire and the journal can hold."""
    return type(value) is int and 0 <= value <= NUMBER_MAX


def text(fields: Mapping[str, Any], name: str, default: str, chars_max: int) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str) or len(value) > chars_max:
        raise ProtocolError(Code.BAD_OPTION, f"{name} is text of at most {chars_max} characters, not {value!r:.60}")
    return value


def choice(fields: Mapping[str, Any], name: str, default: str) -> str:
    """A word that the setting allows, or the default when the field is absent."""
    value = fields.get(name)
    if value is None:
        return default
    if value not in CHOICES[name]:
        raise ProtocolError(Code.BAD_OPTION, f"{name} is one of {', '.join(CHOICES[name])}, not {value!r:.60}")
    return str(value)


def group_name(fields: Mapping[str, Any]) -> str:
    """The name of a durable group, checked."""
    name = text(fields, "group", "", GROUP_CHARS_MAX)
    if not name or name.startswith("$"):
        raise ProtocolError(Code.BAD_OPTION, f"group {name!r}: a name is not empty and does not start with $")
    try:
        check_topic(REDRIVE + name)  # the longest topic that is made with the name
    except ProtocolError as error:
        raise ProtocolError(
            Code.BAD_OPTION, f"group {name!r}: a name is made of words as a topic is, and {error}"
        ) from None
    return name


def group_settings(fields: Mapping[str, Any], existing: GroupSettings | None, *, durable: bool) -> GroupSettings:
    """The settings that SUB asks for; an absent field means the setting of the existing group. Refuses a difference."""
    name = group_name(fields) if durable else ""
    if existing is None and not fields.get("patterns"):
        why = f"there is no group {name!r}, and a new group needs" if durable else "a subscription needs"
        raise ProtocolError(Code.BAD_OPTION, f"patterns is missing: {why} at least one")
    asked = _asked(fields, existing or GroupSettings(()), durable=durable)
    if existing is not None:
        _require_same(name, existing, asked)
    return asked


def changed_settings(fields: Mapping[str, Any], existing: GroupSettings) -> GroupSettings:
    """The settings of a group after a change by ADMIN."""
    asked = _asked(fields, existing, durable=True)
    for field in FIXED:
        if getattr(asked, field) != getattr(existing, field):
            raise ProtocolError(
                Code.BAD_OPTION, f"{field} of a group cannot be changed: delete the group and create it anew"
            )
    return asked


def _asked(fields: Mapping[str, Any], base: GroupSettings, *, durable: bool) -> GroupSettings:
    asked = GroupSettings(
        patterns=patterns_of(fields) or base.patterns,
        lease_ms=bounded(fields, "lease_ms", LEASE_MS[0], base.lease_ms, LEASE_MS[2]),
        attempts_max=bounded(fields, "attempts_max", ATTEMPTS[0], base.attempts_max, ATTEMPTS[2]),
        level=Level[choice(fields, "level", Level(base.level).name.lower()).upper()],
        lease_max_ms=bounded(fields, "lease_max_ms", LEASE_MAX_MS[0], base.lease_max_ms, LEASE_MAX_MS[2]),
        backoff=choice(fields, "backoff", base.backoff),
        backoff_ms=bounded(fields, "backoff_ms", BACKOFF_MS[0], base.backoff_ms, BACKOFF_MS[2]),
        backoff_max_ms=bounded(fields, "backoff_max_ms", BACKOFF_MAX_MS[0], base.backoff_max_ms, BACKOFF_MAX_MS[2]),
        jitter_pct=bounded(fields, "jitter_pct", JITTER_PCT[0], base.jitter_pct, JITTER_PCT[2]),
        order=choice(fields, "order", base.order),
        ack=choice(fields, "ack", base.ack),
        on_expire=choice(fields, "on_expire", base.on_expire),
        max_in_flight=bounded(fields, "max_in_flight", IN_FLIGHT[0], base.max_in_flight, IN_FLIGHT[2]),
        rate=bounded(fields, "rate", RATE[0], base.rate, RATE[2]),
        rate_ms=bounded(fields, "rate_ms", RATE_MS[0], base.rate_ms, RATE_MS[2]),
        expires_ms=bounded(fields, "expires_ms", GROUP_EXPIRES_MS[0], base.expires_ms, GROUP_EXPIRES_MS[2]),
    )
    if asked.lease_max_ms < asked.lease_ms:
        if fields.get("lease_max_ms") is not None:
            raise ProtocolError(
                Code.BAD_OPTION, f"lease_max_ms is at least lease_ms ({asked.lease_ms}), not {asked.lease_max_ms}"
            )
        asked = asked._replace(lease_max_ms=asked.lease_ms)
    if asked.order != "none" and not durable:
        raise ProtocolError(
            Code.BAD_OPTION,
            f"order {asked.order!r} needs a group, because a subscription without a group settles nothing",
        )
    if asked.order != "none" and asked.ack != "explicit":
        raise ProtocolError(Code.BAD_OPTION, f"order {asked.order!r} needs ack 'explicit', not {asked.ack!r}")
    if asked.max_in_flight and not (durable and asked.ack == "explicit"):
        raise ProtocolError(
            Code.BAD_OPTION,
            f"max_in_flight {asked.max_in_flight} needs a group and ack 'explicit': without, nothing is leased",
        )
    if asked.expires_ms and not durable:
        raise ProtocolError(
            Code.BAD_OPTION,
            f"expires_ms {asked.expires_ms} needs a group: a subscription without a group ends with its connection",
        )
    return asked


def _require_same(name: str, existing: GroupSettings, asked: GroupSettings) -> None:
    for field, have, want in zip(GroupSettings._fields, existing, asked, strict=True):
        if have != want:
            raise ProtocolError(
                Code.GROUP_MISMATCH,
                f"group {name!r} exists with {field} {_said(have)}, not {_said(want)}",
                field=field,
                have=str(have),
                want=str(want),
            )


def _said(value: Any) -> str:
    return " ".join(value) if isinstance(value, tuple) else repr(value)


def patterns_of(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The canonical patterns that a group or a service asks for; none when the field is absent."""
    value = fields.get("patterns")
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > PATTERNS_MAX or not all(isinstance(p, str) for p in value):
        raise ProtocolError(Code.BAD_OPTION, f"patterns is a list of at most {PATTERNS_MAX} texts")
    return tuple(dict.fromkeys(canonical(unaliased(pattern)) for pattern in value))
