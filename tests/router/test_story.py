"""The story of one message: its events among others, its state in each group, its copies, its seq by id or key."""

from typing import Any

import pytest

from fabric.event_block import OpenEventBlock, rows
from fabric.records import SaveEvents
from fabric.router import event_index
from fabric.router.event_index import EventIndex, spans_of
from fabric.router.read import story
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.errors import Code
from tests.router.world import World
from tests.seeds import seeded

ACK, RETRY, RELEASE, REJECT, TOUCH = m.Verdict


class Told(World):
    """A hub with events on; `p` publishes, `c` consumes `a` in group `g`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.router.events.switch(True)
        self.hello(b"p")
        self.hello(b"c", client="consumer", ttl_ms=600_000)
        self.sub(b"c", 1, "a", group="g", **{"attempts_max": 3, "jitter_pct": 0, **settings})

    def ask(self, what: str, **fields: Any) -> dict[str, Any]:
        answer = self.say(b"p", m.Info(5, {"what": what, **fields}))[0]
        assert isinstance(answer, m.Ok), answer
        return dict(answer.fields)

    def refused(self, what: str, **fields: Any) -> m.Err:
        answer = self.say(b"p", m.Info(5, {"what": what, **fields}))[0]
        assert isinstance(answer, m.Err)
        return answer

    def events(self, seq: int, n: int = 1000) -> list[tuple[str, str, int]]:
        """(kind, client, attempt) of all events about a message, from all pages."""
        found, answer = list[dict[str, Any]](), self.ask("story", seq=seq, n=n)
        while True:
            found += answer["events"]
            if not answer["more"]:
                break
            answer = self.ask("story", seq=seq, n=n, after=answer["next"])
        numbers = [event["number"] for event in found]
        assert numbers == sorted(set(numbers))
        return [(event["kind"], event["client"], event["attempt"]) for event in found]

    def state(self, seq: int, group: str = "g") -> dict[str, Any]:
        rows = {row["group"]: row for row in self.ask("story", seq=seq)["groups"]}
        found: dict[str, Any] = rows[group]
        return found


def test_the_story_has_the_message_its_events_and_its_state() -> None:
    world = Told()
    world.say(b"p", m.Publish(3, 0, 0, encode("a", [b"one", b"three"], keys=[b"k", b""], ids=[b"i", b"j"])))
    world.settle(b"c", 1, ACK, 1, 1)
    answer = world.ask("story", seq=1)
    message = answer["message"]
    assert (message["topic"], message["bytes"], message["key"], message["id"]) == ("a", 3, "k", "i")
    assert world.events(1) == [("deliver", "consumer", 1), ("ack", "consumer", 1)]
    assert world.state(1) == {"group": "g", "state": "settled"}
    assert answer["recording"] is True
    assert world.events(2) == [("deliver", "consumer", 1)]
    leased = world.state(2)
    assert (leased["state"], leased["client"], leased["attempt"]) == ("leased", "consumer", 1)
    assert leased["until_us"] > world.wall_us()
    assert "key" not in world.ask("story", seq=2)["message"]


def test_events_that_are_not_on_disk_yet_are_told() -> None:
    world = Told()
    world.pub(b"p", "a", "1")
    world.pass_time(2)
    world.say(b"c", m.Settle(1, 0, ((ACK, 1, 1, None),)), commit=False)
    assert world.events(1)[-1] == ("ack", "consumer", 1)
    assert world.events(1, n=1)[-1] == ("ack", "consumer", 1)


def test_a_message_that_waits_tells_what_for() -> None:
    world = Told()
    world.pub(b"p", "a", "1")
    world.settle(b"c", 1, RETRY, 1, 1, (60_000, "no paper"))
    state = world.state(1)
    assert (state["state"], state["attempt"], state["failures"], state["reason"]) == ("retrying", 2, 1, "no paper")
    assert 59e6 < state["due_us"] - world.wall_us() < 61e6
    world.say(b"c", m.Unsubscribe(1, 4))
    world.pub(b"p", "a", "2")
    assert world.state(2) == {
        "group": "g", "state": "ready", "reached": False, "ahead": 0, "paused": False, "consumers": 0,
    }  # fmt: skip


def test_a_message_behind_its_key_tells_which_message_it_waits_for() -> None:
    world = Told(order="key")
    world.say(b"p", m.Publish(3, 0, 0, encode("a", [b"1", b"2", b"3"], keys=[b"k", b"k", b"other"])))
    world.settle(b"c", 1, RETRY, 1, 1, 60_000)
    assert world.state(1)["state"] == "retrying"
    behind = world.state(2)
    assert (behind["state"], behind["parked"], behind["behind"]) == ("ready", True, 1)
    assert world.state(3)["state"] == "leased"


def test_a_suspect_and_a_released_message() -> None:
    world = Told()
    world.pub(b"p", "a", "1", "2")
    world.settle(b"c", 1, RETRY, 1, 1, 0)
    world.settle(b"c", 1, RETRY, 3, 3, 0)
    assert world.state(1)["state"] == "suspect"
    world.settle(b"c", 1, RELEASE, 2, 2)
    assert ("release", "consumer", 1) in world.events(2)


def test_every_group_that_matches_is_told_and_no_other() -> None:
    world = Told()
    world.sub(b"c", 2, "#", group="all", credit=0)
    world.sub(b"c", 3, "b", group="other")
    world.sub(b"c", 4, "a")
    world.pub(b"p", "a", "1")
    assert [row["group"] for row in world.ask("story", seq=1)["groups"]] == ["all", "g"]


def test_dead_letters_and_redriven_copies_are_found() -> None:
    world = Told()
    world.pub(b"p", "a", "1", "2")
    world.settle(b"c", 1, REJECT, 1, 1, "wrong size")
    assert world.events(1)[-1] == ("dead", "consumer", 1)
    (letter,) = world.ask("copies", seq=1)["copies"]
    assert (letter["kind"], letter["seq"], letter["group"], letter["listed"]) == ("dead letter", 3, "g", True)
    assert (letter["reason"], letter["error"]) == ("rejected", "wrong size")
    world.say(b"p", m.Admin(6, {"op": "dlq.redrive", "group": "g", "all": True}))
    letter, copy = world.ask("copies", seq=1, group="g")["copies"]
    assert letter["listed"] is False
    assert (copy["kind"], copy["seq"], copy["group"], copy["redriven"]) == ("redrive", 4, "g", 1)
    assert world.ask("story", seq=4)["message"]["headers"]["fabric-seq"] == "1"
    assert world.events(4) == [("deliver", "consumer", 1)]
    assert world.ask("copies", seq=2)["copies"] == []
    assert world.ask("copies", seq=1, after=3)["copies"] == [copy]
    assert world.ask("copies", seq=1, time_us=world.wall_us() + 10**9)["copies"] == []


def test_messages_are_found_by_id_and_by_key_the_newest_first() -> None:
    world = Told()
    for n in range(1, 4):
        block = encode(["a", "b"], [b"x", b"y"], keys=[b"k", b"%d" % n], ids=[b"id%d" % n, b""])
        world.say(b"p", m.Publish(3, 0, 0, block))
    assert world.ask("find", key="k", n=9)["seqs"] == [5, 3, 1]
    assert world.ask("find", key="k") == {"seqs": [5], "more": True, "next": 5}
    assert world.ask("find", key="k", before=5)["seqs"] == [3]
    assert world.ask("find", id="id2")["seqs"] == [3]
    assert world.ask("find", id="id2", topic="b")["seqs"] == []
    assert world.ask("find", key="2", pattern="b")["seqs"] == [4]
    assert world.ask("find", key="nothing") == {"seqs": [], "more": False, "next": 1}


@pytest.mark.parametrize(
    ("what", "fields", "code"),
    [
        ("story", {"seq": 99}, Code.NOT_FOUND),
        ("story", {}, Code.BAD_OPTION),
        ("story", {"seq": True}, Code.BAD_OPTION),
        ("find", {}, Code.BAD_OPTION),
        ("find", {"id": "i", "key": "k"}, Code.BAD_OPTION),
        ("find", {"key": 7}, Code.BAD_OPTION),
        ("copies", {"seq": "1"}, Code.BAD_OPTION),
        ("copies", {"seq": 1, "group": 5}, Code.BAD_OPTION),
    ],
)
def test_wrong_questions_are_refused(what: str, fields: dict[str, Any], code: Code) -> None:
    world = Told()
    world.pub(b"p", "a", "1")
    assert world.refused(what, **fields).code == code


def test_a_message_that_retention_has_removed_keeps_its_events() -> None:
    world = Told()
    world.pub(b"p", "a", "1")
    world.settle(b"c", 1, ACK, 1, 1)
    world.pub(b"p", "a", "2")
    world.pass_time(2)
    world.router.trimmed(2)
    answer = world.ask("story", seq=1)
    assert (answer["message"], answer["groups"]) == (None, [])
    assert world.events(1) == [("deliver", "consumer", 1), ("ack", "consumer", 1)]


# The index.


def test_spans_cover_all_pairs_and_keep_the_longest_gaps() -> None:
    assert spans_of([(5, 6), (1, 2), (3, 3), (10, 12), (11, 11)], most=9) == [(1, 3), (5, 6), (10, 12)]
    assert spans_of([(1, 1), (3, 3), (100, 100), (103, 103)], most=2) == [(1, 3), (100, 103)]
    generator = seeded("spans")
    for _ in range(20):
        pairs = [(first, first + generator.randrange(4)) for first in (generator.randrange(500) for _ in range(80))]
        spans = spans_of(pairs, most=7)
        assert len(spans) <= 7
        assert spans == sorted(spans)
        assert all(any(a <= first and last <= b for a, b in spans) for first, last in pairs)


def test_the_index_finds_what_a_search_of_all_events_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """With summaries on disk, with a part that has none, after restarts, and with events off in between."""
    monkeypatch.setattr(event_index, "STRETCH_EVENTS", 9)
    monkeypatch.setattr(event_index, "SPANS_MAX", 3)
    monkeypatch.setattr(story, "BLOCKS_MAX", 3)
    generator = seeded("the index of events")
    for _ in range(10):
        world = Told()
        first, index = 1, EventIndex(())
        for _ in range(40):
            block = OpenEventBlock()
            for _ in range(generator.randrange(1, 5)):
                low = generator.randrange(1, 60)
                block.add((1, 0, "g", str(generator.random()), 1), low, low + generator.randrange(4))
            world.write([SaveEvents(first, len(block), block.encode(first))])
            index.add(first, block.pairs())
            world.write(index.rows())
            first += len(block)
            if generator.random() < 0.1:
                index = EventIndex(world.settings.values())
        world.router.events.index = index
        world.pub(b"p", "b", *"x" * 70)
        stored = [event for record in world.reader.events for event in rows(record.value)]
        for seq in range(1, 65):
            expected = [event.number for event in stored if event.first_seq <= seq <= event.last_seq]
            found, after = list[int](), 0
            while True:
                answer = world.ask("story", seq=seq, after=after, n=2)
                found += [event["number"] for event in answer["events"]]
                if not answer["more"]:
                    break
                after = answer["next"]
            assert found == expected, seq


def test_summaries_are_rows_and_go_when_retention_removes_their_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_index, "STRETCH_EVENTS", 2)
    world = Told()
    for n in range(1, 9):
        world.pub(b"p", "a", "x")
        world.settle(b"c", 1, ACK, n, n)
    names = [name for name in world.settings if name.startswith("events:")]
    assert len(names) >= 4
    kept = len(world.router.events.index)
    world.restart()
    assert len(world.router.events.index) == kept
    world.hello(b"p")
    world.router.events.switch(True)
    del world.reader.events[:4]
    first = world.reader.first_event()
    world.pass_time(20)
    world.pub(b"p", "a", "x")
    left = [int(name.removeprefix("events:")) for name in world.settings if name.startswith("events:")]
    assert 0 < len(left) < len(names)
    assert world.events(8)
    assert min(left) + 2 > first
