"""Delivery events in the router: recorded, written with the turn, numbered."""

from fabric import event_block as events
from fabric.event_block import EVENTS_MAX
from fabric.records import SaveEvents, SaveGroup
from fabric.router.clock import Clock
from fabric.router.event_recorder import WAIT_S, Events
from fabric.router.timers import NEVER
from fabric_protocol import messages as m
from fabric_protocol.messages import Happening
from tests.router.world import MemoryReader, World

ACK, RETRY, RELEASE, REJECT, TOUCH = m.Verdict


class Witness(World):
    """A hub that notes; `c` consumes `a` in group `g`."""

    def __init__(self) -> None:
        super().__init__()
        self.router.events.switch(True)
        self.hello(b"p")
        self.hello(b"c", client="consumer", ttl_ms=600_000)
        self.sub(b"c", 1, "a", group="g", attempts_max=2)

    def pass_on(self) -> None:
        """Time enough that all which was noted is on disk."""
        self.pass_time(WAIT_S)
        self.pass_time(WAIT_S)

    def noted(self) -> list[tuple[str, int, int, int]]:
        """(what, attempt, first seq, last seq) of all events on disk; everything is about group g."""
        self.pass_on()
        rows = [event for record in self.reader.events for event in events.rows(record.value)]
        assert {(row.group, row.client) for row in rows} <= {("g", "consumer")}
        assert [row.number for row in rows] == list(range(1, len(rows) + 1))
        assert [row.ts_us for row in rows] == sorted(row.ts_us for row in rows)
        return [(Happening(row.kind).name, row.attempt, row.first_seq, row.last_seq) for row in rows]


def test_nothing_is_noted_unless_it_is_switched_on() -> None:
    world = World()
    world.hello(b"c")
    world.sub(b"c", 1, "a", group="g")
    world.pub(b"c", "a", "1")
    world.settle(b"c", 1, ACK, 1, 1)
    assert not world.router.events.is_on
    assert not len(world.router.events)
    assert not world.reader.events


def test_delivered_and_acked() -> None:
    witness = Witness()
    witness.pub(b"p", "a", "1", "2", "3")
    witness.settle(b"c", 1, ACK, 1, 2)
    witness.settle(b"c", 1, ACK, 3, 3)
    assert witness.noted() == [("DELIVER", 1, 1, 3), ("ACK", 1, 1, 2), ("ACK", 1, 3, 3)]


def test_what_happens_to_a_range_in_one_moment_is_one_event() -> None:
    witness = Witness()
    witness.pub(b"p", "a", "1", "2", "3", "4")
    witness.say(b"c", m.Settle(1, 7, ((ACK, 1, 2, None), (ACK, 3, 3, None), (RELEASE, 4, 4, None))))
    assert witness.noted()[:3] == [("DELIVER", 1, 1, 4), ("ACK", 1, 1, 3), ("RELEASE", 1, 4, 4)]


def test_retried_lapsed_and_dead() -> None:
    witness = Witness()
    witness.pub(b"p", "a", "1", "2")
    witness.settle(b"c", 1, RELEASE, 1, 1)
    witness.settle(b"c", 1, REJECT, 2, 2, "no")
    witness.settle(b"c", 1, RETRY, 3, 3, 1)
    witness.pass_time(1)
    for _ in range(4):
        witness.say(b"c", m.Ping(0))
        witness.pass_time(10)
    kinds = [(kind, first) for kind, _, first, _ in witness.noted()]
    assert [kind for kind, first in kinds if first == 1 and kind != "DELIVER"][:2] == ["RELEASE", "RETRY"]
    assert kinds.count(("DELIVER", 1)) >= 3
    assert ("DEAD", 2) in kinds
    assert ("LAPSE", 1) in kinds or ("DEAD", 1) in kinds


def test_a_lost_session_is_noted() -> None:
    witness = Witness()
    witness.pub(b"p", "a", "1")
    (session,) = [s for s in witness.router.session_table.sessions.values() if s.client == "consumer"]
    session.ttl_s = 1.0
    witness.pass_time(2)
    assert ("LOST", 1, 1, 1) in witness.noted()


def test_events_are_written_with_the_turn_of_what_they_speak_of() -> None:
    witness = Witness()
    witness.pub(b"p", "a", "1")
    out: list[tuple[bytes, m.ToClient]] = []
    witness.router.step(m.Settle(1, 7, ((ACK, 1, 1, None),)), b"c", witness.now)
    out += witness.router.take_frames()
    turn = witness.router.seal(5_000, witness.now)
    out += witness.router.take_frames()
    (record,) = [record for record in turn.records if isinstance(record, SaveEvents)]
    assert [Happening(event.kind) for event in events.rows(record.value)] == [Happening.DELIVER, Happening.ACK]
    assert any(isinstance(record, SaveGroup) for record in turn.records)


def test_switched_off_what_was_noted_is_still_written() -> None:
    witness = Witness()
    witness.pub(b"p", "a", "1")
    witness.router.events.switch(False)
    witness.settle(b"c", 1, ACK, 1, 1)
    assert witness.noted() == [("DELIVER", 1, 1, 1)]
    witness.router.events.switch(True)
    witness.pub(b"p", "a", "2")
    assert witness.noted() == [("DELIVER", 1, 1, 1), ("DELIVER", 1, 2, 2)], "and the numbers go on"


def test_numbers_go_on_after_a_restart() -> None:
    witness = Witness()
    witness.pub(b"p", "a", "1")
    witness.pass_on()
    witness.restart()
    witness.router.events.switch(True)
    witness.hello(b"c", client="consumer")
    witness.sub(b"c", 1, group="g")
    assert [row[0] for row in witness.noted()] == ["DELIVER", "DELIVER"]


# The gatherer alone.


def test_what_was_noted_waits_a_second_for_company() -> None:
    noted = Events(Clock(), MemoryReader())
    noted.switch(True)
    assert noted.commit_at == NEVER
    noted.note(Happening.ACK, "g", "c", 1, [(1, 1)])
    noted.tick(10.0, World().router.turn)
    noted.tick(10.5, World().router.turn)
    assert noted.commit_at == 10.0 + WAIT_S
    (record,) = noted.rows()
    assert isinstance(record, SaveEvents)
    assert (record.first, record.count) == (1, 1)
    assert noted.commit_at == NEVER
    assert noted.rows() == []


def test_a_full_block_asks_for_a_commit_and_the_next_is_begun() -> None:
    noted = Events(Clock(), MemoryReader())
    noted.switch(True)
    for seq in range(1, 2 * EVENTS_MAX + 2, 2):
        noted.note(Happening.ACK, "g", "c", 1, [(seq, seq)])
    assert len(noted) == EVENTS_MAX + 1
    assert noted.commit_at == 0.0
    records = noted.rows()
    assert [(record.first, record.count) for record in records if isinstance(record, SaveEvents)] == [
        (1, EVENTS_MAX),
        (EVENTS_MAX + 1, 1),
    ]
