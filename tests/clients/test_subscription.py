"""The consuming core: ordinals, verdicts, credit, leases. No sockets; time is a number."""

import itertools
from typing import Any

import pytest

from fabric_client.core.ending import retire
from fabric_client.core.subscription import Subscription
from fabric_client.core.verdict_rows import VERDICT_ROWS_MAX
from fabric_client.core.window import PREFETCH_BYTES
from fabric_client.errors import Closed
from fabric_protocol import messages as m
from fabric_protocol.messages import Verdict
from tests.clients.talk import deliver, take


class Post:
    """A Subscription, and what it has to say."""

    def __init__(self, group: str | None = "g", **settings: Any) -> None:
        self.urgent: list[bool] = []
        request = {"patterns": ["#"], **({"group": group} if group else {})}
        self.sub = Subscription(1, request, hook=lambda _, urgent: self.urgent.append(urgent), **settings)
        self._rids = itertools.count(1)

    def deliver(self, ordinal: int, count: int, now: float = 0.0) -> None:
        assert self.sub.deliver(deliver(1, ordinal, *[b"x"] * count, seq=ordinal), now)

    def collect(self) -> list[m.ToHub]:
        return self.sub.collect(lambda: next(self._rids))

    def rows(self) -> list[tuple[int, int, int, Any]]:
        return [row for s in self.collect() if isinstance(s, m.Settle) for row in s.verdicts]

    def credits(self) -> list[tuple[int, int]]:
        return [(s.ordinal_max, s.bytes_max) for s in self.collect() if isinstance(s, m.Credit)]


def test_acks_of_a_delivery_become_one_range() -> None:
    post = Post()
    post.deliver(1, 5)
    for message in take(post.sub):
        message.ack()
    assert post.rows() == [(Verdict.ACK, 1, 5, None)]
    assert post.rows() == []


def test_acks_of_neighbouring_deliveries_become_one_range() -> None:
    post = Post()
    post.deliver(1, 2)
    post.deliver(3, 2)
    take(post.sub).ack()
    take(post.sub).ack()
    assert post.rows() == [(Verdict.ACK, 1, 4, None)]


def test_acks_out_of_order_become_the_ranges_that_they_are() -> None:
    post = Post()
    post.deliver(1, 6)
    messages = list(take(post.sub))
    for index in (5, 0, 1, 3):
        messages[index].ack()
    assert post.rows() == [(0, 1, 2, None), (0, 4, 4, None), (0, 6, 6, None)]
    messages[2].ack()
    messages[4].ack()
    assert post.rows() == [(0, 3, 3, None), (0, 5, 5, None)]


def test_each_verdict_has_its_row() -> None:
    post = Post()
    post.deliver(1, 5)
    a, b, c, d, e = take(post.sub)
    a.retry(1.5)
    b.release()
    c.reject("bad")
    d.ack()
    e.touch(10)
    assert sorted(post.rows()) == [
        (Verdict.ACK, 4, 4, None),
        (Verdict.RETRY, 1, 1, 1500),
        (Verdict.RELEASE, 2, 2, None),
        (Verdict.REJECT, 3, 3, "bad"),
        (Verdict.TOUCH, 5, 5, 10_000),
    ]


def test_the_first_verdict_counts() -> None:
    post = Post()
    post.deliver(1, 1)
    (message,) = take(post.sub)
    message.reject("bad")
    message.ack()
    message.retry()
    assert post.rows() == [(Verdict.REJECT, 1, 1, "bad")]


def test_two_objects_for_one_message_settle_it_once() -> None:
    post = Post()
    post.deliver(1, 3)
    batch = take(post.sub)
    for message in [next(iter(batch)) for _ in range(3)]:
        message.ack()
    assert post.rows() == [(0, 1, 1, None)]
    next(iter(batch)).ack()
    assert post.rows() == []


def test_leaving_the_block_acks_and_an_exception_asks_for_a_retry() -> None:
    post = Post()
    post.deliver(1, 3)
    a, b, c = take(post.sub)
    with a:
        pass
    with pytest.raises(ValueError, match="oops"), b:
        raise ValueError("oops")
    with pytest.raises(KeyboardInterrupt), c:
        raise KeyboardInterrupt
    assert sorted(post.rows()) == [(0, 1, 1, None), (1, 2, 2, "ValueError: oops"), (2, 3, 3, None)]


def test_a_batch_settles_what_its_messages_have_not() -> None:
    post = Post()
    post.deliver(1, 4)
    batch = take(post.sub)
    with batch:
        a, b, *_ = batch
        a.reject("bad")
        b.ack()
    assert sorted(post.rows()) == [(0, 2, 4, None), (3, 1, 1, "bad")]
    post.deliver(5, 3)
    batch = take(post.sub)
    next(iter(batch)).ack()
    batch.retry(1)
    assert sorted(post.rows()) == [(0, 5, 5, None), (1, 6, 7, 1000)]


def test_many_verdicts_are_urgent_and_few_are_not() -> None:
    post = Post()
    post.deliver(1, 1000)
    for message in itertools.islice(take(post.sub), 600):
        message.ack()
    assert post.urgent == [False, True]


def test_credit_is_raised_at_half_the_window() -> None:
    post = Post(prefetch=10)
    assert post.sub.subscribe(1).fields["credit"] == [10, PREFETCH_BYTES]
    post.deliver(1, 10)
    messages = list(take(post.sub))
    for message in messages[:4]:
        message.ack()
    assert post.credits() == []
    messages[9].ack()
    ((ordinal_max, _),) = post.credits()
    assert ordinal_max == 15


def test_prefetch_of_one_gives_one_at_a_time() -> None:
    post = Post(prefetch=1)
    post.deliver(1, 1)
    batch = take(post.sub)
    assert post.credits() == []
    batch.ack()
    assert [ordinal for ordinal, _ in post.credits()] == [2]


def test_verdicts_leave_before_waiting_only_when_credit_runs_low() -> None:
    post = Post(prefetch=8)
    post.deliver(1, 3)
    take(post.sub).ack()
    assert not post.sub.wants_collect
    post.deliver(4, 1)
    take(post.sub).ack()
    assert post.sub.wants_collect


def test_without_a_group_taking_is_settling() -> None:
    post = Post(group=None, prefetch=4)
    post.deliver(1, 4)
    (message, *_) = take(post.sub)
    message.ack()  # means nothing here, and does no harm
    (credit,) = post.collect()
    assert isinstance(credit, m.Credit)
    assert credit.ordinal_max == 8


def test_count_bounds_the_credit() -> None:
    post = Post(prefetch=10, count_max=12)
    post.deliver(1, 10)
    take(post.sub).ack()
    assert [ordinal for ordinal, _ in post.credits()] == [12]


def test_bytes_come_back_when_a_delivery_is_settled() -> None:
    post = Post(prefetch=1000)
    size = 9 << 20
    assert post.sub.deliver(deliver(1, 1, bytes(size)), 0.0)
    take(post.sub).ack()
    ((_, bytes_max),) = post.credits()
    assert bytes_max > PREFETCH_BYTES + size


def test_large_messages_without_a_group_renew_the_credit_by_bytes() -> None:
    post = Post(group=None)
    size = PREFETCH_BYTES // 2 + 1
    assert post.sub.deliver(deliver(1, 1, bytes(size)), 0.0)
    assert post.sub.wants_collect
    assert post.urgent == []
    take(post.sub)
    assert post.urgent == [False]  # although no verdict will ever follow
    ((_, bytes_max),) = post.credits()
    assert bytes_max > PREFETCH_BYTES + size
    assert not post.sub.wants_collect


def test_deliveries_of_a_closed_subscription_are_released() -> None:
    post = Post()
    retire(post.sub)
    post.deliver(1, 3)
    assert not post.sub.ready
    assert post.rows() == [(Verdict.RELEASE, 1, 3, None)]


def test_missing_ordinal_asks_for_a_resume_and_a_repeated_one_is_ignored() -> None:
    post = Post()
    post.deliver(1, 2)
    assert not post.sub.deliver(deliver(1, 4, b"x"), 0.0)
    assert post.sub.deliver(deliver(1, 1, b"x", b"x"), 0.0)
    assert post.sub.last_ordinal == 2
    assert len(post.sub.ready) == 1


def test_after_a_resume_ordinals_may_jump() -> None:
    post = Post(prefetch=4)
    post.deliver(1, 1)
    list(post.sub.resumed())
    post.deliver(4, 1)
    assert post.sub.last_ordinal == 4
    take(post.sub).ack()
    take(post.sub).ack()
    (settle, credit) = post.collect()
    assert isinstance(settle, m.Settle)
    assert settle.verdicts == ((0, 1, 1, None), (0, 4, 4, None))
    assert isinstance(credit, m.Credit)
    assert credit.ordinal_max == 8, "what lapsed in between is not held against the window"


def test_unanswered_acks_are_sent_again_after_a_resume() -> None:
    post = Post()
    post.deliver(1, 2)
    first, second = take(post.sub)
    first.ack()
    (one,) = post.collect()
    second.ack()
    (two,) = post.collect()
    assert isinstance(one, m.Settle)
    assert post.sub.answered(one.rid, {"applied": 1, "stale": []})
    assert list(post.sub.resumed())[:1] == [two]


def test_a_new_generation_voids_what_is_held() -> None:
    post = Post()
    post.deliver(1, 3)
    batch = take(post.sub)
    (first, second, _) = batch
    first.ack()
    post.deliver(4, 2)
    post.sub.restart(same_journal=True)
    second.ack()
    batch.ack()
    assert post.rows() == []
    assert post.sub.void == 4
    assert not post.sub.ready
    post.deliver(1, 1)
    take(post.sub).ack()
    assert post.rows() == [(0, 1, 1, None)]


def test_without_a_group_a_new_generation_goes_on_after_the_last_seq() -> None:
    post = Post(group=None)
    post.sub.accepted({"cursor": 40, "lease_ms": 30_000})
    assert post.sub.subscribe(1).fields["start"] == {"seq": 40}
    assert post.sub.deliver(deliver(1, 1, b"x", b"y", seq=51), 0.0)
    post.sub.restart(same_journal=True)
    assert post.sub.subscribe(1).fields["start"] == {"seq": 53}
    assert len(post.sub.ready) == 1, "what is buffered will not come again"
    post.sub.restart(same_journal=False)
    assert "start" not in post.sub.subscribe(1).fields


def test_verdict_on_a_closed_subscription_says_so() -> None:
    post = Post()
    post.deliver(1, 2)
    first, second = take(post.sub)
    first.ack()
    post.sub.close()
    with pytest.raises(Closed) as error:
        second.ack()
    assert "fetch" in error.value.hint


def test_leases_are_touched_between_a_quarter_and_half() -> None:
    post = Post()
    post.sub.accepted({"lease_ms": 8000})
    post.deliver(1, 3, now=100.0)
    post.deliver(4, 1, now=101.5)
    assert post.sub.touch_at == 102.0
    batch = take(post.sub)
    next(iter(batch)).ack()
    touch = post.sub.renew(102.0)
    assert isinstance(touch, m.Settle)
    assert touch.verdicts == ((Verdict.TOUCH, 2, 2, None),), "one open ordinal stands for its delivery"
    assert post.sub.touch_at == 104.0
    touch = post.sub.renew(104.0)
    assert isinstance(touch, m.Settle)
    assert [row[1] for row in touch.verdicts] == [2, 4]
    batch.ack()
    take(post.sub).ack()
    post.collect()
    assert post.sub.renew(106.0) is None
    assert post.sub.touch_at == float("inf")


def test_fields_of_a_message_come_from_the_block() -> None:
    post = Post()
    post.deliver(1, 2)
    _, message = take(post.sub)
    assert (message.topic, message.seq, message.data, message.text) == ("t", 2, b"x", "x")
    assert (message.headers, message.key, message.attempt, message.group) == ({}, None, 1, "g")
    assert message.ts == 1_700_000_000.0


def test_sparse_seqs_are_taken_from_the_frame() -> None:
    post = Post()
    sparse = deliver(1, 1, b"a", b"b", b"c")._replace(seqs=(5, 1, 9, 2))
    assert post.sub.deliver(sparse, 0.0)
    assert [message.seq for message in take(post.sub)] == [5, 9, 10]


def test_an_advisory_is_no_place_in_the_journal() -> None:
    post = Post(None)
    post.sub.accepted({"cursor": 40})
    assert post.sub.deliver(deliver(1, 1, b"x", seq=0), 0.0)
    post.sub.restart(same_journal=True)
    assert post.sub.subscribe(1).fields["start"] == {"seq": 40}


def test_no_ack_has_more_rows_than_the_hub_takes() -> None:
    post = Post()
    count = 3 * VERDICT_ROWS_MAX
    post.deliver(1, count)
    for message in list(take(post.sub))[::2]:
        message.ack()
    acks = [said for said in post.collect() if isinstance(said, m.Settle)]
    assert [len(ack.verdicts) for ack in acks] == [VERDICT_ROWS_MAX, VERDICT_ROWS_MAX // 2]
    assert [row[1] for ack in acks for row in ack.verdicts] == list(range(1, count, 2))


def test_more_leases_than_rows_of_a_frame_are_all_renewed() -> None:
    post = Post()
    post.sub.accepted({"lease_ms": 8000})
    count = VERDICT_ROWS_MAX + 10
    for ordinal in range(1, count + 1):
        post.deliver(ordinal, 1, now=100.0)
    touched: list[int] = []
    while post.sub.touch_at <= 103.0:
        touch = post.sub.renew(103.0)
        if touch is None:
            break
        assert isinstance(touch, m.Settle)
        assert len(touch.verdicts) <= VERDICT_ROWS_MAX
        touched += [row[1] for row in touch.verdicts]
    assert touched == list(range(1, count + 1))
