"""Advisories: the hub publishes them to the subscriptions that match."""

import json
from collections import Counter
from typing import Any

from fabric.router import advisories as advisories
from fabric.router.access.sources import OTHER_ADDRESSES, PERIOD_S, SOURCES_MAX, TOLD_MAX
from fabric.router.turn import ADVISED_MAX
from fabric_protocol import messages as m
from fabric_protocol.block import Block
from tests.router.world import BIG, World

P, C, A, L = b"P", b"C", b"A", b"L"


def world(*patterns: str, credit: int = 1000) -> World:
    w = World()
    for peer in (P, C, A, L):
        w.hello(peer, client=peer.decode())
    if patterns:
        w.sub(L, 1, *patterns, credit=credit)
    return w


def admin(w: World, op: str, **fields: Any) -> None:
    w.say(A, m.Admin(3, {"op": op, **fields}))


def news(w: World) -> list[tuple[str, dict[str, Any]]]:
    """(topic, fields) of what L heard; ordinals follow each other, and there is no seq."""
    rows, ordinal = [], 1
    for message in w.said[L]:
        if isinstance(message, m.Deliver):
            block = Block(message.block)
            block.verify()
            block.verify_stamp()
            assert message.first_ordinal == ordinal
            ordinal += block.count
            if block.topics[0].startswith("$sys."):
                assert (block.base_seq, block.ts_us) == (0, int(w.now * 1e6))
                rows.append((block.topics[0], json.loads(block.payloads()[0])))
    return rows


def test_the_life_of_a_group_is_told() -> None:
    w = world("$sys.group.#")
    admin(w, "group.create", group="g", patterns=["a"])
    admin(w, "group.create", group="g", patterns=["a"])
    admin(w, "group.update", group="g", lease_ms=5000)
    admin(w, "group.update", group="g", lease_ms=5000)
    admin(w, "group.pause", group="g")
    admin(w, "group.pause", group="g")
    admin(w, "group.resume", group="g")
    admin(w, "group.seek", group="g", to="first")
    admin(w, "group.delete", group="g")
    kinds = [topic.removeprefix("$sys.group.") for topic, _ in news(w)]
    assert kinds == ["created", "updated", "paused", "resumed", "seeked", "deleted"]
    assert all(fields["group"] == "g" for _, fields in news(w))


def test_the_audit_is_bounded_for_each_source() -> None:
    w = World()
    w.hello(L, ttl_ms=600_000, hb_ms=60_000)
    w.sub(L, 1, "$sys.audit", credit=10_000)

    def refuse(principal: str, address: str, count: int) -> None:
        for _ in range(count):
            w.router.audit("refused", principal=principal, address=address, code="FORBIDDEN")
        w.pass_time(0)

    refuse("noisy", "10.0.0.1", TOLD_MAX + 50)
    refuse("quiet", "10.0.0.1", 1)
    for number in range(SOURCES_MAX + 50):
        refuse("", f"10.1.{number // 256}.{number % 256}", TOLD_MAX // 25)
    refuse("late", "10.0.0.1", 1)
    told = Counter(fields.get("source", fields.get("principal")) for _, fields in news(w))
    assert told["noisy"] == TOLD_MAX, "the last one says that there are more"
    assert {fields["source"] for _, fields in news(w) if fields["kind"] == "more"} == {"noisy", OTHER_ADDRESSES}
    assert told["quiet"] == told["late"] == 1, "strangers with many addresses do not take the places of principals"
    w.said[L].clear()
    w.pass_time(PERIOD_S)
    refuse("noisy", "10.0.0.1", 1)
    assert len(w.said[L]) == 1


def test_a_group_that_a_consumer_makes_is_told_too() -> None:
    w = world("$sys.group.created")
    w.sub(C, 1, "a", group="g")
    w.sub(C, 2, "a")
    assert news(w) == [("$sys.group.created", {"group": "g", "session": 2, "client": "C"})]


def test_dead_letters_and_lost_sessions_are_told() -> None:
    w = world("$sys.#")
    w.sub(C, 1, "a", group="g")
    w.pub(P, "a", "1", "2")
    w.settle(C, 1, m.Verdict.REJECT, 1, 2)
    assert ("$sys.dlq", {"group": "g", "first_seq": 3, "count": 2}) in news(w)
    admin(w, "session.kick", client="C")
    told = {"op": "session.kick", "kicked": 1, "session": 3, "client": "A"}
    assert news(w)[-3:] == [
        ("$sys.session.lost", {"session": 2, "client": "C"}),
        ("$sys.admin", told),
        ("$sys.audit", {"kind": "admin", "principal": "local", "address": "", **told}),
    ]


def test_sessions_are_told() -> None:
    w = world("$sys.session.*")
    w.hello(b"N", client="N")
    w.say(b"N", m.Goodbye(1))
    assert [topic for topic, _ in news(w)] == ["$sys.session.opened", "$sys.session.closed"]


def test_lapsed_leases_are_told() -> None:
    w = world("$sys.lapsed")
    w.sub(C, 1, "a", group="g", lease_ms=1000)
    w.pub(P, "a", "1", "2")
    w.pass_time(2)
    assert news(w) == [("$sys.lapsed", {"group": "g", "count": 2, "session": 2, "client": "C"})]


def test_refusals_are_told() -> None:
    w = world("$sys.refused")
    admin(w, "group.pause", group="nope")
    why = "there is no group 'nope'"
    assert news(w) == [("$sys.refused", {"code": "NOT_FOUND", "why": why, "session": 3, "client": "A"})]


def test_what_an_administrator_does_is_told_and_looking_is_not() -> None:
    w = world("$sys.admin")
    admin(w, "group.create", group="g", patterns=["a"])
    admin(w, "group.seek", group="g", to="new", dry_run=True)
    admin(w, "dlq.list", group="g")
    admin(w, "topic.create", topic="t", max_msgs=2)
    admin(w, "queue.create", queue="q")
    admin(w, "hub.update", events=True)
    who = {"session": 3, "client": "A"}
    assert news(w) == [
        ("$sys.admin", {"op": "group.create", "group": "g", "created": True, "cursor": 1, **who}),
        ("$sys.admin", {"op": "topic.create", "topic": "t", "created": True, **who}),
        ("$sys.admin", {"op": "queue.create", "queue": "q", "created": True, **who}),
        ("$sys.admin", {"op": "hub.update", "events": True, "advisories": True, **who}),
    ]


def test_messages_that_a_group_will_not_get_are_told() -> None:
    w = world("$sys.gap")
    w.sub(C, 1, "a", group="g", credit=0)
    w.pub(P, "a", "1", "2", "3")
    w.router.trimmed(3)
    w.router.take_frames()
    w.pass_time(0.1)
    assert [(topic, fields["group"], fields["last_seq"]) for topic, fields in news(w)] == [("$sys.gap", "g", 2)]


def test_a_full_topic_is_told() -> None:
    w = world("$sys.topic.*")
    admin(w, "topic.create", topic="a", max_msgs=2)
    w.pub(P, "a", "1", "2")
    w.pub(P, "a", "3")
    assert news(w) == [("$sys.topic.full", {"topic": "a", "msgs": 2, "bytes": 2})]


def test_advisories_and_messages_share_one_count_of_ordinals() -> None:
    w = world("$sys.group.*", "a")
    for i in range(5):
        w.pub(P, "a", str(i))
        admin(w, "group.create", group=f"g{i}", patterns=["x"])
    assert len(news(w)) == 5
    assert [body for body in w.bodies(L) if len(body) == 1] == ["0", "1", "2", "3", "4"]


def test_advisories_are_not_journaled_and_not_given_to_groups() -> None:
    w = world("$sys.group.*")
    w.sub(C, 1, "$sys.#", group="g")
    admin(w, "group.pause", group="g")
    assert len(news(w)) == 2
    assert not any(isinstance(x, m.Deliver) for x in w.said[C])
    assert w.reader.blocks == []


def test_a_subscription_without_credit_misses_advisories_and_they_are_counted() -> None:
    w = world("$sys.group.*", credit=1)
    for i in range(3):
        admin(w, "group.create", group=f"g{i}", patterns=["x"])
    assert len(news(w)) == 1
    assert w.router.counters["advisories_dropped"] == 2
    w.say(L, m.Credit(1, 10, BIG))
    admin(w, "group.delete", group="g0")
    assert [topic for topic, _ in news(w)][1:] == ["$sys.group.deleted"]


def test_no_advisory_is_made_without_a_subscription() -> None:
    w = world("a")
    w.router.turn.advise("$sys.group.created", group="g")
    assert not w.router.turn.take_advised()
    admin(w, "group.create", group="g", patterns=["x"])
    assert w.router.counters["advisories"] == 0


def test_they_can_be_switched_off() -> None:
    w = world("$sys.group.*")
    admin(w, "hub.update", advisories=False)
    admin(w, "group.create", group="g", patterns=["x"])
    admin(w, "hub.update", advisories=True)
    admin(w, "group.delete", group="g")
    assert [topic for topic, _ in news(w)] == ["$sys.group.deleted"]


def test_a_storm_of_news_is_bounded() -> None:
    w = world("$sys.#", credit=1 << 30)
    for i in range(ADVISED_MAX + 5):
        w.router.turn.advise("$sys.gap", first=i)
    w.pass_time(0.1)
    assert w.router.counters["advisories"] == ADVISED_MAX
    assert w.router.counters["advisories_dropped"] == 5
