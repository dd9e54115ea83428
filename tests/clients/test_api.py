"""The API of the client: verdicts, settings of groups, administration, the work queue."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from fabric.records import GroupSettings
from fabric_client.admin import Admin
from fabric_client.core.batch import Batch
from fabric_client.core.handlers import caller
from fabric_client.core.message import Message
from fabric_client.core.subscription import Subscription
from fabric_client.core.verdict_exceptions import Reject, Release, Retry, check_on_error, decision, retry_argument
from fabric_client.core.work_queue import WorkQueue
from fabric_client.options import group_fields, position, subscription_maker
from fabric_protocol import block
from fabric_protocol import messages as m
from fabric_protocol.errors import FabricError
from fabric_protocol.messages import Verdict
from fabric_protocol.wire import REASON_CHARS_MAX

# Verdicts.


@pytest.mark.parametrize(
    ("error", "on_error", "verdict", "arg"),
    [
        (Retry(), "reject", Verdict.RETRY, None),
        (Retry(1.5), "ack", Verdict.RETRY, 1500),
        (Retry(timedelta(minutes=1), "closed"), "ack", Verdict.RETRY, [60_000, "closed"]),
        (Retry(reason="closed"), "ack", Verdict.RETRY, "closed"),
        (Reject("bad"), "retry", Verdict.REJECT, "bad"),
        (Release(), "retry", Verdict.RELEASE, None),
        (ValueError("x"), "retry", Verdict.RETRY, "ValueError: x"),
        (ValueError("x"), "reject", Verdict.REJECT, "ValueError: x"),
        (ValueError("x"), "release", Verdict.RELEASE, None),
        (ValueError("x"), "ack", Verdict.ACK, None),
        (KeyboardInterrupt(), "retry", Verdict.RELEASE, None),
    ],
)
def test_an_exception_means_a_verdict(error: BaseException, on_error: str, verdict: Verdict, arg: object) -> None:
    assert decision(error, on_error) == (verdict, arg)


def test_reasons_are_cut_to_what_the_wire_allows() -> None:
    assert retry_argument(None, "x" * 5000) == "x" * REASON_CHARS_MAX
    assert len(str(decision(ValueError("x" * 5000), "reject")[1])) == REASON_CHARS_MAX
    with pytest.raises(FabricError, match="delay"):
        retry_argument(-1, None)
    with pytest.raises(FabricError, match="on_error 'panic'"):
        check_on_error("panic")


def group(on_error: str = "retry", order: str = "none") -> Subscription:
    return Subscription(1, {"patterns": ["#"], "group": "g", "order": order}, on_error=on_error)


def batch(sub: Subscription, *keys: str) -> Batch:
    raw = block.encode("t", [key.encode() for key in keys], keys=[key.encode() for key in keys])
    sub.deliver(m.Deliver(1, sub.last_ordinal + 1, 1, (), block.stamp(raw, sub.last_ordinal + 1, 0)), 0.0)
    found = sub.take()
    assert isinstance(found, Batch)
    return found


def rows(sub: Subscription) -> list[tuple[int, int, int, Any]]:
    return [row for s in sub.collect(lambda: 1) if isinstance(s, m.Settle) for row in s.verdicts]


def test_a_verdict_that_was_raised_does_not_end_the_loop() -> None:
    sub = group()
    for message, verdict in zip(batch(sub, "a", "b", "c"), (Retry(2), Reject("no"), Release()), strict=True):
        with message:
            raise verdict
    assert rows(sub) == [(Verdict.RETRY, 1, 1, 2000), (Verdict.REJECT, 2, 2, "no"), (Verdict.RELEASE, 3, 3, None)]
    with batch(sub, "d", "e"):
        raise Reject("both")
    assert rows(sub) == [(Verdict.REJECT, 4, 5, "both")]


@pytest.mark.parametrize("on_error", ["reject", "release", "ack"])
def test_on_error_says_what_an_exception_means(on_error: str) -> None:
    sub = group(on_error)
    (message,) = batch(sub, "a")
    with pytest.raises(ValueError, match="x"), message:
        raise ValueError("x")
    with pytest.raises(ValueError, match="x"), batch(sub, "b"):
        raise ValueError("x")
    verdict = {"reject": Verdict.REJECT, "release": Verdict.RELEASE, "ack": Verdict.ACK}[on_error]
    assert {row[0] for row in rows(sub)} == {verdict}


# Settings.


def test_settings_of_a_group_in_the_words_of_the_wire() -> None:
    said = {
        "lease": 5, "lease_max": timedelta(hours=1), "attempts": 0, "backoff": "linear", "backoff_first": 0.25,
        "backoff_max": 60, "jitter": 0.2, "order": "key", "ack": "auto", "on_expire": "dead", "level": "RECEIVED",
        "max_in_flight": 3, "rate": "10/min", "expires": 60,
    }  # fmt: skip
    assert group_fields(said) == {
        "lease_ms": 5000, "lease_max_ms": 3_600_000, "attempts_max": 0, "backoff": "linear", "backoff_ms": 250,
        "backoff_max_ms": 60_000, "jitter_pct": 20, "order": "key", "ack": "auto", "on_expire": "dead",
        "level": "received", "max_in_flight": 3, "rate": 10, "rate_ms": 60_000, "expires_ms": 60_000,
    }  # fmt: skip
    assert set(group_fields(said)) | {"patterns"} == set(GroupSettings._fields), "every setting has a word"
    assert group_fields({"lease": None}) == {}
    with pytest.raises(TypeError, match=r"leese.*lease"):
        group_fields({"leese": 5})


def test_positions() -> None:
    assert [position(p) for p in ("first", "new", "last", "last_per_key")] == ["first", "new", "last", "last_per_key"]
    assert position(7) == {"seq": 7}
    assert position(7.5) == {"time_us": 7_500_000}
    for wrong in ("lust", True):
        with pytest.raises(FabricError, match="position"):
            position(wrong)  # type: ignore[arg-type]


class NoDriver:
    def verdicts(self, sub: Subscription, urgent: bool) -> None: ...

    def commit(self, txn: object) -> None: ...

    def settle(self, batch: object, index: int | None, decision: object, timeout: float | None) -> None: ...


def test_how_much_is_worked_on_at_once_is_declared() -> None:
    make = subscription_maker(NoDriver(), ["a"], group="g", concurrency=7, settings={"order": "strict"})
    assert make(3).request == {"patterns": ["a"], "group": "g", "concurrency": 7, "order": "strict"}
    assert "concurrency" not in subscription_maker(NoDriver(), ["a"], group=None, settings={})(3).request
    assert subscription_maker(NoDriver(), ["a"], group="g", batches=True, settings={})(3).request["batches"] is True
    for wrong in (0, 65_537, True):
        with pytest.raises(FabricError, match="concurrency"):
            subscription_maker(NoDriver(), ["a"], group="g", concurrency=wrong, settings={})


# Administration.


def test_each_operation_has_its_fields() -> None:
    said: list[Mapping[str, Any]] = []
    admin: Admin[None] = Admin(said.append)
    admin.groups.create("g", "a.*", "b", start=5, lease=2, order="key")
    admin.groups.update("g", patterns=["c"], attempts=9)
    admin.groups.delete("g")
    admin.groups.seek("g", "first")
    admin.groups.pause("g")
    admin.groups.resume("g")
    admin.groups.refresh("g", start=1.5, timeout=60)
    admin.topics.create("t", max_age=60, max_msgs=5, dedupe_window=1, keep="last_per_key")
    admin.topics.update("t", max_bytes=5)
    admin.topics.delete("t")
    admin.topics.purge("t")
    admin.topics.purge("t", up_to=7)
    admin.topics.purge("t", before=1.5)
    admin.topics.purge("t", dry_run=True, after=3)
    admin.queues.create("q", max_msgs=5, lease=3, attempts=2)
    admin.queues.delete("q")
    admin.queues.purge("q")
    admin.queues.purge("q", dry_run=True)
    admin.hub.update(events=True)
    admin.sessions.kick(client="c")
    admin.sessions.kick(4)
    admin.producers.delete("kafka:c:t:0")
    admin.ask("group.pause", group="g", nothing=None)
    assert said == [
        {"op": "group.create", "group": "g", "patterns": ["a.*", "b"], "start": {"seq": 5}, "lease_ms": 2000,
         "order": "key"},
        {"op": "group.update", "group": "g", "patterns": ["c"], "attempts_max": 9},
        {"op": "group.delete", "group": "g"},
        {"op": "group.seek", "group": "g", "to": "first"},
        {"op": "group.pause", "group": "g"},
        {"op": "group.resume", "group": "g"},
        {"op": "group.refresh", "group": "g", "from": {"time_us": 1_500_000}, "timeout_ms": 60_000},
        {"op": "topic.create", "topic": "t", "max_age_ms": 60_000, "max_msgs": 5, "dedupe_ms": 1000,
         "keep": "last_per_key"},
        {"op": "topic.update", "topic": "t", "max_bytes": 5},
        {"op": "topic.delete", "topic": "t"},
        {"op": "topic.purge", "topic": "t"},
        {"op": "topic.purge", "topic": "t", "up_to": 7},
        {"op": "topic.purge", "topic": "t", "before_us": 1_500_000},
        {"op": "topic.purge", "topic": "t", "dry_run": True, "after": 3},
        {"op": "queue.create", "queue": "q", "max_msgs": 5, "lease_ms": 3000, "attempts_max": 2},
        {"op": "queue.delete", "queue": "q"},
        {"op": "queue.purge", "queue": "q"},
        {"op": "queue.purge", "queue": "q", "dry_run": True},
        {"op": "hub.update", "events": True},
        {"op": "session.kick", "client": "c"},
        {"op": "session.kick", "session": 4},
        {"op": "producer.delete", "name": "kafka:c:t:0"},
        {"op": "group.pause", "group": "g"},
    ]  # fmt: skip


def test_dead_letters_are_chosen_by_seqs_or_filter_or_all() -> None:
    said: list[Mapping[str, Any]] = []
    letters = Admin[None](said.append).dead_letters("g")
    letters.list()
    letters.list(after=5, n=10)
    letters.redrive()
    letters.redrive([1, 2])
    letters.redrive(reason="rejected", topic="a.*", before=2.5, n=3)
    letters.discard(after=9)
    assert said == [
        {"op": "dlq.list", "group": "g"},
        {"op": "dlq.list", "group": "g", "after_seq": 5, "n": 10},
        {"op": "dlq.redrive", "group": "g", "all": True},
        {"op": "dlq.redrive", "group": "g", "seqs": [1, 2]},
        {"op": "dlq.redrive", "group": "g", "max": 3,
         "filter": {"reason": "rejected", "topic": "a.*", "before_us": 2_500_000}},
        {"op": "dlq.discard", "group": "g", "after_seq": 9, "all": True},
    ]  # fmt: skip


# The workbench.


def begin(bench: WorkQueue) -> list[Message]:
    return list(iter(bench.next, None))


def test_no_more_are_begun_than_can_be_handled_at_once() -> None:
    sub = group()
    bench = WorkQueue(sub, 2, None)
    bench.add(batch(sub, "a", "a", "a"))
    first, _ = begin(bench)
    assert not bench.wants_more
    assert begin(bench) == []
    bench.done(first)
    (third,) = begin(bench)
    assert third.seq == 3
    bench.done(third)
    assert bench.wants_more
    assert (bench.begun, bench.running, bench.idle) == (3, 1, False)


def test_messages_of_a_key_wait_for_one_another() -> None:
    sub = group(order="key")
    bench = WorkQueue(sub, 10, None)
    bench.add(batch(sub, "a", "b", "a", "b", "a"))
    a, b = begin(bench)
    bench.add(batch(sub, "a", "c"))
    (c,) = begin(bench)
    assert [x.seq for x in (a, b, c)] == [1, 2, 7]
    a.ack()
    bench.done(a)
    (second,) = begin(bench)
    assert second.seq == 3
    for message in (b, c, second):
        bench.done(message)
    assert [message.seq for message in begin(bench)] == [4, 5]


def test_in_a_strict_group_one_is_handled_at_a_time() -> None:
    sub = group(order="strict")
    bench = WorkQueue(sub, 10, None)
    bench.add(batch(sub, "a", "b", "c"))
    (first,) = begin(bench)
    first.ack()
    bench.done(first)
    assert [message.seq for message in begin(bench)] == [2]


def test_what_must_wait_for_a_failed_message_is_passed_over() -> None:
    sub = group(order="key")
    bench = WorkQueue(sub, 10, None)
    bench.add(batch(sub, "a", "a", "b", "a"))
    a, b = begin(bench)
    a.retry()
    bench.done(a)
    assert begin(bench) == []
    bench.done(b)
    assert bench.idle
    sub.collect(lambda: 1)
    bench.add(batch(sub, "c"))
    assert [message.seq for message in begin(bench)] == [5]


def test_a_few_are_enough() -> None:
    sub = group()
    bench = WorkQueue(sub, 10, 2)
    bench.add(batch(sub, "a", "b", "c"))
    first, second = begin(bench)
    assert not bench.wants_more
    bench.done(first)
    assert not bench.over
    bench.done(second)
    assert bench.over


def test_a_handler_of_two_arguments_gets_the_context() -> None:
    sub = group()
    (message,) = batch(sub, "a")
    seen: list[object] = []
    caller(seen.append)(message)
    caller(lambda message, ctx: seen.append(ctx))(message)
    caller(lambda message, extra=1: seen.append(extra))(message)
    assert seen == [message, message.context, 1]
