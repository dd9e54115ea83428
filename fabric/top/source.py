"""Source: asks the hub for its pulse, and puts the answers into the form that the model takes.

A pulse has the rows that have changed. The lists of the hub have more fields, such as settings, and the topics without
settings; they are asked for at the start and from time to time. A hub without a pulse is asked for its lists each time.
A hub that counts more tells more: fields that a row does not have are shown as `-`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fabric.top.model import GROUPS, PAGES, SESSIONS, TOPICS, Change, Fields, Pulse
from fabric_client.errors import NotFound

if TYPE_CHECKING:
    from fabric_client import AsyncClient

GROUP_COUNTERS: Final = ("delivered", "acked", "retried", "released", "rejected", "lapsed", "expired", "dead")
SESSION_COUNTERS: Final = ("messages_in", "messages_out", "bytes_in", "bytes_out")
TOPIC_COUNTERS: Final = ("msgs_in", "bytes_in")
HUB_COUNTERS: Final = ("messages_in", "acked", "commits", "commit_us")  # among the totals of a pulse
SUMS: Final = ("ready", "in_flight", "retrying", "dead")  # fields of groups whose sums describe the hub
ASKS_MAX: Final = 3  # for one view: the hub may start again between two answers
PULSES_MAX: Final = 100  # for one view: so many answers have the rows of the largest hub
LISTS_S: Final = 10.0  # between two questions for the lists, which cost the hub more
NAMES: Final = {GROUPS: "group", TOPICS: "topic", SESSIONS: "session"}  # the field with the name of a row


class Source:
    def __init__(self, fab: "AsyncClient") -> None:
        self._fab = fab
        self._session: object = fab.hub.get("session")
        self._is_restarted = False
        self._has_pulse = True
        self._listed_s = float("-inf")  # when the lists were asked for
        self._version = 0  # of the last pulse
        self._ahead_us = 0  # of the hub's clock
        self._hub: Fields = {}
        self._rows: dict[str, dict[str, Fields]] = {page: {} for page in PAGES}  # as the hub has told them, by key
        self._groups: dict[str, Change] = {}

    def has_restarted(self) -> bool:
        """Whether the last answer is of another session than the answer before: the hub may have started again."""
        return self._is_restarted

    async def ask(self, timeout_s: float) -> Pulse:
        """The state of the hub, of one session: answers before and after a restart are not mixed. Raises Timeout."""
        before = self._session
        for _ in range(ASKS_MAX):
            asked = self._fab.hub.get("session")
            if asked != self._session:
                self.begin_anew()
            pulse = await self._ask(timeout_s)
            self._session = asked
            if asked == self._fab.hub.get("session"):
                break
        self._is_restarted = before != self._session
        return pulse

    def begin_anew(self) -> None:
        """The next answer has all rows: the hub has started again, or the model has not got the last answer."""
        self._version, self._listed_s, self._has_pulse = 0, float("-inf"), True

    async def _ask(self, timeout_s: float) -> Pulse:
        if self._has_pulse and time.monotonic() < self._listed_s + LISTS_S:
            try:
                return await self._changes(timeout_s)
            except NotFound:  # the hub is older
                self._has_pulse = False
        pulse = await self._whole(timeout_s)
        self._listed_s = time.monotonic()
        return pulse

    async def _changes(self, timeout_s: float) -> Pulse:
        """What has changed since the last pulse. Nothing counts as told until all answers have come."""
        known, version, is_whole = self._rows, self._version, False
        told: dict[str, dict[str, Fields]] = {page: {} for page in PAGES}
        ended: dict[str, dict[str, None]] = {page: {} for page in PAGES}
        for _ in range(PULSES_MAX):
            answer = await self._fab.info("pulse", since=version, timeout=timeout_s)
            version, is_whole = answer["version"], is_whole or answer["reset"]
            for page, name in NAMES.items():
                for key in map(str, answer["gone"][page]):
                    told[page].pop(key, None)
                    ended[page][key] = None
                for row in answer[page]:
                    key = str(row[name])
                    told[page][key] = {**known[page].get(key, {}), **row}
                    ended[page].pop(key, None)
            if not answer["more"]:
                break
        return self._merged(answer["totals"], told, ended, version, is_whole)

    def _merged(
        self,
        totals: Fields,
        told: dict[str, dict[str, Fields]],
        ended: Mapping[str, Mapping[str, None]],
        version: int,
        is_whole: bool,
    ) -> Pulse:
        if is_whole:
            others = {
                key: row for key, row in self._rows[TOPICS].items() if not row.get("configured", "settings" in row)
            }
            self._rows = {**told, TOPICS: others | told[TOPICS]}
            self._groups, told = {}, self._rows
        for page, rows in self._rows.items():
            rows |= told[page]
            for key in ended[page]:
                rows.pop(key, None)
        changes = {page: [_CHANGE[page](row) for row in rows.values()] for page, rows in told.items()}
        self._groups |= {change.key: change for change in changes[GROUPS]}
        for key in ended[GROUPS]:
            self._groups.pop(key, None)
        self._version, now_us = version, totals["now_us"]
        self._ahead_us = now_us - time.time_ns() // 1000
        hub = {**self._hub, **{name: value for name, value in totals.items() if name in self._hub}}
        counters = {name: totals[name] for name in HUB_COUNTERS if name in totals}
        return self._pulse(hub, counters, now_us, changes, {page: list(keys) for page, keys in ended.items()}, is_whole)

    def _pulse(
        self,
        hub: Fields,
        counters: Mapping[str, float],
        now_us: int,
        changes: Mapping[str, Sequence[Change]],
        ended: Mapping[str, Sequence[str]],
        is_whole: bool,
    ) -> Pulse:
        groups = list(self._groups.values())
        hub = {**hub, **{name: total(groups, name) for name in SUMS}}
        return Pulse(hub, {**sums(groups), **counters}, now_us, changes, ended, is_whole)

    async def _whole(self, timeout_s: float) -> Pulse:
        now_us = time.time_ns() // 1000 + self._ahead_us
        hub = await self._fab.info("hub", timeout=timeout_s)
        counters = await self._fab.info("counters", timeout=timeout_s)
        dead = {row["group"]: row["count"] for row in await self._all("dlq", "groups", timeout_s)}
        listed = {page: await self._all(page, page, timeout_s) for page in PAGES}
        listed[GROUPS] = [{**row, "dead": dead.get(row["group"], 0)} for row in listed[GROUPS]]
        others = (await self._fab.info("topics", n=1, timeout=timeout_s)).get("others", [])
        known = {row["topic"] for row in listed[TOPICS]}  # all topics; in an older hub those with settings
        listed[TOPICS] += [{"topic": name} for name in others if name not in known]
        self._hub = hub
        self._rows = {page: {str(row[NAMES[page]]): row for row in rows} for page, rows in listed.items()}
        changes = {page: [_CHANGE[page](row) for row in rows] for page, rows in listed.items()}
        self._groups = {change.key: change for change in changes[GROUPS]}
        return self._pulse(hub, counters, now_us, changes, {}, True)

    async def _all(self, what: str, name: str, timeout_s: float) -> list[dict[str, Any]]:
        """All rows of a list, from all its pages."""
        rows: list[dict[str, Any]] = []
        after: dict[str, Any] = {}
        while True:
            page = await self._fab.info(what, timeout=timeout_s, **after)
            rows += page[name]
            if not page.get("more") or page.get("next") is None:
                return rows
            after = {"after": page["next"]}


def group(row: Fields) -> Change:
    """A group. Without `ready`, the hub has not counted which messages match: then `behind` is the highest number."""
    counters = rising(row, GROUP_COUNTERS)
    fields = {
        **row,
        "ready": row.get("ready", row.get("behind")),
        "ready_exact": row.get("ready_exact", "ready" in row),
        "in_flight": row.get("in_flight", row.get("outstanding")),
        "retrying": row.get("retrying", row.get("redelivering")),
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


_CHANGE: Final[dict[str, Callable[[Fields], Change]]] = {GROUPS: group, TOPICS: topic, SESSIONS: session}


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
