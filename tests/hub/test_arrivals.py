"""Peers are served in shares of what their frames cost, and commits are shared by publishers."""

import time
from pathlib import Path
from typing import Final

import pytest
import zmq

from fabric.hub import hub as hub_module
from fabric.hub import intake as intake_module
from fabric.hub.arrivals import BYTES_MAX, DEBT_MAX_S, SHARE_S, TURN_FRAMES, Arrivals
from fabric.hub.command_kind import is_publish, is_question
from fabric.hub.commit_share import BYTES_MIN, COMMIT_S, MEMORY_S, RATE_FIRST, CommitShare
from fabric.hub.hub import Hub, HubOptions
from fabric.hub.intake import TURN_S
from fabric.router.publish.publishing import WINDOW_BYTES
from fabric_protocol import block as b
from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.errors import Code
from fabric_protocol.messages import PeerId
from tests.hub.kit import talker

MIB: Final = 1 << 20


def served(arrivals: Arrivals, costs: dict[PeerId, float], seconds: float) -> dict[PeerId, float]:
    """What each peer got of so many seconds of work, when it always has more to be processed."""
    got = dict.fromkeys(costs, 0.0)
    while sum(got.values()) < seconds:
        peer, frames = arrivals.next()
        arrivals.take(peer, costs[peer])
        arrivals.put(peer, frames, 0.0)
        got[peer] += costs[peer]
    return got


def test_frames_of_a_peer_keep_their_order() -> None:
    arrivals = Arrivals()
    for n in range(10):
        arrivals.put(b"a", [b"%d" % n], 0.0)
        arrivals.put(b"b", [b"%d" % n], 0.0)
    said: dict[PeerId, list[bytes]] = {b"a": [], b"b": []}
    while arrivals.is_ready:
        peer, (frame,) = arrivals.next()
        said[peer].append(frame)
        arrivals.take(peer, SHARE_S * 3)
    assert said[b"a"] == said[b"b"] == [b"%d" % n for n in range(10)]
    assert arrivals.count == 0


def test_shares_are_of_cost_and_not_of_frames() -> None:
    """One peer's frames cost a thousand times as much as the other's, and both get the same time."""
    arrivals = Arrivals()
    for _ in range(3):
        arrivals.put(b"dear", [b"x"], 0.0)
        arrivals.put(b"cheap", [b"x"], 0.0)
    got = served(arrivals, {b"dear": 0.01, b"cheap": 0.00001}, 1.0)
    assert got[b"cheap"] == pytest.approx(0.5, abs=0.05)


def test_a_peer_that_was_alone_does_not_pay_for_that_for_long() -> None:
    arrivals = Arrivals()
    for _ in range(3):
        arrivals.put(b"first", [b"x"], 0.0)
    served(arrivals, {b"first": 0.01}, 5.0)
    arrivals.put(b"second", [b"x"], 0.0)
    got, after_s = 0.0, 0.0
    while not got:
        peer, frames = arrivals.next()
        arrivals.take(peer, SHARE_S)
        arrivals.put(peer, frames, 0.0)
        after_s += SHARE_S
        got = SHARE_S if peer == b"first" else 0.0
    assert after_s <= DEBT_MAX_S + 2 * SHARE_S


def test_a_peer_in_debt_waits_for_the_next_turn_when_another_one_was_served() -> None:
    arrivals = Arrivals()
    for _ in range(3):
        arrivals.put(b"flood", [b"x"], 0.0)
    arrivals.begin_turn()
    for _ in range(2):
        peer, _ = arrivals.next()
        assert not arrivals.is_deferred(peer), "it is alone"
        arrivals.take(peer, 10 * SHARE_S)
    arrivals.begin_turn()
    arrivals.put(b"other", [b"x"], 0.0)
    peer, _ = arrivals.next()
    assert (peer, arrivals.is_deferred(peer)) == (b"other", False)
    arrivals.take(peer, SHARE_S / 10)
    assert arrivals.is_deferred(arrivals.next()[0]), "the other one's command is to be passed on first"
    arrivals.begin_turn()
    assert not arrivals.is_deferred(arrivals.next()[0])


def test_a_held_peer_waits_and_others_do_not() -> None:
    arrivals = Arrivals()
    arrivals.put(b"held", [b"1"], 0.0)
    arrivals.hold(b"held")
    assert not arrivals.is_ready
    arrivals.put(b"held", [b"2"], 0.0)
    arrivals.put(b"other", [b"3"], 0.0)
    assert arrivals.next() == (b"other", [b"3"])
    arrivals.take(b"other", 0.0)
    assert not arrivals.is_ready
    arrivals.release()
    assert arrivals.next() == (b"held", [b"1"])


def test_a_crowd_leaves_room_for_a_frame_of_each_peer() -> None:
    arrivals = Arrivals()
    assert arrivals.room == (TURN_FRAMES, BYTES_MAX)
    arrivals.put(b"a", [b"meta", bytes(BYTES_MAX)], 0.0)
    arrivals.put(b"b", [b"meta", bytes(10)], 0.0)
    assert arrivals.is_crowded
    frames, size = arrivals.room
    assert frames > 2
    assert size > 0
    assert not arrivals.has_room(b"a", MIB)
    assert arrivals.has_room(b"b", MIB)
    assert arrivals.has_room(b"c", 0)


def test_one_publisher_fills_commits_and_several_share_them() -> None:
    share, limit = CommitShare(), max(BYTES_MIN, RATE_FIRST * COMMIT_S)
    share.published(b"flood", int(limit) * 10, 0, now=0.0, seconds=0.0)
    assert not share.is_full(b"flood"), "there is no other publisher"
    assert not share.is_full(b"other"), "what it publishes is little yet"
    share.published(b"other", 100, 0, now=0.0, seconds=0.0)
    assert share.is_full(b"flood")
    assert not share.is_full(b"other")
    share.submitted()
    share.committed(0.0)
    assert not share.is_full(b"flood"), "the next commit is empty"
    share.published(b"flood", int(limit), 0, now=MEMORY_S * 1.5, seconds=0.0)
    share.published(b"flood", int(limit), 0, now=MEMORY_S * 3, seconds=0.0)
    assert not share.is_full(b"flood"), "the other one has published nothing for long"


def test_a_commit_has_no_block_of_each_of_many_peers_with_large_blocks() -> None:
    """The next block of a peer is taken to be as large as its last one."""
    share, large = CommitShare(), int(0.7 * max(BYTES_MIN, RATE_FIRST * COMMIT_S))
    peers = [b"1", b"2", b"3", b"4"]
    for peer in peers:
        share.published(peer, large, 0, 0.0, 0.0)
    share.published(b"small", 100, 0, 0.0, 0.0)
    share.submitted()
    taken = []
    for peer in [*peers, b"small"]:
        if not share.is_full(peer):
            taken.append(peer)
            share.published(peer, large if peer in peers else 100, 0, 0.0, 0.0)
    assert taken == [b"1", b"small"]
    share.committed(0.005)
    share.submitted()
    assert not share.is_full(b"2"), "the next commit is empty"


def test_a_slow_disk_makes_smaller_commits() -> None:
    share = CommitShare()
    for _ in range(50):
        share.published(b"a", MIB, 0, now=0.0, seconds=0.0)
        share.published(b"b", 0, 0, now=0.0, seconds=0.0)
        share.submitted()
        share.committed(0.001)
    share.published(b"a", MIB, 0, now=0.0, seconds=0.0)
    assert not share.is_full(b"a")
    share.submitted()
    for _ in range(50):
        share.published(b"a", MIB, 0, now=0.0, seconds=0.0)
        share.submitted()
        share.committed(1.0)
    share.published(b"a", BYTES_MIN, 0, now=0.0, seconds=0.0)
    assert share.is_full(b"a")


def test_a_peer_with_a_block_that_makes_a_commit_long_skips_the_next_one() -> None:
    share = CommitShare()
    large = int(4 * max(BYTES_MIN, RATE_FIRST * COMMIT_S))
    share.published(b"large", large, 0, 0.0, 0.0)
    share.submitted()
    assert not share.is_full(b"large")  # it is alone
    share.published(b"small", 100, 0, 0.0, 0.0)
    assert share.is_full(b"large")
    assert not share.is_full(b"small")
    share.committed(0.05)
    share.submitted()
    assert not share.is_full(b"large")  # the commit under way is short
    share.published(b"large", large, 0, 0.0, 0.0)
    share.submitted()
    assert share.is_full(b"large")
    share.committed(0.05)
    assert not share.is_full(b"large")  # there was nothing else to be written


def test_the_time_of_a_publish_counts_as_bytes() -> None:
    """Blocks of duplicates have no bytes for the disk, and take long."""
    share = CommitShare()
    share.published(b"small", 100, 0, 0.0, 0.0)
    share.published(b"dear", 0, 0, 0.0, COMMIT_S)
    assert share.is_full(b"dear")
    assert not share.is_full(b"small")
    share.submitted()
    assert not share.is_full(b"dear")
    share.published(b"dear", 0, 0, 0.0, 3 * COMMIT_S)
    share.submitted()
    assert share.is_full(b"dear"), "it skips a commit"
    share.committed(0.001)
    assert not share.is_full(b"dear")


def test_little_is_received_while_much_waits() -> None:
    arrivals = Arrivals()
    for _ in range(BYTES_MAX // MIB):
        arrivals.put(b"a", [bytes(MIB)], 0.0)
    frames, size = arrivals.room
    assert arrivals.is_crowded
    assert frames >= 2
    assert size <= MIB


def test_publishes_are_told_from_other_frames() -> None:
    block = b.encode("a", [b"x"])
    assert is_publish(wire.encode(m.Publish(1, 0, 0, block)))
    assert is_publish(wire.encode(m.Transact(1, 0, (), block)))
    assert not is_publish(wire.encode(m.Request(0, 1, {}, block)))
    assert not is_publish(wire.encode(m.Ping(1)))
    assert not is_publish([b"", b""])
    assert not is_publish([])


def test_questions_are_told_by_their_verb() -> None:
    assert all(is_question(wire.encode(one)) for one in (m.Ping(1), m.Get(1, {}), m.Info(1, {})))
    assert not is_question(wire.encode(m.Admin(1, {})))
    assert not is_question([b"", b""])
    assert not is_question([])


class Clock:
    """Time that passes only when something is done."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return time.time_ns()


def test_a_turn_ends_when_it_has_cost_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left waits for the next turn; timers and the journal are not kept waiting by it."""
    hub = Hub(tmp_path / "journal", HubOptions(binds=["inproc://turns"]))
    clock, taken, ticks = Clock(), list[int](), list[int]()

    def take(peer: PeerId, frames: list[bytes], *_: object) -> None:
        taken.append(int(frames[0]))
        clock.now += TURN_S * 0.4

    def tick(*_: object) -> None:
        ticks.append(len(taken))

    for module in (hub_module, intake_module):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(hub._intake, "_process", take)
    monkeypatch.setattr(hub._router, "tick", tick)
    for n in range(7):
        hub._intake.arrivals.put(b"a", [b"%d" % n], 0.0)
    for _ in range(3):
        hub.turn()
    assert ticks == [3, 6, 7]
    assert taken == list(range(7))
    monkeypatch.undo()
    hub.request_stop()
    hub.run()


def test_no_peer_waits_for_a_commit_that_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishes that are refused cost time, and leave nothing to be written."""
    monkeypatch.setattr(CommitShare, "is_full", lambda *_: True)
    with (
        Hub(tmp_path / "journal", HubOptions(binds=["inproc://none"])) as hub,
        talker(hub.context, "inproc://none") as flood,
    ):
        for rid in range(1_000, 1_010):
            flood.send(m.Publish(rid, 0, 0, b"no block"))
        for _ in range(10):
            assert flood.until(m.Err).code == Code.BAD_BLOCK
        flood.publish("a", b"x")


def test_a_peer_that_sends_more_than_its_window_is_refused_and_others_are_served(tmp_path: Path) -> None:
    """Its frames wait for a commit; what exceeds the window is to be sent again, and a second publisher gets in."""
    with Hub(tmp_path / "journal", HubOptions(binds=["inproc://windows"])) as hub:
        context: zmq.Context[zmq.Socket[bytes]] = hub.context
        with talker(context, "inproc://windows") as flood, talker(context, "inproc://windows") as other:
            block = b.encode("flood", [bytes(MIB)])
            sent = 10 * WINDOW_BYTES // MIB
            for _ in range(3):
                other.publish("other", b"x")
            for n in range(sent):
                flood.send(m.Publish(1_000 + n, 0, 0, block))
            for _ in range(20):
                other.publish("other", b"x")
            answered: dict[int, int] = {}
            while len(answered) < sent:
                message = flood.receive()
                match message:
                    case m.PubOk(_, confirms):
                        answered |= {row[0]: 0 for row in confirms}
                    case m.Err(_, rid, code):
                        assert code in (Code.BUSY, Code.OVERRUN)
                        answered[rid] = code
                    case m.Flow():
                        pass
                    case _:
                        raise AssertionError(message)
            assert 0 in answered.values(), "some of it was stored"
