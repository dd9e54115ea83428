"""Source: asks the hub for its lists, and puts the answers into the form that the model takes.

A hub that counts more tells more: fields that a row does not have are shown as `-`.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fabric.top.model import GROUPS, SESSIONS, TOPICS, Change, Fields, Pulse

if TYPE_CHECKING:
    from fabric_client import AsyncClient

GROUP_COUNTERS: Final = ("delivered", "acked", "retried", "released", "rejected", "lapsed", "expired", "dead")
SESSION_COUNTERS: Final = ("messages_in", "messages_out", "bytes_in", "bytes_out")
TOPIC_COUNTERS: Final = ("msgs_in", "bytes_in")
SUMS: Final = ("ready", "in_flight", "retrying", "dead")  # fields of groups whose sums describe the hub
ASKS_MAX: Final = 3  # for one view: the hub may start again between two answers


class Source:
    def __init__(self, fab: "AsyncClient") -> None:
        self._fab = fab
        self._session: object = fab.hub.get("session")
        self._is_restarted = False

    def has_restarted(self) -> bool:
        """Whether the last answer is of another session than the answer before: the hub may have started again."""
        return self._is_restarted

    async def ask(self, timeout_s: float) -> Pulse:
        """The state of the hub, of one session: answers before and after a restart are not mixed. Raises Timeout."""
        before = self._session
        for _ in range(ASKS_MAX):
            asked = self._fab.hub.get("session")
            pulse = await self._whole(timeout_s)
            self._session = self._fab.hub.get("session")
            if asked == self._session:
                break
        self._is_restarted = before != self._session
        return pulse

    async def _whole(self, timeout_s: float) -> Pulse:
        now_us = time.time_ns() // 1000
        hub = await self._fab.info("hub", timeout=timeout_s)
        counters = await self._fab.info("counters", timeout=timeout_s)
        dead = {row["group"]: row["count"] for row in await self._rows("dlq", "groups", timeout_s)}
        groups = [group(row, dead) for row in await self._rows("groups", "groups", timeout_s)]
        topics = [topic(row) for row in await self._rows("topics", "topics", timeout_s)]
        others = (await self._fab.info("topics", n=1, timeout=timeout_s)).get("others", [])
        sessions = [session(row) for row in await self._rows("sessions", "sessions", timeout_s)]
        return Pulse(
            {**hub, **{name: total(groups, name) for name in SUMS}},
            {**sums(groups), **counters},
            now_us,
            {GROUPS: groups, TOPICS: topics + [topic({"topic": name}) for name in others], SESSIONS: sessions},
            is_whole=True,
        )

    async def _rows(self, what: str, name: str, timeout_s: float) -> list[dict[str, Any]]:
        """All rows of a list, from all its pages."""
        rows: list[dict[str, Any]] = []
        after: dict[str, Any] = {}
        while True:
            page = await self._fab.info(what, timeout=timeout_s, **after)
            rows += page[name]
            if not page.get("more") or page.get("next") is None:
                return rows
            after = {"after": page["next"]}


def group(row: Fields, dead: Mapping[str, int]) -> Change:
    """A group. Without `ready`, the hub has not counted which messages match: then `behind` is the highest number."""
    counters = rising(row, GROUP_COUNTERS)
    fields = {
        **row,
        "ready": row.get("ready", row.get("behind")),
        "ready_exact": row.get("ready_exact", "ready" in row),
        "in_flight": row.get("in_flight", row.get("outstanding")),
        "retrying": row.get("retrying", row.get("redelivering")),
        "dead": dead.get(row["group"], 0),
    }
    if "acked" in counters:
        unsettled = sum(fields[name] or 0 for name in ("ready", "in_flight", "retrying"))
        counters["arrived"] = unsettled + settled(row, counters)
    return Change(row["group"], row["group"], fields, counters)


def settled(row: Fields, counters: Mapping[str, float]) -> float:
    """Messages that the group has finished: with what waits and is in flight, the messages that have arrived."""
    names = ["delivered"] if row.get("ack") == "auto" else ["acked", "dead"]
    if row.get("on_expire") != "dead":  # otherwise they are among the dead
        names.append("expired")
    return sum(counters.get(name, 0) for name in names)


def topic(row: Fields) -> Change:
    fields = {**row, **row.get("settings", {})}
    return Change(row["topic"], row["topic"], fields, rising(row, TOPIC_COUNTERS))


def session(row: Fields) -> Change:
    return Change(str(row["session"]), row["client"], row, rising(row, SESSION_COUNTERS))


def rising(row: Fields, names: Sequence[str]) -> dict[str, float]:
    """The counters of a row: in a map of their own, or among its fields."""
    found = row.get("counters", row)
    return {name: found[name] for name in names if isinstance(found.get(name), int)}


def total(groups: Sequence[Change], name: str) -> int:
    return sum(change.fields[name] or 0 for change in groups)


def sums(groups: Sequence[Change]) -> dict[str, float]:
    """The counters of the hub that its groups have."""
    if not any("acked" in change.counters for change in groups):
        return {}
    return {
        name: sum(change.counters.get(counter, 0) for change in groups)
        for name, counter in (("messages_out", "delivered"), ("acked", "acked"))
    }
