"""Delayed publishes: when they get their seqs, which session may cancel them, what a crash does to them."""

import json
from pathlib import Path
from typing import Any

import pytest

from fabric.records import CountSchedules, SaveSchedule
from fabric.router.publish.publishing import Refusal
from fabric.router.schedules import due_queue
from fabric.router.schedules import schedules as schedule
from fabric.router.schedules.cron import Cron
from fabric.router.schedules.options import EXPIRY_GRAIN_US, NAME_CHARS_MAX
from fabric.router.turn import Turn
from fabric_protocol import messages as m
from fabric_protocol.block import Block, encode
from fabric_protocol.bounds import EVERY_MS, HORIZON_MS, SCHEDULES_N
from fabric_protocol.errors import Code, ProtocolError
from tests.router.world import World

A, B = b"a", b"b"


class Later(World):
    """A world in which the wall's clock may be set, and with words for what comes later."""

    def __init__(self) -> None:
        self.ahead_us = 0
        super().__init__()
        welcome = self.hello(A, producer={"name": "p"})
        assert isinstance(welcome, m.Welcome)
        self.epoch = welcome.fields["producer"]["epoch"]

    def wall_us(self) -> int:
        return int(self.now * 1e6) + self.ahead_us

    def set_clock(self, by_s: float) -> None:
        self.ahead_us += int(by_s * 1e6)
        self.router.begin(self.wall_us(), self.now)

    def restart(self) -> None:
        super().restart()
        self.router.begin(self.wall_us(), self.now)
        self.hello(A, producer={"name": "p", "epoch": self.epoch})

    def listed(self, fields: dict[str, Any]) -> dict[str, Any]:
        return self.router.schedules.describe(fields, self.router.principals.local)

    def later(self, body: str, topic: str = "t", *, pseq: int = 0, commit: bool = True, **options: Any) -> Any:
        """The answer to a publish with options; what they hear when it is on disk."""
        publish = m.Publish(7, pseq, m.Level.JOURNALED, encode(topic, [body.encode()]), options)
        heard = self.say(A, publish, commit=commit)
        return heard[-1] if heard else None

    def schedule(self, body: str, topic: str = "t", **options: Any) -> int:
        answer = self.later(body, topic, **options)
        assert isinstance(answer, m.Ok), answer
        assert set(answer.fields) <= {"schedule", "due_us", "dup", "replaced"}
        number: int = answer.fields["schedule"]
        return number

    def cancel(self, **fields: Any) -> m.ToClient:
        return self.say(A, m.Cancel(8, fields))[-1]

    def stored(self) -> list[str]:
        return [body.decode() for block in self.reader.blocks for body in block.payloads()]

    def waiting(self) -> list[str]:
        rows = self.reader.schedules.rows
        return [Block(rows[key].block).payloads()[0].decode() for key in sorted(rows)]

    def refused(self, **options: Any) -> str:
        answer = self.later("x", **options)
        assert isinstance(answer, m.Err), answer
        assert answer.code == Code.BAD_OPTION
        assert not self.reader.schedules.rows
        return answer.text


@pytest.fixture
def world() -> Later:
    return Later()


# When.


def test_a_delayed_message_gets_its_seq_when_it_is_due(world: Later) -> None:
    answer = world.later("late", delay_ms=1500)
    assert answer == m.Ok(0, 7, {"schedule": 1, "due_us": world.wall_us() + 1_500_000})
    assert world.stored() == []
    world.pub(A, "t", "now")
    world.pass_time(1.4)
    assert world.stored() == ["now"]
    world.pass_time(0.1)
    assert world.stored() == ["now", "late"]
    assert world.reader.blocks[-1].base_seq == 2
    assert not world.reader.schedules.rows


def test_it_is_confirmed_when_it_is_on_disk_and_not_before(world: Later) -> None:
    assert world.later("late", delay_ms=1500, commit=False) is None
    world.commit()
    assert isinstance(world.said[A][-1], m.Ok)
    assert world.waiting() == ["late"]


def test_delivery_is_in_the_order_of_becoming_due(world: Later) -> None:
    world.hello(B)
    world.sub(B, 1, "t")
    for body, delay_ms in (("three", 300), ("one", 100), ("two", 200)):
        world.schedule(body, delay_ms=delay_ms)
    world.pass_time(1.0)
    world.pass_time(0.0)
    assert world.bodies(B) == ["one", "two", "three"]


def test_the_past_is_due_at_once(world: Later) -> None:
    world.schedule("old", at_us=5)
    world.schedule("zero", delay_ms=0)
    world.pass_time(0.0)
    assert world.stored() == ["old", "zero"]
    assert not world.reader.schedules.rows


def test_the_hub_wakes_up_for_it(world: Later) -> None:
    world.schedule("late", delay_ms=100)
    assert world.router.next_deadline() == pytest.approx(world.now + 0.1)


def test_what_was_due_while_the_hub_was_down_is_fired_in_order(world: Later) -> None:
    for body, delay_ms in (("two", 2000), ("one", 1000), ("much later", 90_000)):
        world.schedule(body, delay_ms=delay_ms)
    world.now += 10
    world.restart()
    world.pass_time(0.0)
    assert world.stored() == ["one", "two"]
    assert world.waiting() == ["much later"]
    world.pass_time(81.0)
    assert world.stored() == ["one", "two", "much later"]


def test_many_that_are_due_are_fired_in_steps(world: Later, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "FIRE_MAX", 3)
    monkeypatch.setattr(schedule, "TURN_MAX", 5)
    for i in range(12):
        world.schedule(str(i), delay_ms=1000)
    world.now += 2
    world.router.tick(world.now)
    world.router.take_frames()
    world.router.tick(world.now)
    world.router.take_frames()
    world.router.tick(world.now)
    world.router.take_frames()
    assert world.router.schedules.next_deadline() == float("inf"), "held up until the turn is sealed"
    world.commit()
    assert world.stored() == list(map(str, range(5)))
    assert world.router.next_deadline() <= world.now
    for _ in range(4):
        world.pass_time(0.0)
    assert world.stored() == list(map(str, range(12)))


def test_singles_that_are_due_together_become_one_block(world: Later) -> None:
    for i in range(20):
        world.schedule(str(i), delay_ms=1000 + i, ttl_ms=60_000)
    world.pass_time(2.0)
    assert sum(block.count for block in world.reader.blocks) == 20
    assert len(world.reader.blocks) <= 4, "expiries are rounded, so that they can be joined"


def test_a_crash_before_the_commit_fires_it_again_and_after_it_does_not(world: Later) -> None:
    world.schedule("once", delay_ms=1000)
    world.now += 2
    world.router.tick(world.now)
    world.router.take_frames()
    world.router.seal(world.wall_us(), world.now)  # never reaches the disk
    world.router.take_frames()
    assert (world.stored(), world.waiting()) == ([], ["once"])
    world.restart()
    world.pass_time(0.0)
    assert (world.stored(), world.waiting()) == (["once"], [])
    world.restart()
    world.pass_time(100.0)
    assert world.stored() == ["once"]


def test_the_clock_may_be_set_back_and_forth(world: Later) -> None:
    world.schedule("one", delay_ms=10_000)
    world.set_clock(-3600)
    world.schedule("two", delay_ms=10_000)
    world.pass_time(11.0)
    assert world.stored() == ["two"]
    world.set_clock(3600)
    world.pass_time(0.0)
    assert world.stored() == ["two", "one"]
    world.set_clock(-7200)
    world.pass_time(0.0)
    world.set_clock(14_400)
    world.pass_time(0.0)
    assert world.stored() == ["two", "one"]


def test_a_full_disk_makes_them_wait(world: Later) -> None:
    world.schedule("late", delay_ms=1000)
    world.router.refuse_publishes(Refusal(Code.DISK_FULL, "full", 1000))
    world.pass_time(2.0)
    assert world.stored() == []
    assert world.router.schedules.next_deadline() == float("inf")
    refused = world.later("refused", delay_ms=1)
    assert (refused.code, refused.fields) == (Code.DISK_FULL, {"retry_ms": 1000})
    world.router.refuse_publishes(None)
    world.pass_time(0.0)
    assert world.stored() == ["late"]


# How long.


def test_ttl_counts_from_acceptance(world: Later) -> None:
    answer = world.later("x", ttl_ms=5000)
    assert isinstance(answer, m.PubOk)
    (block,) = world.reader.blocks
    assert block.expires_us == world.wall_us() + 5_000_000
    block.verify()
    block.verify_stamp()


def test_ttl_counts_from_the_time_it_is_due(world: Later) -> None:
    due_us = world.wall_us() + 3_000_000
    world.schedule("x", delay_ms=3000, ttl_ms=5000)
    world.pass_time(4.0)
    (block,) = world.reader.blocks
    assert block.expires_us == due_us + 5_000_000


def test_an_expiry_of_the_blocks_own_counts_when_it_is_earlier(world: Later) -> None:
    soon, late = world.wall_us() + 1_234_567, world.wall_us() + 99_000_000
    for own_us in (soon, late):
        raw = encode("t", [b"x"], expires_us=own_us)
        world.say(A, m.Publish(7, 0, m.Level.JOURNALED, raw, {"ttl_ms": 5000}))
    assert [block.expires_us for block in world.reader.blocks] == [soon, world.wall_us() + 5_000_000]


def test_what_would_expire_before_it_is_due_is_refused(world: Later) -> None:
    raw = encode("t", [b"x"], expires_us=world.wall_us() + 1_000_000)
    (answer,) = world.say(A, m.Publish(7, 0, m.Level.JOURNALED, raw, {"delay_ms": 2000}))
    assert isinstance(answer, m.Err)
    assert "before it is due" in answer.text


def test_expiries_are_rounded_up(world: Later) -> None:
    world.now += 0.001234
    world.later("x", ttl_ms=1)
    (block,) = world.reader.blocks
    assert block.expires_us % EXPIRY_GRAIN_US == 0
    assert 0 <= block.expires_us - (world.wall_us() + 1000) < EXPIRY_GRAIN_US


# Again and again.


def test_every_so_often(world: Later) -> None:
    world.schedule("tick", every_ms=1000)
    for _ in range(5):
        world.pass_time(0.5)
        world.pass_time(0.5)
    assert world.stored() == ["tick"] * 5
    assert world.waiting() == ["tick"]


def test_the_start_of_what_repeats_can_be_chosen(world: Later) -> None:
    world.schedule("tick", every_ms=1000, delay_ms=200)
    world.pass_time(0.2)
    assert world.stored() == ["tick"]
    world.pass_time(1.0)
    assert world.stored() == ["tick"] * 2


def test_missed_rounds_are_fired_once_and_the_rhythm_is_kept(world: Later) -> None:
    begun = world.wall_us()
    world.schedule("tick", every_ms=1000)
    world.now += 7.3
    world.restart()
    world.pass_time(0.0)
    assert world.stored() == ["tick"]
    assert [due for due, _ in world.reader.schedules.rows] == [begun + 8_000_000]


def test_by_the_calendar(world: Later) -> None:
    answer = world.later("noon", cron="0 12 * * *")
    assert answer.fields["due_us"] == 12 * 3_600_000_000
    world.pass_time(12 * 3600.0)
    assert world.stored() == ["noon"]
    assert list(world.reader.schedules.rows) == [(36 * 3_600_000_000, 1)]
    world.pass_time(9 * 86_400.0)
    assert world.stored() == ["noon"] * 2


def test_a_calendar_may_begin_later(world: Later) -> None:
    answer = world.later("noon", cron="0 12 * * *", at_us=20 * 86_400_000_000 + 12 * 3_600_000_000)
    assert answer.fields["due_us"] == 20 * 86_400_000_000 + 12 * 3_600_000_000


def test_what_repeats_keeps_its_number_and_can_be_cancelled(world: Later) -> None:
    number = world.schedule("tick", every_ms=1000)
    world.pass_time(1.0)
    world.pass_time(1.0)
    answer = world.cancel(id=number)
    assert isinstance(answer, m.Ok)
    world.pass_time(10.0)
    assert world.stored() == ["tick"] * 2
    assert world.listed({})["topics"] == {}


# Names.


def test_a_name_has_one_schedule_and_a_new_one_replaces_it(world: Later) -> None:
    first = world.schedule("one", delay_ms=1000, name="job")
    answer = world.later("two", delay_ms=2000, name="job")
    assert answer.fields["replaced"] == first
    assert world.waiting() == ["two"]
    world.pass_time(5.0)
    assert world.stored() == ["two"]


def test_replacing_within_one_turn(world: Later) -> None:
    world.later("one", delay_ms=1000, name="job", commit=False)
    world.later("two", delay_ms=1000, name="job", commit=False)
    world.later("three", delay_ms=1000, name="job", commit=False)
    world.commit()
    assert world.waiting() == ["three"]
    assert world.reader.schedules.counts(9).messages == 1


def test_a_name_is_free_when_its_schedule_has_fired(world: Later) -> None:
    world.schedule("one", delay_ms=1000, name="job")
    world.pass_time(2.0)
    assert "replaced" not in world.later("two", delay_ms=1000, name="job").fields
    assert isinstance(world.cancel(name="job"), m.Ok)
    answer = world.cancel(name="job")
    assert isinstance(answer, m.Err)
    assert (answer.code, answer.rid) == (Code.NOT_FOUND, 8)
    assert "'job'" in answer.text


# Taking back.


def test_cancel_takes_it_back(world: Later) -> None:
    number = world.schedule("late", delay_ms=1000)
    answer = world.cancel(id=number)
    assert isinstance(answer, m.Ok)
    assert answer.fields == {"cancelled": True, "schedule": number, "due_us": world.wall_us() + 1_000_000}
    world.pass_time(5.0)
    assert world.stored() == []
    again = world.cancel(id=number)
    assert isinstance(again, m.Err)
    assert again.text == f"schedule {number} was cancelled"


def test_of_cancel_and_fire_one_wins_and_the_answer_says_which(world: Later) -> None:
    number = world.schedule("late", delay_ms=1000)
    world.now += 1.0
    world.router.tick(world.now)  # fired, not on disk
    world.router.take_frames()
    heard = world.say(A, m.Cancel(8, {"id": number}), commit=False)
    assert heard == [], "said when the firing is on disk"
    world.commit()
    answer = world.said[A][-1]
    assert isinstance(answer, m.Err)
    assert answer.text == f"schedule {number} has fired"
    assert world.stored() == ["late"]
    world.restart()
    forgotten = world.cancel(id=number)
    assert isinstance(forgotten, m.Err)
    assert forgotten.text == f"schedule {number} has fired or was cancelled"


def test_cancel_before_its_turn_is_on_disk(world: Later) -> None:
    world.later("late", delay_ms=1000, commit=False)
    world.say(A, m.Cancel(8, {"id": 1}), commit=False)
    world.commit()
    assert world.waiting() == []
    assert world.reader.schedules.counts(9) == (1, 0, 0, {})
    world.pass_time(5.0)
    assert world.stored() == []


def test_numbers_are_not_used_again(world: Later) -> None:
    assert world.schedule("one", delay_ms=1000) == 1
    world.cancel(id=1)
    world.restart()
    assert world.schedule("two", delay_ms=1000) == 2
    answer = world.cancel(id=3)
    assert isinstance(answer, m.Err)
    assert answer.text == "schedule 3 never existed; the latest is 2"


@pytest.mark.parametrize(
    "fields",
    [{}, {"id": 1, "name": "x"}, {"id": 0}, {"id": "1"}, {"id": True}, {"name": ""}, {"name": 5}, {"name": "x" * 129}],
)
def test_a_wrong_cancel_is_refused(world: Later, fields: dict[str, Any]) -> None:
    world.schedule("late", delay_ms=1000, name="x")
    answer = world.cancel(**fields)
    assert isinstance(answer, m.Err)
    assert answer.code == Code.BAD_OPTION
    assert world.waiting() == ["late"]


def test_a_cancel_without_rid_is_not_answered(world: Later) -> None:
    number = world.schedule("late", delay_ms=1000)
    assert world.say(A, m.Cancel(0, {"id": number})) == []
    assert world.waiting() == []


# Wrong options.


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delay": 5}, "option 'delay' is not known"),
        ({"ttl_ms": 0}, f"ttl_ms is 1..{HORIZON_MS}, not 0"),
        ({"ttl_ms": HORIZON_MS + 1}, f"ttl_ms is 1..{HORIZON_MS}"),
        ({"ttl_ms": "5"}, "ttl_ms is"),
        ({"delay_ms": -1}, f"delay_ms is 0..{HORIZON_MS}, not -1"),
        ({"delay_ms": 1.5}, "delay_ms is"),
        ({"delay_ms": HORIZON_MS + 1}, "delay_ms is"),
        ({"at_us": -1}, "at_us is"),
        ({"at_us": 10**18}, "at_us 1000000000000000000 is more than 10 years ahead"),
        ({"every_ms": 99}, f"every_ms is 100..{HORIZON_MS}, not 99"),
        ({"cron": "x"}, "cron 'x' has 1 fields, not 5"),
        ({"cron": 5}, "cron is text"),
        ({"cron": " "}, "cron is empty"),
        ({"delay_ms": 1, "at_us": 1}, "delay_ms and at_us exclude each other"),
        ({"every_ms": 100, "cron": "* * * * *"}, "every_ms and cron exclude each other"),
        ({"name": "x"}, "name is the name of a schedule: it needs delay_ms, at_us, every_ms or cron"),
        ({"name": "x" * 129, "delay_ms": 1}, "name is text of at most 128 characters"),
        ({"name": "", "delay_ms": 1}, "name is empty"),
    ],
)
def test_wrong_options_are_refused(world: Later, options: dict[str, Any], text: str) -> None:
    assert text in world.refused(**options)


def test_the_checks_of_any_publish_apply(world: Later) -> None:
    for topic, code in (("$sys.x", Code.FORBIDDEN), ("a..b", Code.BAD_TOPIC)):
        assert world.later("x", topic, delay_ms=1).code == code
    broken = bytearray(encode("t", [b"x"]))
    broken[-1] ^= 1
    answer = world.say(A, m.Publish(7, 0, m.Level.JOURNALED, bytes(broken), {"delay_ms": 1}))[-1]
    assert isinstance(answer, m.Err)
    assert answer.code == Code.BAD_BLOCK
    assert world.say(A, m.Publish(7, 0, m.Level.JOURNALED, b"", {"ttl_ms": 1}))[-1].code == Code.BAD_BLOCK  # type: ignore[union-attr]
    assert not world.reader.schedules.rows


def test_a_full_topic_refuses_what_is_for_later_and_takes_what_is_due(
    world: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(block: Block, turn: Turn) -> None:
        raise ProtocolError(Code.TOPIC_FULL, "topic 't' is full")

    world.schedule("late", delay_ms=1000)
    monkeypatch.setattr(world.router.topics, "require_room", full)
    assert world.later("x", delay_ms=1).code == Code.TOPIC_FULL
    world.pass_time(2.0)
    assert world.stored() == ["late"]


# Idempotency keys.


def test_ids_count_when_it_is_due(world: Later) -> None:
    raw = encode("t", [b"one", b"two"], ids=[b"id-1", b"id-2"])
    for delay_ms in (2000, 1000):
        world.say(A, m.Publish(7, 0, m.Level.JOURNALED, raw, {"delay_ms": delay_ms}))
    single = encode("t", [b"zero"], ids=[b"id-1"])
    world.say(A, m.Publish(7, 0, m.Level.JOURNALED, single))
    world.pass_time(3.0)
    assert world.stored() == ["zero", "two"]
    assert world.waiting() == []


def test_ids_of_what_repeats_are_refused(world: Later) -> None:
    raw = encode("t", [b"x"], ids=[b"id-1"])
    (answer,) = world.say(A, m.Publish(7, 0, m.Level.JOURNALED, raw, {"every_ms": 1000}))
    assert isinstance(answer, m.Err)
    assert answer.code == Code.BAD_OPTION
    assert "a schedule that repeats cannot have ids" in answer.text


def test_too_many_ids_make_them_wait(world: Later, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(block: Block) -> None:
        raise ProtocolError(Code.BUSY, "too many ids")

    raw = encode("t", [b"with id"], ids=[b"id-1"])
    world.say(A, m.Publish(7, 0, m.Level.JOURNALED, raw, {"delay_ms": 1000}))
    with monkeypatch.context() as patch:
        patch.setattr(world.router.ids, "check", busy)
        world.pass_time(2.0)
        assert world.stored() == []
        assert world.router.schedules.next_deadline() == pytest.approx(world.now + schedule.HOLD_S)
    world.pass_time(0.05)
    assert world.stored() == []
    world.pass_time(0.06)
    assert world.stored() == ["with id"]


# Sent again.


def test_a_resend_is_recognised_by_its_pseq(world: Later) -> None:
    first = world.later("late", pseq=1, delay_ms=1000).fields
    again = world.later("late", pseq=1, delay_ms=1000).fields
    assert again == {"schedule": 1, "due_us": first["due_us"], "dup": True}
    assert world.waiting() == ["late"]
    world.restart()
    assert world.later("late", pseq=1, delay_ms=1000).fields == again
    world.pass_time(2.0)
    assert world.later("late", pseq=1, delay_ms=1000).fields == {"schedule": 0, "dup": True}
    assert world.stored() == ["late"]


def test_delayed_and_plain_publishes_share_one_sequence(world: Later) -> None:
    assert isinstance(world.pub(A, "t", "one", "two", pseq=1)[-1], m.PubOk)
    assert world.schedule("three", pseq=3, delay_ms=1000) == 1
    assert world.schedule("four", pseq=4, delay_ms=1000) == 2
    assert world.pub(A, "t", "five", pseq=5)[-1] == m.PubOk(0, ((9, 3, 1, 0),))
    gap = world.later("seven", pseq=7, delay_ms=1000)
    assert (gap.code, gap.fields["expected"]) == (Code.SEQUENCE_GAP, 6)
    assert world.later("four", pseq=4, delay_ms=1000).fields["schedule"] == 2
    assert world.later("three", pseq=3, delay_ms=1000).fields["schedule"] == 1
    assert world.pub(A, "t", "one", "two", pseq=1)[-1] == m.PubOk(0, ((9, 1, 0, 2),))
    wrong = world.pub(A, "t", "three", pseq=3)[-1]
    assert isinstance(wrong, m.Err)
    assert "was accepted as a delayed publish" in wrong.text
    assert world.later("five", pseq=5, delay_ms=1000).fields == {"schedule": 0, "dup": True}


def test_welcome_tells_the_last_seq_and_not_a_schedule(world: Later) -> None:
    world.pub(A, "t", "one", pseq=1)
    world.schedule("two", pseq=2, delay_ms=1000)
    world.restart()
    welcome = world.said[A][0]
    assert isinstance(welcome, m.Welcome)
    assert welcome.fields["producer"]["last_pseq"] == 2
    assert welcome.fields["producer"]["last_seq"] == 1


def test_the_window_is_given_back(world: Later) -> None:
    for i in range(3):
        world.later(str(i), delay_ms=1000, commit=False)
    session = world.router.session_table.session_of(A)
    assert session.inflight_blocks == 3
    assert world.router.publishing.pending_bytes > 0
    world.commit()
    assert (session.inflight_blocks, session.inflight_bytes, world.router.publishing.pending_bytes) == (0, 0, 0)


# Listing.


def test_what_waits_is_listed_page_by_page(world: Later) -> None:
    world.schedule("c", "x", delay_ms=3000, every_ms=500)
    world.schedule("a", "y", delay_ms=1000, name="job", ttl_ms=77)
    world.schedule("b", "x", delay_ms=2000)
    page = world.listed({"n": 2})
    due_us = world.wall_us()
    assert page["schedules"] == [
        {
            "id": 2, "due_us": due_us + 1_000_000, "topic": "y", "topics": 1, "count": 1, "bytes": 1,
            "ttl_ms": 77, "name": "job",
        },
        {"id": 3, "due_us": due_us + 2_000_000, "topic": "x", "topics": 1, "count": 1, "bytes": 1},
    ]  # fmt: skip
    assert (page["count"], page["messages"], page["topics"]) == (3, 3, {"x": 2, "y": 1})
    assert (page["next"], page["more"]) == ([due_us + 2_000_000, 3], True)
    rest = world.listed({"n": 2, "after": page["next"]})
    assert [row["id"] for row in rest["schedules"]] == [1]
    assert rest["schedules"][0]["every_ms"] == 500
    assert (rest["next"], rest["more"]) == (None, False)
    assert [row["id"] for row in world.listed({"name": "job"})["schedules"]] == [2]
    assert world.listed({"name": "nobody"})["schedules"] == []


def test_counts_are_of_messages_by_topic(world: Later) -> None:
    raw = encode(["x", "y", "x"], [b"1", b"2", b"3"])
    world.say(A, m.Publish(7, 0, m.Level.JOURNALED, raw, {"delay_ms": 1000}))
    page = world.listed({})
    assert (page["count"], page["messages"], page["topics"]) == (1, 3, {"x": 2, "y": 1})
    world.pass_time(2.0)
    page = world.listed({})
    assert (page["count"], page["messages"], page["topics"]) == (0, 0, {})


@pytest.mark.parametrize("fields", [{"n": 0}, {"n": 501}, {"after": 5}, {"after": [1]}, {"after": [1, -1]}])
def test_a_wrong_listing_is_refused(world: Later, fields: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match=r"n is 1\.\.500|after is `next`"):
        world.listed(fields)


# Memory.


def test_only_the_next_minute_is_in_memory_and_no_block(world: Later) -> None:
    for i in range(50):
        world.schedule("near", delay_ms=1000 * i + 1000)
        world.schedule("far", delay_ms=120_000 + i)
    assert len(world.router.schedules._due_queue) <= 60
    assert world.router.schedules._overlay.keys() == []
    world.restart()
    world.router.tick(world.now)
    world.router.take_frames()
    assert len(world.router.schedules._due_queue) == 50
    assert world.reader.schedules.reads == 0
    for _ in range(200):
        world.pass_time(1.0)
    assert world.stored() == ["near"] * 50 + ["far"] * 50


def test_memory_is_bounded_by_number(world: Later, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("KEYS_MAX", 10), ("LOAD_MAX", 8), ("LOAD_BELOW", 4)):
        monkeypatch.setattr(due_queue, name, value)
    order = [(i * 37) % 100 for i in range(100)]
    for i in order:
        world.later(str(i), delay_ms=100 + i, commit=i % 3 == 0)
        assert len(world.router.schedules._due_queue) <= 21
    world.commit()
    world.now += 1
    for _ in range(60):
        world.pass_time(0.0)
    assert world.stored() == [str(i) for i in range(100)]


def test_a_block_larger_than_a_step_is_fired(world: Later, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "FIRE_BYTES_MAX", 1)
    for i in range(4):
        world.schedule(str(i), delay_ms=1000)
    world.now += 2
    for _ in range(6):
        world.pass_time(0.0)
    assert world.stored() == ["0", "1", "2", "3"]


def test_a_damaged_row_does_not_stop_the_others(world: Later, monkeypatch: pytest.MonkeyPatch) -> None:
    for body in ("bad", "good"):
        world.schedule(body, delay_ms=1000)
    read = world.reader.schedules.read
    monkeypatch.setattr(
        world.reader.schedules,
        "read",
        lambda keys, size: ["does not match its checksum" if row and row.id == 1 else row for row in read(keys, size)],  # type: ignore[union-attr]
    )
    world.pass_time(2.0)
    assert world.stored() == ["good"]
    assert world.router.counters["schedules_damaged"] == 1
    assert len(world.reader.schedules.rows) == 1


def test_a_calendar_from_a_far_start_is_refused_like_any_other(world: Later) -> None:
    far = world.wall_us() + HORIZON_MS * 1000 + 1
    for options in ({"cron": "0 0 * * *"}, {"every_ms": 1000}, {}):
        answer = world.later("far", at_us=far, **options)
        assert (answer.code, "more than 10 years ahead" in answer.text) == (Code.BAD_OPTION, True)
    assert world.waiting() == []


def test_a_calendar_without_a_later_day_ends(world: Later, monkeypatch: pytest.MonkeyPatch) -> None:
    """None can be published; but a stored one may have been written by another version."""
    world.hello(B)
    world.sub(B, 1, "$sys.schedule.ended")
    number = world.schedule("last", cron="0 0 * * *", name="old")
    monkeypatch.setattr(Cron, "after", lambda self, us: None)
    answer = world.later("never", cron="1 0 * * *")
    assert (answer.code, "has no day within 50 years" in answer.text) == (Code.BAD_OPTION, True)
    for _ in range(3):
        world.set_clock(86_400.0)
        world.pass_time(0.0)
        assert world.stored() == ["last"]
    assert world.waiting() == []
    assert world.router.counters["schedules_ended"] == 1
    (told,) = map(json.loads, world.bodies(B))
    assert (told["schedule"], told["name"], told["owner"], told["cron"]) == (1, "old", "local", "0 0 * * *")
    assert told["why"] == "the calendar has no later day"
    assert "has fired for the last time" in world.cancel(id=number).text  # type: ignore[union-attr]


def test_a_calendar_that_cannot_be_read_fires_once(world: Later) -> None:
    """It is found out before the message is appended: otherwise it would be appended again with every look."""
    world.reader.schedules.write(SaveSchedule(1, 1, encode("t", [b"odd"]), cron="every full moon"))
    world.reader.schedules.write(CountSchedules(1, (("t", 1),)))
    world.restart()
    for _ in range(3):
        world.pass_time(1.0)
    assert (world.stored(), world.waiting()) == (["odd"], [])


def test_cancel_without_a_rid_is_not_answered(world: Later) -> None:
    world.schedule("a", delay_ms=1000, name="a")
    for _ in range(2):
        assert world.say(A, m.Cancel(0, {"name": "a"})) == []
    assert world.waiting() == []


# What the documents say.


@pytest.mark.parametrize(
    "said",
    [
        f"ttl_ms      1..{HORIZON_MS:,}",
        f"delay_ms    0..{HORIZON_MS:,}",
        f"every_ms    {EVERY_MS[0]}..{HORIZON_MS:,}",
        f"rounded up to {EXPIRY_GRAIN_US // 1000} ms",
        f"of the schedule, 1..{NAME_CHARS_MAX} characters",
        f"of up to {schedule.TOPICS_MAX} topics",
        f"At most n of them, {SCHEDULES_N[0]}..{SCHEDULES_N[2]}, default {SCHEDULES_N[1]}",
    ],
)
def test_the_limits_are_as_in_the_protocol(said: str) -> None:
    assert said in (Path(__file__).parents[2] / "clients/PROTOCOL.md").read_text(encoding="utf-8")
