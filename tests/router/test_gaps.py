"""A gap is reported to a consumer, whatever happens between the loss and the next consumer that can get the report."""

from typing import Any

import pytest

from fabric.records import Discard, SaveGroup
from fabric.router.block_store import BlockStore
from fabric.router.groups.gaps import UNTOLD_MAX
from fabric_protocol import messages as m
from fabric_protocol.messages import Verdict
from tests.router.world import World

P, A, B = b"\0prod", b"\0aaaa", b"\0bbbb"


class Losing(World):
    """A group `g` that is behind, over a journal that loses its oldest messages."""

    def __init__(self, *, stays: bool = False) -> None:
        super().__init__()
        self.arrive()
        self.sub(A, 1, "a", group="g", credit=0)
        if not stays:
            self.say(A, m.Unsubscribe(1, 6))

    def arrive(self) -> None:
        for peer in (P, A, B):
            self.hello(peer, ttl_ms=600_000)

    def trim(self, first_seq: int) -> None:
        out: list[tuple[bytes, m.ToClient]] = []
        self.router.trimmed(first_seq)
        out += self.router.take_frames()
        self._hear(out)
        self.reader.blocks = [block for block in self.reader.blocks if block.last_seq >= first_seq]

    def admin(self, op: str, **fields: Any) -> None:
        assert isinstance(self.say(P, m.Admin(3, {"op": op, **fields}))[-1], m.Ok)

    def gaps(self, peer: bytes) -> list[tuple[int, int]]:
        return [(said.first_seq, said.last_seq) for said in self.said.get(peer, []) if isinstance(said, m.Gap)]


@pytest.mark.parametrize("crashes", [1, 2])
def test_a_gap_of_retention_is_told_after_a_restart(crashes: int) -> None:
    w = Losing()
    for body in "12345":
        w.pub(P, "a", body)
    w.trim(4)
    w.commit()
    assert w.groups["g"].cursor == 4
    for _ in range(crashes):
        w.restart_at(4)
        w.arrive()
    w.sub(A, 1, group="g")
    assert w.gaps(A) == [(1, 3)]
    assert w.bodies(A) == ["4", "5"]
    w.sub(B, 1, group="g")
    assert w.gaps(B) == [], "it is told once"
    w.commit()
    w.restart_at(4)
    w.arrive()
    w.sub(B, 1, group="g")
    assert w.gaps(B) == []


def test_a_gap_that_is_told_and_not_written_down_is_told_again() -> None:
    w = Losing()
    w.pub(P, "a", "1")
    w.pub(P, "a", "2")
    w.trim(2)
    w.commit()
    w.say(A, m.Subscribe(1, 5, {"group": "g", "credit": [9, 1 << 40]}), commit=False)
    assert w.gaps(A) == [(1, 1)]
    w.restart_at(2)
    w.arrive()
    w.sub(A, 1, group="g")
    assert w.gaps(A) == [(1, 1)]


def test_a_gap_of_a_topic_is_on_disk_with_the_removed_block() -> None:
    w = Losing()
    for body in "123":
        w.pub(P, "a", body)
    w.restart()
    w.arrive()
    w.admin("topic.create", topic="a", max_msgs=1, on_full="drop_old")
    w.pub(P, "other", "4")
    for _ in range(4):
        w.pass_time(1)
    assert [block.base_seq for block in w.reader.blocks] == [3, 4]
    w.restart()
    w.arrive()
    w.sub(A, 1, group="g")
    assert w.gaps(A) == [(1, 1), (2, 2)]
    assert w.bodies(A) == ["3"]


def test_a_consumer_that_is_away_for_a_moment_hears_of_the_gap_when_it_is_back() -> None:
    w = Losing(stays=True)
    for body in "123":
        w.pub(P, "a", body)
    w.router.peer_gone(A)
    w.trim(3)
    w.said.clear()  # what is said to a broken connection is not heard
    w.say(A, m.Credit(1, 10, 1 << 40))
    assert w.gaps(A) == [(1, 2)]
    assert w.bodies(A) == ["3"]


@pytest.mark.parametrize("durable", [True, False])
def test_what_is_removed_before_the_router_hears_of_it_is_told(durable: bool) -> None:
    """The journal thread removes blocks, and its news is on the way; a group that reads from disk meanwhile must not
    take what is gone for what it does not want."""
    w = Losing()
    for body in "12345":
        w.pub(P, "a", body)
    w.restart()  # nothing is in memory
    w.arrive()
    w.reader.blocks, w.reader.begins_at = w.reader.blocks[3:], 4
    w.sub(A, 1, *([] if durable else ["a"]), start=None if durable else "first", group="g" if durable else None)
    w.pass_time(5)
    w.trim(4)
    w.pass_time(5)
    assert w.gaps(A) == [(1, 3)]
    assert w.bodies(A) == ["4", "5"]


def test_a_new_start_of_the_journal_without_a_loss_lets_a_group_go_on() -> None:
    w = Losing()
    for body in "123":
        w.pub(P, "a", body)
    w.restart()
    w.arrive()
    w.reader.blocks, w.reader.begins_at = w.reader.blocks[1:], 2
    w.sub(A, 1, group="g")
    assert w.bodies(A) == []
    w.router.begins_at(2)
    w.pass_time(1)
    assert w.bodies(A) == ["2", "3"]
    assert w.gaps(A) == []


def test_many_gaps_are_told_as_one_that_holds_them_all() -> None:
    w = Losing()
    group = w.router.groups["g"]
    for seq in reversed(range(1, UNTOLD_MAX + 2)):
        group.lost(seq * 10, seq * 10 + 1, "lost", w.router.turn)
    w.sub(A, 1, group="g")
    assert w.gaps(A) == [(10, UNTOLD_MAX * 10 + 11)]


def test_what_is_lost_while_it_is_held_is_told_after_a_restart() -> None:
    w = Losing(stays=True)
    w.say(A, m.Credit(1, 2, 1 << 40))
    for body in "123":
        w.pub(P, "a", body)
    w.settle(A, 1, Verdict.ACK, 2, 2)
    w.restart()
    w.arrive()
    w.trim(3)
    w.commit()
    w.restart_at(3)
    w.arrive()
    w.sub(A, 1, group="g")
    assert w.gaps(A) == [(1, 2)]


def test_a_gap_inside_a_block_is_told_once_when_the_group_comes_to_it() -> None:
    """The message before the gap waits for credit, and the group comes to its block again."""
    w = Losing()
    w.admin("group.update", group="g", patterns=["a", "b"])
    w.pub(P, ["b", "a", "b", "a", "b"], *"12345")
    w.admin("topic.create", topic="a", max_msgs=1, on_full="drop_old")
    w.pass_time(1)
    w.restart()
    w.arrive()
    w.sub(A, 1, group="g", credit=0)
    assert w.gaps(A) == []
    w.say(A, m.Credit(1, 1, 1 << 40))
    assert w.bodies(A) == ["1"]
    w.say(A, m.Credit(1, 9, 1 << 40))
    assert w.bodies(A) == ["1", "3", "4", "5"]
    assert w.gaps(A) == [(2, 2)]


def test_a_gap_that_no_consumer_can_hear_is_not_sent_twice() -> None:
    w = Losing(stays=True)
    for body in "123":
        w.pub(P, "a", body)
    w.router.peer_blocked(A, True)
    w.trim(3)
    assert w.gaps(A) == []
    w.router.peer_blocked(A, False)
    w.pass_time(1)
    assert w.gaps(A) == [(1, 2)]


def test_a_gap_that_a_moved_group_comes_to_again_is_told_once() -> None:
    w = Losing()
    for body in "12345":
        w.pub(P, "a", body)
    w.trim(4)
    w.admin("topic.create", topic="a", max_msgs=1, on_full="drop_old")
    w.pass_time(1)
    w.admin("group.seek", group="g", to="first")
    w.pass_time(1)
    w.sub(A, 1, group="g")
    assert w.bodies(A) == ["5"]
    assert w.gaps(A) == [(1, 3), (4, 4)]


def test_the_gap_of_a_discarded_block_and_the_discard_are_in_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a hub that ends between the two finds the block again, and reports the gap twice."""
    w = Losing()
    for topic, body in [("a", "1"), ("a", "2"), ("other", "3")]:
        w.pub(P, topic, body)
    w.admin("topic.create", topic="a", max_msgs=1, on_full="drop_old")
    for _ in range(4):
        w.pass_time(0.01)
    assert len(w.reader.blocks) == 3, "the group passes the removed block in memory"
    written: list[list[Any]] = []
    monkeypatch.setattr(w, "write", lambda records: written.append(list(records)))
    monkeypatch.setattr(BlockStore, "holds", lambda self, seq: False)
    for _ in range(4):
        w.pass_time(1)
    told = [records for records in written if any(isinstance(row, SaveGroup) and row.untold for row in records)]
    assert any(isinstance(row, Discard) for row in told[0])


def test_a_block_that_two_topics_find_empty_is_a_gap_once(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Losing()
    w.admin("group.update", group="g", patterns=["a", "b"])
    w.pub(P, "a", "0")
    w.pub(P, ["a", "b"], "1", "2")
    w.pub(P, "other", "3")
    for topic in "ab":
        w.admin("topic.create", topic=topic, max_age_ms=1000)
    w.pass_time(2)
    monkeypatch.setattr(BlockStore, "holds", lambda self, seq: False)
    for _ in range(4):
        w.pass_time(1)
    assert len(w.reader.blocks) == 1
    w.sub(A, 1, group="g")
    assert sorted(w.gaps(A)) == [(1, 1), (2, 3)]
