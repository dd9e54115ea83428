"""ADMIN of groups: create, update, delete, seek, settle, pause, resume and refresh."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fabric.records import GroupSettings
from fabric.router import enforcement
from fabric.router.fields import changed_settings, dry_run, group_settings, is_number
from fabric.router.groups.group import Group
from fabric.router.groups.positions import Position
from fabric.router.groups.up_to import leased, unsettled
from fabric.router.ranges import Ranges
from fabric.router.turn import Turn
from fabric_protocol import messages as m
from fabric_protocol.bounds import NUMBER_MAX
from fabric_protocol.errors import Code, ProtocolError

if TYPE_CHECKING:
    from fabric.router.router import Router

Fields = Mapping[str, Any]


def find(router: "Router", fields: Fields, name: str = "group") -> Group:
    """The durable group that a field names."""
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise ProtocolError(Code.BAD_OPTION, f"{name} is missing: the name of a group")
    group = router.groups.get(value)
    if group is None or not group.durable:
        raise ProtocolError(Code.NOT_FOUND, f"there is no group {value!r}")
    return group


def as_map(settings: GroupSettings) -> dict[str, Any]:
    """Settings as fields of the wire."""
    return {**settings._asdict(), "patterns": list(settings.patterns), "level": m.Level(settings.level).name.lower()}


def create(router: "Router", fields: Fields, now: float, turn: Turn) -> dict[str, Any]:
    """Create a group. If it exists with the same settings, this succeeds."""
    name = fields.get("group")
    existing = router.groups.get(name) if isinstance(name, str) else None
    try:
        settings = group_settings(fields, existing.settings if existing else None, durable=True)
    except ProtocolError as error:
        if error.code == Code.GROUP_MISMATCH:
            raise ProtocolError(Code.CONFLICT, str(error), **error.fields) from None
        raise
    router.shared.change.begin()
    group = existing or router.dispatcher.create(name, settings, fields.get("start"))
    if existing is None:
        router.topics.groups_changed()
        enforcement.group_changed(router, group, turn)
        turn.advise("$sys.group.created", group=group.name)
    return {**_place(router, group), "created": existing is None, "settings": as_map(group.settings)}


def update(router: "Router", fields: Fields, now: float, turn: Turn) -> dict[str, Any]:
    """Change settings. A new pattern does not add messages that the group has passed."""
    group = find(router, fields)
    changes = {name: value for name, value in fields.items() if name != "group"}
    if not changes:
        raise ProtocolError(Code.BAD_OPTION, "group.update names no setting to change")
    settings = changed_settings(changes, group.settings)
    if settings != group.settings:
        router.shared.change.begin()
        router.dispatcher.update(group, settings, now, turn)
        router.topics.groups_changed()
        enforcement.group_changed(router, group, turn)
        turn.advise("$sys.group.updated", group=group.name, changed=sorted(changes))
    return {**_place(router, group), "settings": as_map(group.settings)}


def delete(router: "Router", fields: Fields, now: float, turn: Turn) -> dict[str, Any]:
    """Delete a group and its position, and notify its consumers. Its dead letters stay until they are discarded."""
    group = find(router, fields)
    router.shared.change.begin()
    for sub in list(group.members):
        notice = {"chan": sub.chan, "group": group.name, "why": "the group was deleted"}
        turn.send(sub.session.peer, m.Notice("unsubscribed", notice))
        router.leave(sub, turn, lost=False)
    _remove(router, group, turn)
    turn.advise("$sys.group.deleted", group=group.name)
    return {"group": group.name, "deleted": True}


def expire(router: "Router", group: Group, turn: Turn) -> None:
    """Delete a group that had no consumer for the time of its setting `expires_ms`. Its dead letters stay."""
    _remove(router, group, turn)
    router.counters["groups_expired"] += 1
    turn.advise("$sys.group.expired", group=group.name, expires_ms=group.settings.expires_ms)


def _remove(router: "Router", group: Group, turn: Turn) -> None:
    router.refreshes.forget(group, turn)
    router.dispatcher.delete(group, turn)
    router.topics.groups_changed()


def seek(router: "Router", fields: Fields, now: float, turn: Turn) -> dict[str, Any]:
    """Move a group to a position: its leases end and its failures are forgotten. With `dry_run`, only answer what would
    change."""
    group, is_dry_run = find(router, fields), dry_run(fields)
    if fields.get("to") is None:
        raise ProtocolError(Code.BAD_OPTION, "to is missing: the position to which the group is moved")
    to = router.dispatcher.position(group, fields["to"], "to")
    again, skipped = _meaning(group, to, router.shared.next_seq - 1)
    router.refreshes.require_all(group, skipped)
    meaning = {"before": group.position(), "again": again.size(), "skipped": skipped.size()}
    if is_dry_run:
        return {**_place(router, group), "cursor": to.cursor, **meaning}
    router.shared.change.begin()
    router.dispatcher.seek(group, to, turn)
    turn.advise("$sys.group.seeked", group=group.name, cursor=group.cursor)
    return {**_place(router, group), **meaning}


def settle(router: "Router", fields: Fields, now: float, turn: Turn) -> dict[str, Any]:
    """Settle all messages of a group up to a seq. With `dry_run`, only answer what would change."""
    group, is_dry_run, up_to = find(router, fields), dry_run(fields), fields.get("up_to")
    if not is_number(up_to):
        raise ProtocolError(Code.BAD_OPTION, f"up_to is a seq, 0..{NUMBER_MAX}, not {up_to!r:.60}")
    last_seq = min(fields["up_to"], router.shared.next_seq - 1)
    skipped = unsettled(group, last_seq)
    router.refreshes.require_all(group, skipped)
    meaning = {
        "before": group.floor,
        "settled": skipped.size(),
        "leased": leased(group, last_seq),
        "up_to": last_seq,
    }
    if not is_dry_run:
        router.shared.change.begin()
        router.dispatcher.settle_up_to(group, last_seq, turn)
        turn.advise("$sys.group.settled", group=group.name, up_to=last_seq, settled=meaning["settled"])
    return {**_place(router, group), **meaning}


def _meaning(group: Group, to: Position, last_seq: int) -> tuple[Ranges, Ranges]:
    """Settled messages that are delivered again and unsettled messages that are skipped, of all topics."""
    now, then = Ranges(group.open), Ranges(to.open)
    now.add(group.position(), last_seq + 1)
    then.add(to.cursor, last_seq + 1)
    return _without(then, now), _without(now, then)


def _without(some: Ranges, others: Ranges) -> Ranges:
    left = Ranges(some)
    for first, last in others:
        left.remove(first, last)
    return left


def pause(router: "Router", fields: Fields, now: float, turn: Turn) -> dict[str, Any]:
    return _pause(router, find(router, fields), turn, paused=True)


def resume(router: "Router", fields: Fields, now: float, turn: Turn) -> dict[str, Any]:
    return _pause(router, find(router, fields), turn, paused=False)


def _pause(router: "Router", group: Group, turn: Turn, *, paused: bool) -> dict[str, Any]:
    if group.paused != paused:
        router.shared.change.begin()
        router.dispatcher.pause(group, paused)
        turn.advise("$sys.group.paused" if paused else "$sys.group.resumed", group=group.name)
    return {"group": group.name, "paused": group.paused}


def refresh(router: "Router", fields: Fields, now: float, turn: Turn) -> dict[str, Any]:
    """Move a group back and tell its consumers to build their local copies anew."""
    group = find(router, fields)
    return router.refreshes.begin(group, fields, now, turn)


def _place(router: "Router", group: Group) -> dict[str, Any]:
    cursor = group.position()
    return {"group": group.name, "cursor": cursor, "floor": group.floor, "paused": group.paused}
