"""Retention removes messages that a consumer holds: each ends as a dead letter or in a gap that is reported."""

from typing import Any

import pytest

from fabric.records import SaveFailure
from fabric.router.groups.description import describe, oldest
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.messages import Verdict
from tests.router.test_gaps import A, B, Losing, P

C = b"\0cccc"
TTL_S = 700  # longer than any session lives in silence


def holding(*bodies: str, **settings: object) -> Losing:
    """A consumer of group `h` holds one block, and nothing of it is in the hub's memory."""
    w = Losing()
    w.admin("group.create", group="h", patterns=["a"], **settings)
    w.pub(P, "a", *bodies)
    w.restart()
    w.arrive()
    w.sub(A, 1, group="h")
    assert w.bodies(A) == list(bodies)
    return w


def letters(w: Losing) -> list[tuple[str, bytes]]:
    """Dead letters on disk: the seq that each had, and its body."""
    blocks = [block for block in w.reader.blocks if block.topics[0] == "$dlq.h"]
    return [
        (str(headers["fabric-seq"]), body)
        for block in blocks
        for headers, body in zip(block.headers(), block.payloads(), strict=True)
    ]


def end(w: Losing, how: str, last: int) -> None:
    """The consumer fails for good at all that it holds."""
    if how == "reject":
        w.settle(A, 1, Verdict.REJECT, 1, last, "no")
    elif how == "retry":
        w.settle(A, 1, Verdict.RETRY, 1, last, 0)
    elif how == "lapse":
        w.now += 40
        w.say(A, m.Ping(0))
    else:
        w.router.peer_gone(A)
        w.pass_time(TTL_S)


@pytest.mark.parametrize("how", ["reject", "retry", "lapse", "lost"])
def test_a_dead_letter_whose_message_is_gone_is_told_as_a_gap(how: str) -> None:
    """The journal thread has removed the block, and its news is on the way."""
    w = holding("1", attempts_max=1)
    w.pub(P, "b", "2")
    w.reader.blocks, w.reader.begins_at = w.reader.blocks[1:], 2
    end(w, how, 1)
    w.trim(2)
    w.pass_time(1)
    w.hello(B)
    w.sub(B, 1, group="h")
    assert letters(w) == []
    assert w.gaps(A) + w.gaps(B) == [(1, 1)], "it is told once"
    assert w.router.groups["h"].floor == w.reader.blocks[-1].last_seq


@pytest.mark.parametrize("how", ["reject", "retry"])
def test_a_dead_letter_is_written_while_the_router_does_not_know_of_the_new_floor(how: str) -> None:
    """The block is still there, and only some of its messages are below the first seq."""
    w = holding("1", "2", "3", attempts_max=1)
    end(w, how, 3)
    w.trim(3)
    assert letters(w) == [("1", b"1"), ("2", b"2"), ("3", b"3")]
    assert w.gaps(A) == []


@pytest.mark.parametrize("how", ["reject", "retry"])
def test_what_is_left_of_a_delivery_becomes_dead_letters(how: str) -> None:
    w = holding("1", "2", "3", attempts_max=1)
    w.trim(3)
    assert w.gaps(A) == [(1, 2)]
    end(w, how, 3)
    assert letters(w) == [("3", b"3")]
    assert w.gaps(A) == [(1, 2)]
    assert w.router.counters["dead_letters"] == 1


def test_a_dead_letter_of_which_some_is_removed_is_tried_again_and_not_dropped() -> None:
    w = holding("1", "2", "3")
    w.settle(A, 1, Verdict.REJECT, 1, 3, "no")
    w.admin("group.create", group="d", patterns=["$dlq.h"], attempts_max=1)
    w.restart()
    w.arrive()
    w.sub(A, 1, group="d")
    w.trim(6)
    w.settle(A, 1, Verdict.RETRY, 1, 3, 0)
    assert w.router.counters["dead_letters_discarded"] == 0
    assert [seq for _, seq, _, _ in w.delivered(A)] == [4, 5, 6, 6]


def test_nothing_is_noted_of_a_failure_of_what_is_removed() -> None:
    w = holding("1", "2", "3")
    w.trim(3)
    w.settle(A, 1, Verdict.RETRY, 1, 3, 60_000)
    assert [(first, row.last) for first, row in w.router.groups["h"].failures.all()] == [(3, 3)]
    assert [(row.first, row.last) for row in w.failures.values()] == [(3, 3)]


def test_what_is_left_of_a_delivery_is_sent_again() -> None:
    w = holding("1", "2", "3")
    welcome = next(said for said in w.said[A] if isinstance(said, m.Welcome))
    w.router.peer_gone(A)
    w.trim(3)
    w.said.clear()
    w.say(C, m.Hello(1, {"proto": 1, "resume": {"session": welcome.fields["session"], "subs": [[1, 0]]}}))
    assert set(w.gaps(C)) == {(1, 2)}
    assert w.delivered(C) == [(3, 3, 1, "3")]


def test_order_of_a_key_holds_for_what_is_left_of_a_failure() -> None:
    w = Losing()
    w.admin("group.create", group="h", patterns=["a"], order="key")
    block = encode("a", [b"1", b"2", b"3"], keys=[b"k", b"k", b"k"])
    w.say(P, m.Publish(9, 0, m.Level.JOURNALED, block))
    w.restart()
    w.arrive()
    w.failures["h", 1] = SaveFailure("h", 1, 2, 1, w.wall_us() + 60_000_000, "no")
    w.groups["h"] = w.groups["h"]._replace(cursor=4, open=((1, 3),))
    w.restart_at(2)
    w.arrive()
    w.sub(A, 1, group="h")
    assert w.bodies(A) == [], "3 waits behind 2, and 2 waits for its time"
    w.now += 61
    w.say(A, m.Ping(0))
    w.settle(A, 1, Verdict.ACK, 1, 1)
    assert w.bodies(A) == ["2", "3"]


def test_a_consumer_kept_free_for_a_suspect_that_is_removed_gets_what_comes_before_the_next_suspect() -> None:
    w = Losing()
    w.admin("group.create", group="h", patterns=["a", "b"], order="key", attempts_max=3, backoff="fixed", backoff_ms=0)
    for topic, body in zip("abaa", "1234", strict=True):
        w.say(P, m.Publish(9, 0, m.Level.JOURNALED, encode(topic, [body.encode()], keys=[body.encode()])))
    w.sub(A, 1, group="h")
    for _ in range(2):
        for ordinal, seq, _, _ in w.delivered(A)[-4:]:
            if seq in (2, 4):
                w.settle(A, 1, Verdict.RETRY, ordinal, ordinal, 0)
    w.restart()
    w.arrive()
    w.sub(A, 1, group="h", credit=1)
    assert w.bodies(A) == ["1"]
    w.say(A, m.Credit(1, 9, 1 << 40))
    w.admin("topic.create", topic="b", max_msgs=1, on_full="drop_old")
    w.pub(P, "b", "5")
    w.pass_time(1)
    w.settle(A, 1, Verdict.ACK, 1, 1)
    assert w.gaps(A) == [(2, 2)]
    w.settle(A, 1, Verdict.ACK, 2, 2)
    assert w.bodies(A)[:3] == ["1", "3", "4"]


@pytest.mark.parametrize("order", ["none", "key", "strict"])
@pytest.mark.parametrize("how", ["trim", "purge"])
def test_a_message_in_flight_keeps_its_age_when_it_is_removed(how: str, order: str) -> None:
    """Retention of the journal settles it in the group, and a purge does not: a consumer holds it in both cases."""
    w = holding("1", order=order, lease_ms=600_000)
    accepted_us = w.reader.blocks[0].ts_us
    assert oldest_us(w) == accepted_us
    w.now += 5
    w.pub(P, "b", "2")
    if how == "trim":
        w.reader.blocks, w.reader.begins_at = w.reader.blocks[1:], 2
        w.trim(2)
    else:
        w.admin("topic.purge", topic="a")
        w.pass_time(1)
        assert w.reader.block_at(1) is None, "the block is discarded"
    assert (row(w)["in_flight"], oldest_us(w)) == (1, accepted_us)
    w.settle(A, 1, Verdict.ACK, 1, 1)
    assert (row(w)["in_flight"], oldest_us(w), w.router.groups["h"].removed_to) == (0, 0, 0)


def test_the_oldest_message_with_a_known_time_counts_when_an_older_one_is_removed_and_not_held() -> None:
    w = holding("1", lease_ms=600_000)
    w.settle(A, 1, Verdict.RETRY, 1, 1, 600_000)
    w.now += 5
    w.pub(P, "a", "2")
    w.pub(P, "b", "3")
    w.admin("topic.purge", topic="a", up_to=1)
    w.pass_time(1)
    assert w.reader.block_at(1) is None, "the block is discarded"
    second = w.reader.block_at(2)
    assert second is not None
    assert (row(w)["retrying"], oldest_us(w)) == (1, second.ts_us)


def row(w: Losing) -> dict[str, Any]:
    return describe(w.router.groups["h"])


def oldest_us(w: Losing) -> int:
    """When the oldest message was accepted, in INFO and for the health of the hub."""
    assert row(w)["oldest_us"] == oldest(w.router.groups["h"])
    return oldest(w.router.groups["h"])
