"""Order in the client: messages that must not be handled after an earlier message has failed. No sockets."""

import itertools
from typing import Any

import pytest

from fabric_client.core.batch import Batch
from fabric_client.core.message import Message
from fabric_client.core.subscription import Subscription
from fabric_client.core.window import PREFETCH_BYTES
from fabric_protocol import block, block_parts
from fabric_protocol import messages as m
from fabric_protocol.messages import Verdict


class Line:
    """An ordered subscription, and what it has to say."""

    def __init__(self, order: str = "key", **settings: Any) -> None:
        self.sub = Subscription(1, {"patterns": ["#"], "group": "g"}, **settings)
        self.sub.accepted({"order": order, "lease_ms": 30_000})
        self._rids = itertools.count(1)

    def deliver(self, ordinal: int, keys: str, seq: int | None = None) -> None:
        """One message for each letter, which is its key; '-' has none."""
        seq = ordinal if seq is None else seq
        payloads = [b"%d" % (seq + i) for i in range(len(keys))]
        raw = block.encode("t", payloads, keys=[b"" if key == "-" else key.encode() for key in keys])
        assert self.sub.deliver(m.Deliver(1, ordinal, 1, (), block.stamp(raw, seq, 0)), 0.0)

    def collect(self) -> tuple[int, list[tuple[int, int, int, Any]]]:
        """(rid, rows) of the ACK."""
        found = [s for s in self.sub.collect(lambda: next(self._rids)) if isinstance(s, m.Settle)]
        return (found[-1].rid, [row for s in found for row in s.verdicts]) if found else (0, [])

    def take(self) -> Batch:
        batch = self.sub.take()
        assert isinstance(batch, Batch)
        return batch

    def left(self) -> list[Message]:
        """What would be handed out now."""
        batches = [batch for batch in iter(self.sub.take, None) if isinstance(batch, Batch)]
        return [message for batch in batches for message in batch if not message.lost]


def seqs(messages: list[Message]) -> list[int]:
    return [message.seq for message in messages]


def test_failed_message_bars_the_later_ones_of_its_key_at_once() -> None:
    line = Line()
    line.deliver(1, "abab-a")
    messages = list(line.take())
    messages[0].retry()
    assert [message.lost for message in messages] == [False, False, True, False, False, True]


def test_what_is_barred_goes_back_together_with_the_failure() -> None:
    line = Line()
    line.deliver(1, "abab")
    line.deliver(5, "ba")
    messages = list(line.take())
    messages[0].retry(reason="no")
    _, rows = line.collect()
    assert rows == [(Verdict.RETRY, 1, 1, "no"), (Verdict.RELEASE, 3, 3, None), (Verdict.RELEASE, 6, 6, None)]
    messages[2].ack()
    assert line.collect() == (0, []), "a verdict on what was given back is not sent"
    assert seqs(line.left()) == [5]


@pytest.mark.parametrize("verdict", ["retry", "release"])
def test_in_a_strict_group_everything_later_goes_back(verdict: str) -> None:
    line = Line("strict")
    line.deliver(1, "a-b")
    line.deliver(4, "--")
    messages = list(line.take())
    messages[0].ack()
    getattr(messages[1], verdict)()
    _, rows = line.collect()
    assert rows[0] == (Verdict.ACK, 1, 1, None)
    assert rows[2:] == [(Verdict.RELEASE, 3, 5, None)]
    assert line.left() == []


def test_reject_and_ack_bar_nothing() -> None:
    line = Line()
    line.deliver(1, "aaa")
    messages = list(line.take())
    messages[0].reject("bad")
    messages[1].ack()
    assert not messages[2].lost
    assert line.collect()[1] == [(Verdict.ACK, 2, 2, None), (Verdict.REJECT, 1, 1, "bad")]


def test_without_an_order_nothing_is_barred() -> None:
    line = Line("none")
    line.deliver(1, "aaa")
    messages = list(line.take())
    messages[0].retry()
    assert not messages[1].lost
    assert line.collect()[1] == [(Verdict.RETRY, 1, 1, None)]


def test_what_was_under_way_goes_back_until_the_hub_has_answered() -> None:
    line = Line()
    line.deliver(1, "a")
    line.take().retry()
    rid, _ = line.collect()
    line.deliver(2, "ba")
    assert seqs(line.left()) == [2]
    rid_of_the_release, rows = line.collect()
    assert rows == [(Verdict.RELEASE, 3, 3, None)]
    line.sub.answered(rid, {})
    line.deliver(4, "a", seq=1)
    line.deliver(5, "a", seq=3)
    assert seqs(line.left()) == [1, 3]
    line.sub.answered(rid_of_the_release, {"stale": [[3, 3]]})
    assert line.sub.stale == 1


def test_the_failed_message_itself_lifts_the_bar() -> None:
    line = Line()
    line.deliver(1, "aa")
    line.take().release()
    line.collect()
    line.deliver(3, "a", seq=1)
    line.deliver(4, "a", seq=2)
    assert seqs(line.left()) == [1, 2]


def test_a_bar_is_not_lifted_by_an_ack_that_left_before() -> None:
    line = Line()
    line.deliver(1, "ba")
    line.deliver(3, "a")
    b, a = line.take()
    b.ack()
    rid, _ = line.collect()
    a.retry()
    line.sub.answered(rid, {})
    assert line.left() == []


def test_a_batch_that_was_not_taken_is_divided() -> None:
    line = Line(prefetch=100)
    line.deliver(1, "a")
    line.deliver(2, "cacab")
    line.take().retry()
    line.collect()
    batches = list(iter(line.sub.take, None))
    assert [(b.first_ordinal, b.seq, b.payloads) for b in batches if isinstance(b, Batch)] == [
        (2, 2, [b"2"]), (4, 4, [b"4"]), (6, 6, [b"6"])
    ]  # fmt: skip
    for batch in batches:
        assert isinstance(batch, Batch)
        batch.ack()
    assert line.collect()[1] == [(Verdict.ACK, 2, 2, None), (Verdict.ACK, 4, 4, None), (Verdict.ACK, 6, 6, None)]
    assert line.sub.deliveries.window.settled == 6
    assert not line.sub.deliveries.held


def test_cutting_up_a_sparse_delivery_keeps_the_seqs() -> None:
    line = Line()
    raw = block.stamp(block.encode("t", [b"1", b"2", b"3", b"4"], keys=[b"a", b"b", b"a", b"b"]), 10, 0)
    picked = block_parts.pick(block.Block(raw), [(0, 1), (2, 4)])
    line.sub.deliver(m.Deliver(1, 1, 1, (10, 1, 12, 2), picked), 0.0)
    line.sub.take_back([[2, 2]])
    assert seqs(line.left()) == [10, 13]


# Leases that the hub took back.


def test_lost_deliveries_are_dropped_and_their_verdicts_are_not_sent() -> None:
    line = Line("none")
    line.deliver(1, "----")
    line.deliver(5, "---")
    first = line.take()
    a, b, c, d = first
    a.ack()
    line.sub.take_back([[1, 2], [4, 6]])
    assert [message.lost for message in first] == [True, True, False, True]
    for message in (b, c, d):
        message.ack()
    assert line.collect()[1] == [(Verdict.ACK, 3, 3, None)]
    assert seqs(line.left()) == [7]
    assert line.sub.taken_back == 5


def test_lost_deliveries_make_room_for_others() -> None:
    line = Line("none", prefetch=4)
    line.deliver(1, "----")
    line.sub.take_back([[1, 4]])
    credits = [s for s in line.sub.collect(lambda: 1) if isinstance(s, m.Credit)]
    assert [credit.ordinal_max for credit in credits] == [8]


def test_losing_deliveries_wakes_the_driver_to_give_credit() -> None:
    heard: list[bool] = []
    line = Line("none", hook=lambda _, urgent: heard.append(urgent))
    line.deliver(1, "--")
    line.sub.take_back([[1, 2]])
    assert heard == [False]


def test_lost_deliveries_do_not_count_for_a_consumer_of_a_few() -> None:
    line = Line("none", prefetch=100, count_max=2)
    line.deliver(1, "--")
    line.sub.take_back([[1, 1]])
    (credit,) = (s for s in line.sub.collect(lambda: 1) if isinstance(s, m.Credit))
    assert credit.ordinal_max == 3


def test_a_whole_batch_that_was_partly_lost_is_acked_without_the_lost() -> None:
    line = Line("none")
    line.deliver(1, "----")
    batch = line.take()
    line.sub.take_back([[2, 3]])
    batch.ack()
    assert line.collect()[1] == [(Verdict.ACK, 1, 1, None), (Verdict.ACK, 4, 4, None)]
    assert not line.sub.deliveries.held


def test_the_bytes_of_what_is_gone_are_given_free() -> None:
    line = Line("none")
    line.deliver(1, "----")
    line.deliver(5, "--")
    sent = sum(len(batch.block.raw) for batch in line.sub.ready if isinstance(batch, Batch))
    line.sub.take_back([[2, 2], [5, 6]])
    for message in line.left():
        message.ack()
    line.collect()
    assert line.sub.deliveries.window.settled_bytes == sent
    assert line.sub.deliveries.window.bytes_max <= sent + PREFETCH_BYTES


def test_what_a_lost_session_held_is_forgotten_with_its_bars() -> None:
    line = Line()
    line.deliver(1, "aa")
    line.take().retry()
    line.sub.restart(same_journal=True)
    line.deliver(1, "aa")
    assert seqs(line.left()) == [1, 2]


def test_a_group_that_acks_by_itself_wants_no_verdicts() -> None:
    sub = Subscription(1, {"patterns": ["#"], "group": "g"}, prefetch=2)
    sub.accepted({"ack": "auto", "lease_ms": 30_000})
    raw = block.stamp(block.encode("t", [b"1", b"2"]), 1, 0)
    sub.deliver(m.Deliver(1, 1, 1, (), raw), 0.0)
    batch = sub.take()
    assert isinstance(batch, Batch)
    for message in batch:
        message.ack()
    said = sub.collect(lambda: 1)
    assert [type(s) for s in said] == [m.Credit]
    assert sub.renew(100.0) is None
