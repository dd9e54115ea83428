"""The numbers of a group: what waits, what is in flight, what comes again, and what it has done since the hub started.
A random life compares them with a naive count after each step."""

from random import Random
from typing import Any

import pytest

from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.messages import Verdict
from tests.router.world import BIG, World
from tests.seeds import seeded
from tests.simulation.recount import check

TOPICS = ("a", "a.b", "b", "few", "state")
GROUPS: dict[str, dict[str, Any]] = {
    "all": {"patterns": ["#"]},
    "some": {"patterns": ["a.#", "few"], "order": "key"},
    "one": {"patterns": ["b", "state"], "order": "strict"},
}
OPS = b"ops"


def numbers(w: World, group: str) -> Any:
    return w.say(OPS, m.Info(3, {"what": "group", "group": group}))[-1].fields  # type: ignore[union-attr]


def publish(w: World, topics: list[str], **fields: Any) -> None:
    bodies = [b"%d" % at for at in range(len(topics))]
    keys = [b"k%d" % (at % 3) for at in range(len(topics))]
    w.say(OPS, m.Publish(9, 0, m.Level.JOURNALED, encode(topics, bodies, keys=keys, **fields)))


def admin(w: World, op: str, **fields: Any) -> None:
    w.say(OPS, m.Admin(4, {"op": op, **fields}))


def world() -> World:
    w = World()
    w.hello(OPS)
    return w


def test_ready_counts_messages_that_match_only() -> None:
    w = world()
    admin(w, "group.create", group="g", patterns=["a.#"])
    publish(w, ["a", "b", "a.b", "b"])
    publish(w, ["b", "b"])
    row = numbers(w, "g")
    assert (row["ready"], row["ready_exact"], row["behind"]) == (2, True, 6)
    assert row["oldest_us"] == w.reader.blocks[0].ts_us


def test_each_state_and_each_verdict_is_counted() -> None:
    w = world()
    w.hello(b"c")
    w.sub(b"c", 1, "a", credit=4, group="g", backoff="fixed", backoff_ms=60_000)
    publish(w, ["a"] * 6)
    row = numbers(w, "g")
    assert (row["ready"], row["in_flight"], row["retrying"], row["dead"]) == (2, 4, 0, 0)
    w.settle(b"c", 1, Verdict.ACK, 1, 1)
    w.settle(b"c", 1, Verdict.RETRY, 2, 2)
    w.settle(b"c", 1, Verdict.REJECT, 3, 3)
    row = numbers(w, "g")
    assert (row["ready"], row["in_flight"], row["retrying"], row["dead"]) == (2, 1, 1, 1)
    w.say(b"c", m.Credit(1, BIG, BIG))
    w.settle(b"c", 1, Verdict.ACK, 4, 6)
    counted = numbers(w, "g")["counters"]
    assert {name: counted[name] for name in ("delivered", "acked", "retried", "rejected", "dead", "released")} == {
        "delivered": 6,
        "acked": 4,
        "retried": 1,
        "rejected": 1,
        "dead": 1,
        "released": 0,
    }
    hub = w.router.counters
    assert (hub["deliveries"], hub["acked"], hub["retried"], hub["rejected"]) == (6, 4, 1, 1)
    (session,) = [row for row in w.say(OPS, m.Info(3, {"what": "sessions"}))[-1].fields["sessions"] if row["channels"]]  # type: ignore[union-attr]
    assert session["messages_out"] == 6


def test_a_touch_and_a_message_that_comes_again_are_not_settled() -> None:
    w = world()
    w.hello(b"c")
    w.sub(b"c", 1, "a", group="g", backoff="fixed", backoff_ms=60_000)
    publish(w, ["a"] * 4)
    for ordinal, verdict in enumerate((Verdict.TOUCH, Verdict.RETRY, Verdict.RELEASE), 1):
        w.settle(b"c", 1, verdict, ordinal, ordinal)
    assert w.router.counters["settled"] == 0
    w.settle(b"c", 1, Verdict.ACK, 1, 1)
    w.settle(b"c", 1, Verdict.REJECT, 4, 4)
    assert w.router.counters["settled"] == 2


def test_expired_messages_are_not_ready() -> None:
    w = world()
    admin(w, "group.create", group="g", patterns=["a"])
    publish(w, ["a"] * 3, expires_us=w.wall_us() + 1_000_000)
    publish(w, ["a"] * 2)
    assert numbers(w, "g")["ready"] == 5
    w.pass_time(2.0)
    row = numbers(w, "g")
    assert (row["ready"], row["ready_exact"], row["counters"]["expired"]) == (2, True, 3)


def test_a_purge_and_a_limit_lower_ready() -> None:
    w = world()
    admin(w, "group.create", group="g", patterns=["#"])
    admin(w, "topic.create", topic="few", max_msgs=2, on_full="drop_old")
    publish(w, ["few"] * 5)
    publish(w, ["a", "b"])
    assert (numbers(w, "g")["ready"], numbers(w, "g")["ready_exact"]) == (4, True)
    admin(w, "topic.purge", topic="a")
    assert (numbers(w, "g")["ready"], numbers(w, "g")["ready_exact"]) == (3, True)


def test_a_seek_is_counted_in_steps_and_is_at_most_what_it_says_meanwhile() -> None:
    w = world()
    for _ in range(20):
        publish(w, ["a", "b"])
    w.router.step(m.Admin(4, {"op": "group.create", "group": "g", "patterns": ["a"]}), OPS, w.now)
    group = w.router.groups["g"]
    assert (group.backlog.is_exact, group.backlog.ready(group.position())) == (False, 40)
    w.commit()
    assert (numbers(w, "g")["ready"], numbers(w, "g")["ready_exact"]) == (20, True)


def test_a_count_that_is_complete_is_written() -> None:
    w = world()
    for _ in range(20):
        publish(w, ["a", "b"])
    admin(w, "group.create", group="g", patterns=["a"])
    assert numbers(w, "g")["ready_exact"]
    w.commit()
    assert w.groups["g"].ahead == (20, 40)
    w.restart()
    assert w.router.groups["g"].backlog.is_exact


def test_a_crash_counts_only_blocks_after_the_row() -> None:
    w = world()
    admin(w, "group.create", group="g", patterns=["a"])
    for _ in range(6):
        publish(w, ["a", "b"])
    admin(w, "group.pause", group="g")
    assert w.groups["g"].ahead == (6, 12)
    publish(w, ["a", "a"])
    w.restart()
    assert w.router.groups["g"].backlog.start == 13
    w.hello(OPS)
    assert (numbers(w, "g")["ready"], numbers(w, "g")["ready_exact"]) == (8, True)


def test_a_row_of_an_older_program_is_counted() -> None:
    w = world()
    admin(w, "group.create", group="g", patterns=["a"])
    publish(w, ["a", "b", "a"])
    w.groups = {name: row._replace(ahead=None) for name, row in w.groups.items()}
    w.restart()
    w.hello(OPS)
    assert (numbers(w, "g")["ready"], numbers(w, "g")["ready_exact"]) == (2, True)


def test_the_time_to_drain_is_known_while_ready_falls() -> None:
    w = world()
    w.hello(b"c")
    w.sub(b"c", 1, "a", credit=0, group="g")
    publish(w, ["a"] * 100)
    for credit in (0, 10, 20, 30, 40):
        w.say(b"c", m.Credit(1, credit, BIG))
        w.pass_time(2.5)
    assert numbers(w, "g")["drain_s"] == pytest.approx(60 / 4, rel=0.5)
    for _ in range(4):
        w.say(b"c", m.Ping(1))
        w.pass_time(2.5)
    publish(w, ["a"] * 10)
    assert numbers(w, "g")["drain_s"] is None


class NeverRead(dict[Any, Any]):
    """Locks that a description must not look at, because there may be very many."""

    def values(self) -> Any:
        raise AssertionError("INFO reads all locks of a group")

    __iter__ = items = keys = values


def test_the_numbers_of_a_group_of_order_key_do_not_look_at_its_locks() -> None:
    w = world()
    w.hello(b"c", ttl_ms=600_000)
    w.sub(b"c", 1, "a", credit=3, group="g", order="key", lease_ms=600_000, backoff="fixed", backoff_ms=60_000)
    publish(w, ["a"] * 9)
    w.settle(b"c", 1, Verdict.RETRY, 1, 2)
    locks = w.router.groups["g"].keys
    assert locks is not None
    locks.locks = NeverRead(locks.locks)
    row = numbers(w, "g")
    assert (row["in_flight"], row["parked"], row["waiting"], row["retrying"]) == (1, 8, 2, 2)
    w.pass_time(67)  # the wait and its jitter
    w.hello(OPS)
    assert numbers(w, "g")["waiting"] == 0


def test_a_random_life_agrees_with_a_naive_count() -> None:
    rng, exact = seeded("counts"), 0
    for _ in range(6):
        w = world()
        admin(w, "topic.create", topic="few", max_msgs=9, on_full="drop_old")
        admin(w, "topic.create", topic="state", keep="last_per_key")
        for name, settings in GROUPS.items():
            admin(w, "group.create", group=name, lease_ms=5_000, **settings)
        for _ in range(120):
            step(w, rng)
            exact += check(w.router, w.reader.blocks)
    assert exact > 300, "most numbers are exact"


def step(w: World, rng: Random) -> None:
    group = rng.choice(list(GROUPS))
    match rng.randrange(12):
        case 0 | 1 | 2:
            publish(w, rng.choices(TOPICS, k=rng.randint(1, 5)))
        case 3:
            publish(w, rng.choices(TOPICS, k=3), expires_us=w.wall_us() + 3_000_000, priority=rng.choice((2, 4)))
        case 4 | 5:
            peer = group.encode()
            w.hello(peer)
            w.sub(peer, 1, credit=rng.choice((2, 10, 1000)), group=group)
        case 6 | 7:
            verdict = rng.choice((Verdict.ACK, Verdict.ACK, Verdict.RETRY, Verdict.RELEASE, Verdict.REJECT))
            w.settle(group.encode(), 1, verdict, 1, rng.randint(1, 30))
        case 8:
            w.pass_time(rng.choice((0.5, 2.0, 8.0)))
        case 9:
            admin(w, "group.seek", group=group, to=rng.choice(("first", "new", {"seq": rng.randint(1, 50)})))
        case 10:
            part = {"up_to": rng.randint(1, w.router.shared.next_seq)} if rng.random() < 0.5 else {}
            admin(w, "topic.purge", topic=rng.choice(TOPICS), **part)
        case 11 if rng.random() < 0.5:
            w._come_back(was_clean=False)
            w.hello(OPS)
        case 11:
            admin(w, "group.update", group=group, patterns=rng.choice([["#"], ["a", "b"], ["state", "few"]]))
