"""Queues: a topic that keeps its messages until they are acked, and the group of the same name that works on them.

There is nothing about a queue that one could not do with a topic and a group; it is one command instead of two, and
one name.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fabric.records import GroupSettings, TopicSettings
from fabric.router.admin import groups as admin_groups
from fabric.router.topics.settings import SETTINGS, asked_settings, refuse_unknown, require_same, topic_name
from fabric.router.turn import Out
from fabric_protocol.errors import Code, ProtocolError

if TYPE_CHECKING:
    from fabric.router.router import Router

Fields = Mapping[str, Any]

QUEUE: Final = TopicSettings(keep="until_acked", queue=True)
OF_TOPIC: Final = tuple(name for name in SETTINGS if name != "keep")
OF_GROUP: Final = tuple(name for name in GroupSettings._fields if name != "patterns")


def admin(router: "Router", op: str, fields: Fields) -> dict[str, Any]:
    """ADMIN of queues. Raises when it cannot be done, and then nothing was."""
    match op:
        case "queue.create":
            refuse_unknown(op, fields, ("queue", "start", *OF_TOPIC, *OF_GROUP))
            return _create(router, topic_name(fields, "queue"), fields)
        case "queue.delete":
            refuse_unknown(op, fields, ("queue",))
            return _delete(router, _find(router, topic_name(fields, "queue")))
        case "queue.purge":
            refuse_unknown(op, fields, ("queue",))
            name = _find(router, topic_name(fields, "queue"))
            return {"queue": name, **router.topics.purge(name)}
    raise ProtocolError(Code.NOT_FOUND, f"ADMIN has no op {op!r}; queues have queue.create, .delete and .purge")


def _create(router: "Router", name: str, fields: Fields) -> dict[str, Any]:
    """Both or neither: whatever could be wrong with one is found out before the other is made."""
    of_topic = {field: value for field, value in fields.items() if field in OF_TOPIC}
    of_group = {field: value for field, value in fields.items() if field in OF_GROUP or field == "start"}
    existing = router.topics.settings_of(name) if name in router.topics.tracked else None
    asked = asked_settings(name, of_topic, existing._replace(keep=QUEUE.keep, queue=True) if existing else QUEUE)
    if existing is not None:
        require_same(f"topic {name!r}", existing, asked)
    else:
        router.topics.require_place()
    of_group |= {"group": name, "patterns": [name]}
    group = admin_groups.create(router, of_group, router.clock.now, [])
    router.topics.groups_changed()
    topic = router.topics.create(name, of_topic, QUEUE)
    return {"queue": name, "created": topic["created"] or group["created"], "topic": topic, "group": group}


def _delete(router: "Router", name: str) -> dict[str, Any]:
    out: Out = []
    router.change.begin()
    if name in router.groups:
        admin_groups.delete(router, {"group": name}, router.clock.now, out)
    for peer, message in out:
        router.buffer.answer(peer, message)
    router.topics.groups_changed()
    return {"queue": name, **router.topics.delete(name, queue=True)}


def _find(router: "Router", name: str) -> str:
    if not router.topics.settings_of(name).queue:
        raise ProtocolError(Code.NOT_FOUND, f"there is no queue {name!r}")
    return name
