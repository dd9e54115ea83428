"""Settings of topics: each field is checked, and an error names the field, the value and what is allowed."""

from collections.abc import Mapping
from typing import Any, Final

from fabric.records import TopicSettings
from fabric.router.fields import bounded
from fabric_protocol.bounds import HORIZON_MS, TOPIC_COUNT_MAX
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.names import DEAD, check_topic, unaliased

Fields = Mapping[str, Any]

NUMBERS: Final = {
    "max_age_ms": HORIZON_MS,
    "max_msgs": TOPIC_COUNT_MAX,
    "max_bytes": TOPIC_COUNT_MAX,
    "dedupe_ms": HORIZON_MS,
}
CHOICES: Final = {
    "on_full": ("refuse", "drop_old"),
    "keep": ("limits", "until_acked", "last_per_key"),
    "dedupe": ("window", "slide", "until_ack"),
}
SETTINGS: Final = (*NUMBERS, *CHOICES)
OWN: Final = "$"  # the topics of the hub begin with it


def topic_name(fields: Fields, field: str = "topic") -> str:
    """The topic that a field names: no pattern, and no topic of the hub but a topic of dead letters."""
    value = fields.get(field)
    if not isinstance(value, str) or not value:
        raise ProtocolError(Code.BAD_OPTION, f"{field} is missing: the name of a {field}")
    name = unaliased(value)
    check_topic(name)
    if name.startswith(OWN) and not (field == "topic" and name.startswith(DEAD)):
        raise ProtocolError(
            Code.FORBIDDEN, f"{field} {value!r} belongs to the hub: use a name that does not begin with $"
        )
    return name


def any_topic_name(fields: Fields) -> str:
    """The topic that INFO asks about, which may be a topic of the hub."""
    value = fields.get("name")
    if not isinstance(value, str) or not value:
        raise ProtocolError(Code.BAD_OPTION, "name is missing: the name of a topic")
    name = unaliased(value)
    check_topic(name)
    return name


def asked_settings(name: str, fields: Fields, base: TopicSettings) -> TopicSettings:
    """The settings that the fields ask for; an absent field means the setting of `base`."""
    asked = base._replace(
        max_age_ms=bounded(fields, "max_age_ms", 0, base.max_age_ms, NUMBERS["max_age_ms"]),
        max_msgs=bounded(fields, "max_msgs", 0, base.max_msgs, NUMBERS["max_msgs"]),
        max_bytes=bounded(fields, "max_bytes", 0, base.max_bytes, NUMBERS["max_bytes"]),
        on_full=_choice(fields, "on_full", base.on_full),
        keep=_choice(fields, "keep", base.keep),
        dedupe=_choice(fields, "dedupe", base.dedupe),
        dedupe_ms=bounded(fields, "dedupe_ms", 0, base.dedupe_ms, NUMBERS["dedupe_ms"]),
    )
    if name.startswith(DEAD) and asked.on_full == "refuse":
        if fields.get("on_full") is not None:
            raise ProtocolError(
                Code.BAD_OPTION,
                "on_full of a topic of dead letters is drop_old, not refuse: a dead letter cannot be refused",
            )
        asked = asked._replace(on_full="drop_old")
    return asked


def require_same(what: str, have: TopicSettings, want: TopicSettings) -> None:
    """Raise unless the settings are the same; the error has the differences."""
    differences = {
        field: [ours, theirs]
        for field, ours, theirs in zip(TopicSettings._fields, have, want, strict=True)
        if ours != theirs
    }
    if differences:
        said = ", ".join(f"{field} {ours!r}, not {theirs!r}" for field, (ours, theirs) in differences.items())
        raise ProtocolError(Code.CONFLICT, f"{what} exists with {said}", differences=differences)


def as_map(settings: TopicSettings) -> dict[str, Any]:
    return settings._asdict()


def _choice(fields: Fields, name: str, default: str) -> str:
    value = fields.get(name)
    if value is None:
        return default
    if value not in CHOICES[name]:
        raise ProtocolError(Code.BAD_OPTION, f"{name} is one of {', '.join(CHOICES[name])}, not {value!r:.60}")
    return str(value)
