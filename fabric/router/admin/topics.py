"""ADMIN of topics: create, update, delete and purge."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fabric.router.fields import bounded, dry_run
from fabric.router.topics.removal import removal
from fabric.router.topics.settings import topic_name
from fabric.router.turn import Turn
from fabric_protocol.bounds import NUMBER_MAX
from fabric_protocol.errors import Code, ProtocolError

if TYPE_CHECKING:
    from fabric.router.router import Router

Fields = Mapping[str, Any]


def create(router: "Router", fields: Fields, now: float, turn: Turn) -> dict[str, Any]:
    return router.topics.create(topic_name(fields), fields)


def update(router: "Router", fields: Fields, now: float, turn: Turn) -> dict[str, Any]:
    return router.topics.update(topic_name(fields), fields)


def delete(router: "Router", fields: Fields, now: float, turn: Turn) -> dict[str, Any]:
    return emptied(router, router.topics.delete(topic_name(fields), turn))


def purge(router: "Router", fields: Fields, now: float, turn: Turn) -> dict[str, Any]:
    """Remove the messages of a topic: up to a seq, before a time, or all. With `dry_run`, only count them."""
    name, below = topic_name(fields), _below(router, fields, now)
    if is_planned(fields):
        return removal(router.topics, router.shared, name, below, fields)
    if below is None:
        return emptied(router, router.topics.purge(name, turn))
    return emptied(router, {**router.topics.purge(name, turn, below), "up_to": below - 1})


def _below(router: "Router", fields: Fields, now: float) -> int | None:
    """The seq below which all messages are removed; None: all messages are."""
    up_to, before_us = fields.get("up_to"), fields.get("before_us")
    if up_to is None and before_us is None:
        return None
    if up_to is not None and before_us is not None:
        raise ProtocolError(Code.BAD_OPTION, "topic.purge takes up_to (a seq) or before_us (a time): give one of them")
    shared = router.shared
    if before_us is None:
        return min(bounded(fields, "up_to", 0, 0, NUMBER_MAX), shared.next_seq - 1) + 1
    if bounded(fields, "before_us", 0, 0, NUMBER_MAX) > shared.clock.wall_us(now):
        return shared.next_seq
    return max(shared.reader.seek_time(before_us), 1)


def is_planned(fields: Fields) -> bool:
    """Whether a purge is a dry run."""
    if not dry_run(fields) and fields.get("after") is not None:
        raise ProtocolError(Code.BAD_OPTION, "after is for a dry run, which counts in steps: add dry_run: true")
    return dry_run(fields)


def emptied(router: "Router", answer: dict[str, Any]) -> dict[str, Any]:
    """Forget the idempotency keys and the numbers of messages that an administrator has removed."""
    name, floor = answer["topic"], answer.get("floor", router.shared.next_seq)
    router.ids.forget(name, floor)
    router.topics.tallies.remove(name, floor)
    return answer
