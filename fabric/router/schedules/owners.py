"""Owners of schedules: which schedule a command means, which may be published, and what INFO tells of one."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from fabric.records import SaveSchedule
from fabric.router.access.identity import LOCAL_NAME
from fabric.router.access.principal import Principal, Principals
from fabric.router.access.sources import AUDIT
from fabric.router.access.usage import SCHEDULES_AHEAD_S
from fabric.router.fields import bounded, text
from fabric.router.schedules.options import NAME_CHARS_MAX, shown
from fabric.router.sessions.session import Session
from fabric.router.turn import Turn
from fabric_protocol.block import Block
from fabric_protocol.bounds import NUMBER_MAX
from fabric_protocol.errors import Code, ProtocolError

RIGHT: Final = "schedules"  # of an administrator, to the schedules of all owners


class Wanted(NamedTuple):
    """The schedule that CANCEL names."""

    number: int  # 0: by name
    name: str | None
    owner: str

    @classmethod
    def of(cls, fields: Mapping[str, Any], principal: Principal) -> "Wanted":
        number, name, owner = fields.get("id"), fields.get("name"), owner_field(fields)
        if (number is None) == (name is None):
            raise ProtocolError(Code.BAD_OPTION, "CANCEL names a schedule by its id or by its name: give one of them")
        if name is not None and not (isinstance(name, str) and 0 < len(name) <= NAME_CHARS_MAX):
            raise ProtocolError(Code.BAD_OPTION, f"name is text of 1..{NAME_CHARS_MAX} characters, not {name!r:.60}")
        if owner is not None and name is None:
            raise ProtocolError(Code.BAD_OPTION, "owner goes with a name: an id names a schedule alone")
        return cls(bounded(fields, "id", 1, 0, NUMBER_MAX), name, owner or principal.name)


def owner_field(fields: Mapping[str, Any]) -> str | None:
    return None if fields.get("owner") is None else text(fields, "owner", "", NAME_CHARS_MAX)


def refusal(principals: Principals, schedule: SaveSchedule, block: Block) -> str:
    """Why a schedule that is due may not be published; empty: it may."""
    owner = principals.find(schedule.owner)
    if owner is None:
        return f"principal {schedule.owner!r} does not exist any more"
    if not owner.may_publish(block.topics):
        topic = next(topic for topic in block.topics if not owner.may_publish((topic,)))
        return f"principal {schedule.owner!r} may not publish to topic {topic!r} any more"
    return ""


def excess(principals: Principals | None, schedule: SaveSchedule, block: Block, now: float) -> str:
    """Why a schedule that repeats misses a time: its owner is far behind its limits. Empty: it counts for them."""
    owner = principals.find(schedule.owner) if principals is not None else None
    if owner is not None and owner.usage.is_limited:
        try:
            owner.usage.spend(block.count, len(block.raw), now, SCHEDULES_AHEAD_S)
        except ProtocolError as error:
            return f"schedule {schedule.id} of principal {schedule.owner!r} has missed a time: {error}"
    return ""


def audit(session: Session, kind: str, why: str, turn: Turn) -> None:
    who = {"principal": session.principal.name, "address": session.connected_as.address, **session.identity}
    code = {"code": Code.NOT_FOUND.name} if kind == "refused" else {}
    turn.advise(AUDIT, kind=kind, verb="CANCEL", why=why, **{**who, **code})


def described(schedule: SaveSchedule) -> dict[str, Any]:
    block = Block(schedule.block)
    row: dict[str, Any] = {
        "id": schedule.id,
        "due_us": shown(schedule.due_us),
        "topic": block.topics[0],
        "topics": block.n_topics,
        "count": block.count,
        "bytes": block.payload_bytes(),
    }
    for field in ("ttl_ms", "every_ms", "cron", "name"):
        if value := getattr(schedule, field):
            row[field] = value
    if schedule.owner != LOCAL_NAME:
        row["owner"] = schedule.owner
    return row
