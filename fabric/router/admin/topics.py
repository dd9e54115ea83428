"""ADMIN of topics: create, update, delete and purge."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fabric.router.topics.settings import topic_name
from fabric.router.turn import Turn

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
    return emptied(router, router.topics.purge(topic_name(fields), turn))


def emptied(router: "Router", answer: dict[str, Any]) -> dict[str, Any]:
    """Forget the idempotency keys of a topic, because an administrator has removed its messages."""
    router.ids.forget(answer["topic"], router.shared.next_seq)
    return answer
