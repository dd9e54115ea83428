"""New patterns hold from the oldest message on that waits for the group, or from the next one that is published."""

from typing import Any

import pytest

from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.errors import Code
from fabric_protocol.messages import Verdict
from tests.router.world import World

P, A = b"\0prod", b"\0aaaa"
PLENTY = 1 << 40


class Change(World):
    """A consumer of the group `g`, which wants topic `a` and later `b` too."""

    def __init__(self, credit: int = 0, **group: Any) -> None:
        super().__init__()
        self.hello(P)
        self.hello(A, ttl_ms=600_000)
        self.sub(A, 1, "a", group="g", credit=credit, **group)

    def put(self, *words: str, priority: int = 4, commit: bool = True) -> None:
        """Each word is topic and body, as one block: `a1` has topic `a`."""
        block = encode([word[0] for word in words], [word.encode() for word in words], priority=priority)
        self.say(P, m.Publish(9, 0, m.Level.JOURNALED, block), commit=commit)

    def change(self, *patterns: str) -> m.ToClient:
        return self.say(P, m.Admin(3, {"op": "group.update", "group": "g", "patterns": list(patterns)}))[-1]

    def changed(self, *patterns: str) -> dict[str, Any]:
        answer = self.change(*patterns)
        assert isinstance(answer, m.Ok), answer
        return dict(answer.fields)

    def more(self, count: int = 1_000) -> list[str]:
        """Let the consumer have some more; returns what it gets."""
        before = len(self.bodies(A))
        sent = self.router.groups["g"].members[0].sent
        self.say(A, m.Credit(1, sent + count, PLENTY))
        return self.bodies(A)[before:]

    def ack(self) -> None:
        self.settle(A, 1, Verdict.ACK, 1, self.delivered(A)[-1][0])

    def comes_back(self) -> None:
        """The hub crashes; all clients come back, without credit."""
        self.restart()
        self.hello(P)
        self.hello(A, ttl_ms=600_000)
        self.sub(A, 1, group="g", credit=0)


@pytest.mark.parametrize("credit", [0, 1_000])
@pytest.mark.parametrize("order", ["none", "key", "strict"])
@pytest.mark.parametrize("crashes", [False, True])
def test_a_group_that_has_all_begins_with_the_next_message(credit: int, order: str, crashes: bool) -> None:
    w = Change(credit, order=order)
    w.put("a1")
    if not credit:
        assert w.more(1) == ["a1"]
    w.ack()
    w.put("b2")
    w.put("b3")
    if crashes:
        w.comes_back()
    assert w.changed("a", "b")["cursor"] == 4
    w.put("b4")
    w.put("a5")
    w.more()
    assert [body for body in w.bodies(A) if body != "a1"] == ["b4", "a5"]


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("consumes", [False, True])
def test_a_group_behind_begins_with_the_first_message_that_waits(crashes: bool, consumes: bool) -> None:
    w = Change()
    w.put("b1")
    w.put("a2")
    w.put("b3")
    w.put("a4")
    w.put("b5")
    if consumes:
        assert w.more(1) == ["a2"]
        w.ack()
    if crashes:
        w.comes_back()
    assert w.changed("a", "b")["cursor"] == (4 if consumes else 2)
    assert w.more() == (["a4", "b5"] if consumes else ["a2", "b3", "a4", "b5"])


@pytest.mark.parametrize("crashes", [False, True])
def test_each_priority_begins_with_its_own_first_message(crashes: bool) -> None:
    w = Change()
    w.put("a1", priority=9)
    w.put("b2", priority=9)
    w.put("b3")
    w.put("a4")
    w.put("b5")
    w.put("b6", priority=0)
    assert w.more(1) == ["a1"]
    w.ack()
    if crashes:
        w.comes_back()
    w.changed("a", "b")
    w.put("b7", priority=9)
    w.put("b8", priority=0)
    assert w.more() == ["b7", "a4", "b5", "b8"]


def test_a_group_without_consumers_keeps_to_the_rule() -> None:
    w = Change()
    w.say(A, m.Unsubscribe(1, 6))
    w.put("b1")
    w.put("a2")
    w.restart()
    w.hello(P)
    w.hello(A)
    w.changed("a", "b")
    w.put("b3")
    w.sub(A, 1, group="g")
    assert w.bodies(A) == ["a2", "b3"]


@pytest.mark.parametrize("crashes", ["before", "after"])
def test_what_lies_between_deliveries_does_not_become_the_groups(crashes: str) -> None:
    w = Change()
    w.put("a1", "b2", "a3", "b4", "a5")
    w.put("a6")
    assert w.more(4) == ["a1", "a3", "a5", "a6"]
    w.settle(A, 1, Verdict.ACK, 4, 4)
    if crashes == "before":
        w.comes_back()
    w.changed("a", "b")
    if crashes == "after":
        w.comes_back()
    assert w.more() == ["a1", "a3", "a5"]


def test_what_no_longer_matches_does_not_come_any_more() -> None:
    w = Change(backoff_ms=0)
    w.put("a1")
    w.put("a2")
    assert w.more(1) == ["a1"]
    w.settle(A, 1, Verdict.RETRY, 1, 1)
    w.changed("b")
    w.put("b3")
    assert w.more() == ["b3"]
    w.ack()
    assert w.router.groups["g"].floor == 3


def test_what_is_confirmed_and_not_on_disk_yet_counts_as_published() -> None:
    w = Change()
    w.put("b1", commit=False)
    out: list[tuple[bytes, m.ToClient]] = []
    w.router.step(m.Publish(9, 0, m.Level.RECEIVED, encode("a", [b"a2"])), P, w.now)
    out += w.router.take_frames()
    w.router.step(m.Publish(9, 0, m.Level.RECEIVED, encode("b", [b"b3"])), P, w.now)
    out += w.router.take_frames()
    turn = w.router.seal(w.wall_us(), w.now)
    out += w.router.take_frames()
    w.router.step(m.Admin(3, {"op": "group.update", "group": "g", "patterns": ["a", "b"]}), P, w.now)
    out += w.router.take_frames()
    w.write(turn.records)
    w.router.committed(w.now)
    out += w.router.take_frames()
    w.commit()
    assert w.more() == ["a2", "b3"]


def test_a_long_search_is_done_before_the_patterns_change() -> None:
    w = Change()
    w.say(A, m.Unsubscribe(1, 6))
    for n in range(10_000):
        block = encode("b", [b"x"], expires_us=n + 1)
        w.say(P, m.Publish(9, 0, m.Level.JOURNALED, block), commit=n % 20 == 19)
    w.put("a-last")
    assert w.reader.blocks[-1].last_seq == 10_001
    group = w.router.groups["g"]
    group.base.move(1)
    answer = w.change("a", "b")
    asked = 1
    while isinstance(answer, m.Err):
        assert answer.code == Code.BUSY
        assert answer.fields["retry_ms"] > 0
        answer = w.change("a", "b")
        asked += 1
        assert asked < 100
    assert asked > 1
    w.sub(A, 1, group="g")
    assert w.bodies(A) == ["a-last"]
