"""The source: rows of the hub in the form of the model, and answers that are not mixed across a restart."""

import asyncio
from typing import Any

from fabric.top.model import GROUPS, SESSIONS, TOPICS
from fabric.top.source import Source, group, session, topic
from fabric_client.errors import NotFound

ROW: dict[str, Any] = {
    "group": "billing", "behind": 40, "outstanding": 2, "redelivering": 1, "expired": 3, "on_expire": "drop",
}  # fmt: skip
COUNTS: dict[str, Any] = {
    "ready": 10, "ready_exact": True, "in_flight": 2, "retrying": 1,
    "counters": {"since_us": 1, "delivered": 60, "acked": 50, "rejected": 4, "expired": 3, "dead": 5},
}  # fmt: skip


def test_a_hub_that_does_not_count_tells_the_most_that_can_wait() -> None:
    change = group({**ROW, "dead": 7})
    assert (change.key, change.label) == ("billing", "billing")
    wanted = {"ready": 40, "ready_exact": False, "in_flight": 2, "retrying": 1, "dead": 7}
    assert {name: change.fields[name] for name in wanted} == wanted
    assert "arrived" not in change.counters


def test_what_has_arrived_is_what_waits_and_what_is_settled() -> None:
    assert group({**ROW, **COUNTS}).counters["arrived"] == (10 + 2 + 1) + (50 + 5 + 3)
    assert group({**ROW, **COUNTS, "on_expire": "dead"}).counters["arrived"] == (10 + 2 + 1) + (50 + 5)
    assert group({**ROW, **COUNTS, "ack": "auto"}).counters["arrived"] == (10 + 2 + 1) + (60 + 3)
    assert group({**ROW, **COUNTS}).fields["ready_exact"] is True


def test_topics_and_sessions() -> None:
    change = topic({"topic": "prices", "msgs": 4, "settings": {"keep": "limits"}, "counters": {"msgs_in": 9}})
    assert (change.key, change.fields["keep"], change.counters) == ("prices", "limits", {"msgs_in": 9})
    change = session({"session": 12, "client": "billing-7", "messages_in": 3})
    assert (change.key, change.label, change.counters) == ("12", "billing-7", {"messages_in": 3})


class Hub:
    """Answers INFO as a hub does; it starts again before some of its answers."""

    def __init__(self, starts_before: int = -1) -> None:
        self.hub = {"session": b"1"}
        self.asked: list[str] = []
        self._starts_before = starts_before
        self.pulses: list[dict[str, Any]] = []  # the answers; none: the hub is older, and knows no pulse
        self.sinces: list[int] = []

    def _pulse(self, since: int) -> dict[str, Any]:
        self.sinces.append(since)
        if not self.pulses:
            raise NotFound("INFO knows hub, groups, not 'pulse'")
        answer: dict[str, Any] = {"totals": {"now_us": 1_000, "last_seq": 6, "messages_in": 101, "commits": 3}}
        gone: dict[str, list[Any]] = {"groups": [], "topics": [], "sessions": []}
        answer |= {**gone, "gone": gone, "reset": False, "more": False, "version": since + 1}
        return {**answer, **self.pulses.pop(0)}

    async def info(self, what: str, *, timeout: float, **fields: Any) -> dict[str, Any]:
        if len(self.asked) == self._starts_before:
            self.hub = {"session": b"2"}
        self.asked.append(what)
        match what, fields:
            case "pulse", _:
                return self._pulse(fields["since"])
            case "groups", {"after": "a"}:
                return {"groups": [{**ROW, **COUNTS, "group": "b"}], "more": False}
            case "groups", _:
                return {"groups": [{**ROW, **COUNTS, "group": "a"}], "more": True, "next": "a"}
            case "topics", _:
                return {"topics": [{"topic": "prices"}], "others": ["orders"]}
            case "sessions", _:
                return {"sessions": [{"session": 1, "client": "c"}]}
            case "dlq", _:
                return {"groups": [{"group": "b", "count": 9}]}
            case "counters", _:
                return {"messages_in": 100}
        return {"last_seq": 5}


def test_all_pages_of_all_lists_are_asked_for() -> None:
    source = Source(Hub())  # type: ignore[arg-type]
    pulse = asyncio.run(source.ask(1.0))
    keys = {page: [change.key for change in rows] for page, rows in pulse.rows.items()}
    assert keys == {GROUPS: ["a", "b"], TOPICS: ["prices", "orders"], SESSIONS: ["1"]}
    assert pulse.hub == {"last_seq": 5, "ready": 20, "in_flight": 4, "retrying": 2, "dead": 9}
    assert pulse.counters == {"messages_in": 100, "messages_out": 120, "acked": 100}
    assert pulse.is_whole
    assert not source.has_restarted()


def test_answers_before_and_after_a_restart_are_not_mixed() -> None:
    hub = Hub(starts_before=4)
    source = Source(hub)  # type: ignore[arg-type]
    asyncio.run(source.ask(1.0))
    assert hub.asked.count("counters") == 2
    assert source.has_restarted()
    asyncio.run(source.ask(1.0))
    assert not source.has_restarted()


WHOLE: dict[str, Any] = {
    "reset": True, "groups": [{"group": "a", "ready": 4}, {"group": "b", "ready": 5}], "topics": [{"topic": "prices"}],
    "sessions": [{"session": 1, "client": "c"}], "version": 10,
}  # fmt: skip


def watched(hub: Hub) -> Source:
    """A source that has asked for the lists, and once for a pulse with all rows."""
    source = Source(hub)  # type: ignore[arg-type]
    asyncio.run(source.ask(1.0))
    hub.pulses.append(WHOLE)
    assert asyncio.run(source.ask(1.0)).is_whole
    return source


def test_after_the_lists_only_changes_are_asked_for() -> None:
    hub = Hub()
    source = watched(hub)
    hub.asked.clear()
    hub.pulses.append({"groups": [{"group": "a", "ready": 7, "dead": 2}], "version": 12})
    pulse = asyncio.run(source.ask(1.0))
    assert hub.asked == ["pulse"]
    assert hub.sinces == [0, 10]
    assert not pulse.is_whole
    (change,) = pulse.rows[GROUPS]
    assert (change.key, change.fields["ready"], change.fields["dead"]) == ("a", 7, 2)
    assert change.fields["on_expire"] == "drop"  # as the list has told
    assert pulse.hub == {"last_seq": 6, "ready": 12, "in_flight": 4, "retrying": 2, "dead": 11}
    assert pulse.counters == {"messages_in": 101, "commits": 3, "messages_out": 120, "acked": 100}
    assert pulse.now_us == 1_000


def test_a_pulse_with_all_rows_keeps_topics_without_settings() -> None:
    hub = Hub()
    source = watched(hub)
    hub.pulses.append({**WHOLE, "groups": WHOLE["groups"][:1]})
    pulse = asyncio.run(source.ask(1.0))
    keys = {page: sorted(change.key for change in rows) for page, rows in pulse.rows.items()}
    assert keys == {GROUPS: ["a"], TOPICS: ["orders", "prices"], SESSIONS: ["1"]}
    assert pulse.hub["ready"] == 4


def test_answers_of_one_view_are_put_together() -> None:
    hub = Hub()
    source = watched(hub)
    hub.pulses += [
        {"groups": [{"group": "x"}, {"group": "a", "ready": 1}], "more": True, "version": 12},
        {"gone": {"groups": ["x", "b"], "topics": [], "sessions": [1]}, "groups": [{"group": "a", "ready": 2}]},
    ]
    pulse = asyncio.run(source.ask(1.0))
    assert hub.sinces == [0, 10, 12]
    assert [(change.key, change.fields["ready"]) for change in pulse.rows[GROUPS]] == [("a", 2)]
    assert pulse.ended == {GROUPS: ["x", "b"], TOPICS: [], SESSIONS: ["1"]}
    assert pulse.hub["ready"] == 2


def test_a_pulse_that_is_not_complete_is_asked_for_again() -> None:
    hub = Hub()
    source = watched(hub)
    hub.pulses.append({"groups": [{"group": "a", "ready": 1}], "more": True, "version": 12})
    asyncio.run(source.ask(1.0))  # the second answer fails, and the lists are asked for
    source.begin_anew()
    hub.pulses.append(WHOLE)
    hub.asked.clear()
    assert asyncio.run(source.ask(1.0)).is_whole
    assert "groups" in hub.asked
    asyncio.run(source.ask(1.0))
    assert hub.sinces[-1] == 0


def test_a_hub_without_a_pulse_is_asked_for_its_lists() -> None:
    hub = Hub()
    source = Source(hub)  # type: ignore[arg-type]
    for _ in range(3):
        assert asyncio.run(source.ask(1.0)).is_whole
    assert hub.asked.count("pulse") == 1
    assert hub.asked.count("counters") == 3


def test_a_hub_that_has_started_again_is_asked_for_its_lists() -> None:
    hub = Hub()
    source = watched(hub)
    hub.hub = {"session": b"2"}
    hub.asked.clear()
    assert asyncio.run(source.ask(1.0)).is_whole
    assert "pulse" not in hub.asked
    assert source.has_restarted()
