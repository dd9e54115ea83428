"""ADMIN of queues: a queue is a topic with `keep: until_acked` and a group of the same name.

A topic and a group can do the same; a queue is one command instead of two.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fabric.records import GroupSettings, TopicSettings
from fabric.router.admin import groups as admin_groups
from fabric.router.admin.topics import emptied, is_planned
from fabric.router.topics.removal import removal
from fabric.router.topics.settings import SETTINGS, asked_settings, require_same, topic_name
from fabric.router.turn import Turn
from fabric_protocol.errors import Code, ProtocolError

if TYPE_CHECKING:
    from fabric.router.router import Router

Fields = Mapping[str, Any]

QUEUE: Final = TopicSettings(keep="until_acked", queue=True)
OF_TOPIC: Final = tuple(name for name in SETTINGS if name != "keep")
# The group of a queue does not end by itself: without it, no consumer would get the messages of the topic.
OF_GROUP: Final = tuple(name for name in GroupSettings._fields if name not in ("patterns", "expires_ms"))


def create(router: "Router", fields: Fields, now: float, turn: Turn) -> dict[str, Any]:
    """Create topic and group, or raise and create neither: all checks come before all changes."""
    name = topic_name(fields, "queue")
    of_topic = {field: value for field, value in fields.items() if field in OF_TOPIC}
    of_group = {field: value for field, value in fields.items() if field in OF_GROUP or field == "start"}
    existing = router.topics.settings_of(name) if name in router.topics.tracked else None
    asked = asked_settings(name, of_topic, existing._replace(keep=QUEUE.keep, queue=True) if existing else QUEUE)
    if existing is not None:
        require_same(f"topic {name!r}", existing, asked)
    else:
        router.topics.require_place()
    of_group |= {"group": name, "patterns": [name]}
    group = admin_groups.create(router, of_group, now, turn)
    topic = router.topics.create(name, of_topic, QUEUE)
    return {"queue": name, "created": topic["created"] or group["created"], "topic": topic, "group": group}


def delete(router: "Router", fields: Fields, now: float, turn: Turn) -> dict[str, Any]:
    """Delete the topic and the group, and notify the consumers."""
    name = _find(router, topic_name(fields, "queue"))
    router.shared.change.begin()
    if name in router.groups:
        admin_groups.delete(router, {"group": name}, now, turn)
    return {"queue": name, **emptied(router, router.topics.delete(name, turn, queue=True))}


def purge(router: "Router", fields: Fields, now: float, turn: Turn) -> dict[str, Any]:
    """Remove all messages of a queue. With `dry_run`, only count them."""
    name = _find(router, topic_name(fields, "queue"))
    if is_planned(fields):
        return {"queue": name, **removal(router.topics, router.shared, name, None, fields)}
    return {"queue": name, **emptied(router, router.topics.purge(name, turn))}


def _find(router: "Router", name: str) -> str:
    if not router.topics.settings_of(name).queue:
        raise ProtocolError(Code.NOT_FOUND, f"there is no queue {name!r}")
    return name
