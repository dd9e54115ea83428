"""The deliveries of one turn are bounded; new messages do not wait behind an old backlog."""

from collections import Counter
from typing import Any, cast

import pytest

from fabric.router import block_store, commands
from fabric.router.groups import dispatcher, lanes
from fabric.router.groups import subscription as members
from fabric.router.groups.group import Group
from fabric.router.rounds import AGAIN_WORK, GROUP_WORK, SEARCH_WORK, TURN_WORK, Rounds
from fabric_protocol import messages as m
from fabric_protocol.block import Block, encode
from tests.router.world import BIG, World

A, B = b"a", b"b"
BODY = bytes(1 << 20)


def turn(w: World) -> list[tuple[bytes, m.ToClient]]:
    """What is said in one turn in which nothing arrives."""
    out: list[tuple[bytes, m.ToClient]] = []
    w.router.tick(w.now)
    out += w.router.take_frames()
    return out


def delivered(out: list[tuple[bytes, m.ToClient]]) -> list[m.Deliver]:
    return [message for _, message in out if isinstance(message, m.Deliver)]


def replaying(subs: int, blocks: int) -> World:
    """A client asks for a long history many times, and nothing of it was handed out yet; another client is live."""
    w = World()
    w.hello(A)
    w.hello(B)
    for _ in range(blocks):
        w.say(A, m.Publish(1, 0, 0, encode("old", [BODY])))
    w.sub(B, 1, "live", group="g")
    out: list[tuple[bytes, m.ToClient]] = []
    for chan in range(1, subs + 1):
        fields = {"patterns": ["#"], "start": "first", "credit": [BIG, BIG]}
        w.router.step(m.Subscribe(chan, chan, fields), A, w.now)
        out += w.router.take_frames()
    return w


def test_a_turn_is_bounded_however_many_replays_there_are() -> None:
    w = replaying(40, 12)
    got: Counter[int] = Counter()
    turns = 0
    while w.router.dispatcher.busy:
        said = delivered(turn(w))
        turns += 1
        assert sum(len(one.block) for one in said) <= TURN_WORK + AGAIN_WORK + 2 * (len(BODY) + 1_000)
        got.update(one.chan for one in said)
    assert got == dict.fromkeys(range(1, 41), 12), "and each gets all in the end"
    assert turns >= 40 * 12 * len(BODY) // (TURN_WORK + AGAIN_WORK + 2 * len(BODY))


def test_what_is_live_comes_before_what_is_replayed() -> None:
    w = replaying(40, 12)
    for _ in range(3):
        turn(w)
    w.router.step(m.Publish(1, 0, 0, encode("live", [b"now"])), B, w.now)
    w.router.take_frames()
    sealed = w.router.seal(w.wall_us(), w.now)
    w.router.take_frames()
    w.write(sealed.records)
    out: list[tuple[bytes, m.ToClient]] = []
    w.router.committed(w.now)
    out += w.router.take_frames()
    out += turn(w)
    assert [Block(one.block).payloads() for peer, one in out if peer == B and isinstance(one, m.Deliver)] == [[b"now"]]
    assert w.router.dispatcher.busy, "the replays go on"


def groups(count: int) -> list[Group]:
    """Groups that nothing is known of."""
    return [cast(Group, object()) for _ in range(count)]


def test_groups_without_room_are_served_in_the_next_turns_in_order() -> None:
    rounds, names, served = Rounds(), groups(10), list[Group]()
    for name in names:
        rounds.mark_runnable(name)
    while rounds:
        rounds.begin_turn()
        for group in rounds:
            served.append(group)
            rounds.spent += TURN_WORK // 3
    assert served == names


def test_groups_that_are_served_again_have_a_part_of_each_turn() -> None:
    rounds, (slow, *others) = Rounds(), groups(21)
    rounds.again(slow)
    served: Counter[Group] = Counter()
    for _ in range(10):
        rounds.begin_turn()
        for group in others:
            rounds.mark_runnable(group)
        for group in rounds:
            served[group] += 1
            rounds.spent += TURN_WORK
            if group is slow:
                rounds.again(group)
    assert served[slow] == 10


def test_a_search_is_work() -> None:
    """Many groups that search through a long journal for what is not there do not search all in one turn."""
    rounds = Rounds()
    rounds.begin_turn()
    for group in groups(100):
        rounds.again(group)
    served = 0
    for _ in rounds:
        served += 1
        rounds.spent += SEARCH_WORK
    assert served <= TURN_WORK // (SEARCH_WORK + GROUP_WORK) + 1


def test_what_happens_to_groups_without_consumers_makes_them_search_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They go on in sweeps, a few at a time, however often they are paused and resumed."""
    w = World()
    w.hello(A)
    monkeypatch.setattr(block_store, "SCAN_BLOCKS_MAX", 1)
    for _ in range(60):
        w.say(A, m.Publish(1, 0, 0, encode("old", [b"x"] * 10)))
    names = [f"g{n}" for n in range(10)]
    for name in names:
        w.router.step(m.Admin(2, {"op": "group.create", "group": name, "patterns": ["none"]}), A, w.now)
    searched = Counter[str]()

    def counted(group: Group, *args: Any) -> bool:
        searched[group.name] += 1
        return lanes.advance(group, *args)

    monkeypatch.setattr(dispatcher, "advance", counted)
    turns = 0
    while len(searched) < len(names):
        before = searched.total()
        turn(w)
        turns += 1
        assert searched.total() - before <= TURN_WORK // SEARCH_WORK + 1
        assert turns <= len(names)
    for op in ("group.pause", "group.resume") * 5:
        for name in names:
            w.router.step(m.Admin(3, {"op": op, "group": name}), A, w.now)
        turn(w)
    assert searched.total() <= len(names) + dispatcher.IDLE_PER_SWEEP


def test_a_consumer_holds_so_many_deliveries_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "HELD_MIN", 2)
    monkeypatch.setattr(members, "HELD_MAX", 8)
    w = World()
    w.hello(A)
    w.sub(A, 1, "t", group="g")
    for n in range(20):
        w.pub(A, "t", str(n))
    sub = next(iter(w.router.groups["g"].members))
    assert (len(sub.leases), sub.sent) == (8, 8)
    w.settle(A, 1, m.Verdict.ACK, 1, 8)
    assert (len(sub.leases), sub.sent) == (8, 16)
    w.settle(A, 1, m.Verdict.ACK, 9, 16)
    assert (len(sub.leases), sub.sent) == (4, 20)
    w.settle(A, 1, m.Verdict.ACK, 17, 20)
    assert w.router.shared.held == 0


def test_a_consumer_that_holds_few_gets_more_though_all_together_hold_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "HELD_MIN", 3)
    monkeypatch.setattr(members, "ALL_HELD_MAX", 6)
    w = World()
    for peer in (A, B):
        w.hello(peer)
        w.sub(peer, 1, "t", group=peer.decode())
    for n in range(20):
        w.pub(A, "t", str(n))
    held = {name: len(group.members[0].leases) for name, group in w.router.groups.items()}
    assert held == {"a": 3, "b": 3}


def test_a_client_that_is_back_gets_a_bounded_part_at_once_and_the_rest_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "AGAIN_BYTES", 3 << 20)
    w = World()
    session = w.hello(A, ttl_ms=600_000).fields["session"]  # type: ignore[union-attr]
    w.sub(A, 1, "t", group="g")
    for n in range(10):
        w.say(A, m.Publish(1, 0, 0, encode("t", [b"%d" % n + BODY])))
    out: list[tuple[bytes, m.ToClient]] = []
    resume = {"session": session, "subs": [[1, 2]]}
    w.router.step(m.Hello(1, {"proto": 1, "resume": resume}), B, w.now)
    out += w.router.take_frames()
    again = delivered(out)
    assert [one.first_ordinal for one in again] == [3, 4, 5]
    out = turn(w)
    w.commit()
    later = [*delivered(out), *(one for one in w.said.get(B, []) if isinstance(one, m.Deliver))]
    assert [one.first_ordinal for one in later] == list(range(11, 16))
    assert {Block(one.block).payloads()[0][:1] for one in [*again, *later]} == {b"%d" % n for n in range(2, 10)}
