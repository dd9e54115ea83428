"""A peer that had its share gives way while a publish of another peer is on its way to the disk."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from fabric.hub import intake as intake_module
from fabric.hub.arrivals import PAUSE, PAUSE_MAX_S, SHARE_S
from fabric.hub.commit_share import BYTES_MIN, CommitShare
from fabric.hub.hub import Hub, HubOptions
from fabric.hub.intake import Intake
from fabric_protocol import block as b
from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.messages import PeerId

FLOOD, OTHER = b"flood", b"other"
PING: Final = wire.encode(m.Ping(1))
PUBLISH: Final = wire.encode(m.Publish(1, 0, 0, b.encode("a", [b"x"])))
PING_S: Final = SHARE_S * 0.6
LONG_S: Final = SHARE_S * 5


class Desk:
    """An intake over a real router, with a clock that moves only when a command is processed."""

    def __init__(self, hub: Hub) -> None:
        self.now = 100.0
        self.costs = {bytes(PING[0]): PING_S, bytes(PUBLISH[0]): 0.0}
        self.processed: list[PeerId] = []
        self.intake = Intake(hub._router, self._process, lambda: False)

    def _process(self, peer: PeerId, frames: list[bytes], now: float) -> None:
        self.processed.append(peer)
        self.now += self.costs[bytes(frames[0])]

    def monotonic(self) -> float:
        return self.now

    def turn(self, *received: tuple[PeerId, list[bytes]]) -> list[PeerId]:
        """The peers of which a command was processed in a turn."""
        self.processed = []
        self.intake.take(list(received), self.now)
        return self.processed


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    hub = Hub(tmp_path / "journal", HubOptions(binds=["inproc://intake"]))
    desk = Desk(hub)
    monkeypatch.setattr(intake_module, "time", desk)
    yield desk
    monkeypatch.undo()
    hub.request_stop()
    hub.run()


def test_a_flood_waits_while_the_publish_of_another_peer_is_committed(desk: Desk) -> None:
    assert desk.turn(*[(FLOOD, PING)] * 3) == [FLOOD] * 3
    assert desk.turn((OTHER, PUBLISH)) == [OTHER]
    desk.intake.submitted()
    assert desk.turn(*[(FLOOD, PING)] * 3) == []
    assert not desk.intake.arrivals.is_ready, "the hub sleeps until the journal thread wakes it"
    desk.intake.committed(0.001)
    assert desk.turn() == [FLOOD] * 3


def test_a_flood_waits_for_a_bounded_time(desk: Desk) -> None:
    """On a slow disk it goes on before the commit is done."""
    desk.turn(*[(FLOOD, PING)] * 3)
    desk.turn((OTHER, PUBLISH))
    desk.intake.submitted()
    assert desk.turn((FLOOD, PING)) == []
    paused_s = 2 * PING_S  # by the first command, while the other two were processed
    assert desk.intake.arrivals.release_at == pytest.approx(desk.now + PAUSE * 3 * PING_S - paused_s)
    desk.now = desk.intake.arrivals.release_at
    assert desk.turn() == [FLOOD]
    desk.intake.committed(0.001)
    desk.costs[bytes(PING[0])] = 1.0
    desk.turn((FLOOD, PING))
    desk.turn((OTHER, PUBLISH))
    desk.intake.submitted()
    desk.turn((FLOOD, PING))
    assert desk.intake.arrivals.release_at == pytest.approx(desk.now + PAUSE_MAX_S)


def test_a_flood_that_was_served_during_the_commit_before_waits_for_the_next_one(desk: Desk) -> None:
    """A publish waits for the commit under way and for its own: a long command may precede it, and not two."""
    desk.costs[bytes(PUBLISH[0])] = LONG_S
    assert desk.turn(*[(FLOOD, PUBLISH)] * 3) == [FLOOD]
    desk.intake.submitted()
    desk.costs[bytes(PUBLISH[0])] = 0.0
    assert desk.turn((OTHER, PUBLISH)) == [OTHER]
    desk.intake.committed(0.001)
    desk.intake.submitted()
    assert desk.turn() == [], "the commit of the other peer is under way"
    desk.intake.committed(0.001)
    assert desk.turn() == [FLOOD, FLOOD]


def test_a_commit_without_publishes_of_others_makes_no_peer_wait(desk: Desk) -> None:
    desk.turn((OTHER, PUBLISH))
    desk.intake.submitted()
    desk.intake.committed(0.001)
    desk.turn(*[(FLOOD, PING)] * 3)
    desk.intake.submitted()
    assert desk.turn((FLOOD, PING)) == [FLOOD]


def test_a_peer_alone_never_waits(desk: Desk) -> None:
    desk.costs[bytes(PUBLISH[0])] = LONG_S
    for _ in range(5):
        assert desk.turn((FLOOD, PUBLISH)) == [FLOOD]
        desk.intake.submitted()
        assert desk.turn((FLOOD, PING)) == [FLOOD]
        desk.intake.committed(0.001)


def test_short_publishes_are_bounded_by_commits_and_long_ones_give_way(desk: Desk) -> None:
    desk.turn((OTHER, PUBLISH))
    desk.intake.submitted()
    desk.costs[bytes(PUBLISH[0])] = SHARE_S * 0.5
    for _ in range(5):
        assert desk.turn((FLOOD, PUBLISH)) == [FLOOD]
    desk.costs[bytes(PUBLISH[0])] = LONG_S
    assert desk.turn((FLOOD, PUBLISH)) == [FLOOD], "one in each commit"
    desk.intake.submitted()
    desk.costs[bytes(PUBLISH[0])] = 0.0
    desk.turn((OTHER, PUBLISH))
    assert desk.turn((FLOOD, PUBLISH)) == []


def test_a_publish_of_a_peer_of_which_nothing_waits_is_in_the_next_commit(desk: Desk) -> None:
    """Frames of a peer keep their order, so nothing overtakes what waits of it."""
    desk.intake.arrivals.put(FLOOD, PING, 0.0)
    received = [(FLOOD, PUBLISH), (b"mixed", PING), (OTHER, PUBLISH), (b"mixed", PUBLISH)]
    rest = desk.intake.take_first_publishes(received, desk.now)
    assert desk.processed == [OTHER]
    assert rest == [(FLOOD, PUBLISH), (b"mixed", PING), (b"mixed", PUBLISH)]
    desk.costs[bytes(PUBLISH[0])] = LONG_S
    assert len(desk.intake.take_first_publishes([(b"a", PUBLISH), (b"b", PUBLISH)], desk.now)) == 1, "a share of time"


def test_peers_with_large_publishes_get_commits_in_turn(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit has room for one of them: the peer that was in the last commit waits behind the others."""
    monkeypatch.setattr(CommitShare, "is_full", lambda share, peer: bool(share._taken))
    monkeypatch.setattr(type(desk.intake.router), "wants_commit", lambda *_: True)
    for _ in range(4):
        for peer in (b"a", b"b", b"c"):
            desk.intake.arrivals.put(peer, PUBLISH, 0.0)
    order: list[PeerId] = []
    for _ in range(12):
        order += desk.turn()
        desk.intake.submitted()
        desk.intake.committed(0.001)
    assert order == [b"a", b"b", b"c"] * 4


def test_commands_of_a_gone_peer_that_change_nothing_are_dropped(desk: Desk) -> None:
    arrivals = desk.intake.arrivals
    info, get = wire.encode(m.Info(1, {})), wire.encode(m.Get(1, {}))
    desk.costs |= {bytes(info[0]): 0.0, bytes(get[0]): 0.0}
    for frames in (PING, PUBLISH, info, get, PUBLISH):
        arrivals.put(FLOOD, frames, 0.0)
        arrivals.put(OTHER, frames, 0.0)
    before = arrivals.bytes
    arrivals.hold(FLOOD)
    arrivals.drop_questions(FLOOD)
    assert arrivals.count == 7
    assert arrivals.bytes == before - sum(len(frame) for frames in (PING, info, get) for frame in frames)
    arrivals.release()
    assert desk.turn().count(FLOOD) == 2
    for kept in (OTHER, FLOOD):
        arrivals.drop_questions(kept)
    arrivals.put(FLOOD, PING, 0.0)
    arrivals.hold(FLOOD)
    arrivals.drop_questions(FLOOD)
    assert not arrivals.has(FLOOD)
    arrivals.release()
    assert arrivals.count == 0
    assert not arrivals.is_ready


def test_topics_of_a_block_count_as_bytes() -> None:
    """The journal's index has each of them, and groups are looked up for it after the commit."""
    share = CommitShare()
    share.published(OTHER, 100, 1, 0.0, 0.0)
    share.published(FLOOD, BYTES_MIN // 4, 1, 0.0, 0.0)
    assert not share.is_full(FLOOD)
    share.published(FLOOD, BYTES_MIN // 4, 4_096, 0.0, 0.0)
    assert share.is_full(FLOOD)
    assert not share.is_full(OTHER)
