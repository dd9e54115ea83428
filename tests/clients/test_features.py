"""The blocking client against the real hub: publishing and consuming, feature by feature."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import fabric_client
from fabric.hub import Hub
from fabric_client import Client, Conflict, Message, NotFound, Reject, Retry, Scheduled, Stale, TopicFull
from tests.clients.real_hub import acked, eventually
from tests.patience import PATIENCE_S

# Later.


def test_a_delayed_message_comes_when_it_is_due(fab: Client) -> None:
    begun = time.time()
    receipt = fab.publish("later", {"n": 1}, delay=0.2, ttl=60, key="k", headers={"h": "v"})
    assert isinstance(receipt, Scheduled)
    assert receipt.due is not None
    assert begun + 0.19 <= receipt.due.timestamp() <= time.time() + 0.21
    (message,) = acked(fab, "later", group="g", count=1, timeout=PATIENCE_S)
    assert (message.data, message.key, message.headers["h"]) == ({"n": 1}, "k", "v")
    assert message.ts >= begun + 0.19


def test_schedules_are_listed_replaced_and_cancelled(fab: Client) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    ids = [fab.publish(f"t.{n}", b"x", at=soon + timedelta(seconds=n)).schedule for n in range(5)]
    named = fab.publish("report", b"old", every=3600, name="report")
    replacing = fab.publish("report", b"new", cron="0 3 * * *", name="report")
    found = list(fab.schedules(page=2))
    assert {schedule.id for schedule in found} == {*ids, replacing.schedule}
    assert [s.due for s in found] == sorted(s.due for s in found)
    assert next(s for s in found if s.name).cron == "0 3 * * *"
    assert abs(fab.cancel(ids[0]) - soon) < timedelta(seconds=1)
    fab.cancel(name="report")
    for gone in (named, ids[0]):
        with pytest.raises(NotFound):
            fab.cancel(gone)
    assert [schedule.id for schedule in fab.schedules()] == ids[1:]


def test_many_are_scheduled_together(fab: Client) -> None:
    receipt = fab.publish_many("later", [b"1", b"2", b"3"], delay=0.1)
    assert (receipt.count, receipt.schedule > 0) == (3, True)
    fab.publish_nowait("later", b"4", delay=0.15)
    fab.flush()
    assert [m.body for m in acked(fab, "later", group="g", count=4, timeout=PATIENCE_S)] == [b"1", b"2", b"3", b"4"]


def test_messages_that_expired_are_not_delivered(fab: Client) -> None:
    fab.publish("t", b"short", ttl=0.05)
    fab.publish("t", b"gone", expires_at=time.time() - 1)
    fab.publish("t", b"long", ttl=60)
    time.sleep(0.1)
    assert [m.body for m in acked(fab, "t", group="g", count=1, timeout=PATIENCE_S)] == [b"long"]
    eventually(lambda: fab.info("group", "g")["floor"] == 3)
    assert fab.info("group", "g")["expired"] == 2


def test_urgent_messages_overtake(fab: Client) -> None:
    fab.admin.groups.create("g", "t")
    fab.publish("t", b"plain")
    fab.publish("t", b"slow", priority=0)
    fab.publish("t", b"urgent", priority=9)
    found = acked(fab, group="g", count=3, prefetch=1)
    assert [(m.body, m.priority) for m in found] == [(b"urgent", 9), (b"plain", 4), (b"slow", 0)]


# Ids.


def test_one_message_is_stored_for_an_id(fab: Client) -> None:
    first = fab.publish("orders", b"a", id="order-1")
    again = fab.publish("orders", b"a", id="order-1")
    assert (again.seq, again.duplicate, first.duplicate) == (first.seq, True, False)
    many = fab.publish_many("orders", [b"a", b"b", b"c"], ids=["order-0", "order-1", "order-2"])
    assert (many.seqs[1], list(many.repeated), many.duplicates) == (first.seq, [1], 1)
    assert [m.body for m in fab.get("orders", n=10)] == [b"a", b"a", b"c"]


# Verdicts and settings.


def test_a_handler_may_say_how_it_ended(fab: Client) -> None:
    fab.publish_many("jobs", [b"flaky", b"broken", b"fine"])

    def handle(message: Message) -> None:
        if message.body == b"broken":
            raise Reject("no such thing")
        if message.body == b"flaky" and message.attempt == 1:
            raise Retry(0.05, "try again")

    assert fab.work("jobs", handle, group="g", count=4, timeout=PATIENCE_S) == 4
    letters = fab.admin.dead_letters("g").list()["letters"]
    assert [(row["reason"], row["error"]) for row in letters] == [("rejected", "no such thing")]
    eventually(lambda: fab.info("group", "g")["floor"] >= 3)


def test_failures_are_counted_until_a_message_is_dead(fab: Client) -> None:
    fab.publish("jobs", b"x")
    settings: Any = {"attempts": 2, "backoff": "fixed", "backoff_first": 0.02, "jitter": 0.0}

    def handle(message: Message) -> None:
        raise ValueError("always")

    fab.work("jobs", handle, group="g", count=2, timeout=PATIENCE_S, **settings)
    eventually(lambda: fab.admin.dead_letters("g").list()["letters"])
    (row,) = fab.admin.dead_letters("g").list()["letters"]
    assert (row["attempts"], row["error"]) == (2, "ValueError: always")
    assert fab.admin.dead_letters("g").redrive([row["seq"]])["redriven"] == 1
    (message,) = acked(fab, group="g", count=1, timeout=PATIENCE_S)
    assert (message.topic, message.body) == ("jobs", b"x")
    with pytest.raises(NotFound):
        fab.admin.dead_letters("g").discard([row["seq"]])


def test_a_long_handler_keeps_its_lease(fab: Client, hub: Hub) -> None:
    fab.publish("jobs", b"x")
    attempts = []

    def lease_ends() -> float:
        (member,) = hub._router.groups["g"].members
        return member.leases[0].deadline

    def handle(message: Message) -> None:
        for _ in range(2):
            before = lease_ends()
            eventually(lambda: lease_ends() > before)  # noqa: B023
        attempts.append((message.attempt, message.lost))

    settings: Any = {"lease": 3.0}
    fab.work("jobs", handle, group="g", count=1, timeout=PATIENCE_S, **settings)
    assert attempts == [(1, False)]


def test_a_handler_that_takes_too_long_loses_its_message(fab: Client) -> None:
    fab.publish("jobs", b"x")
    attempts = []

    def handle(message: Message) -> None:
        if message.attempt == 1:
            eventually(lambda: message.lost)
        attempts.append((message.attempt, message.lost))

    settings: Any = {"lease": 2.0, "lease_max": 2.0, "backoff": "fixed", "backoff_first": 0.0}
    fab.work("jobs", handle, group="g", count=2, timeout=PATIENCE_S, **settings)
    assert sorted(attempts) == [(1, True), (2, False)]
    eventually(lambda: fab.info("group", "g")["floor"] == 1)


def test_settings_that_differ_are_refused(fab: Client) -> None:
    fab.admin.groups.create("g", "t", order="key", attempts=3)
    with pytest.raises(fabric_client.GroupMismatch):
        fab.consume("t", group="g", order="strict")
    with pytest.raises(Conflict):
        fab.admin.groups.create("g", "t", attempts=4)
    assert fab.admin.groups.update("g", attempts=4)["settings"]["attempts_max"] == 4
    fab.consume("t", group="g", order="key").close()


def test_keys_stay_in_order_whatever_fails(fab: Client) -> None:
    fab.admin.groups.create("g", "t", order="key")  # a consumer that joins it need not know the order
    keys = ["a", "b", "c"]
    for number in range(60):
        fab.publish_nowait("t", b"%d" % number, key=keys[number % 3])
    fab.flush()
    done: dict[str, list[int]] = {key: [] for key in keys}
    running_keys: set[str] = set()
    failed: set[int] = set()
    overlaps = []

    def handle(message: Message) -> None:
        key, number = message.key or "", int(message.body)
        if key in running_keys:
            overlaps.append(number)
        running_keys.add(key)
        time.sleep(0.002)
        running_keys.discard(key)
        if number % 7 == 0 and number not in failed:
            failed.add(number)
            raise Retry(0.01)
        done[key].append(number)

    retried = len(range(0, 60, 7))
    fab.work("t", handle, group="g", concurrency=8, count=60 + retried, timeout=PATIENCE_S)
    assert not overlaps
    for place, key in enumerate(keys):
        assert done[key] == [number for number in range(60) if number % 3 == place]


def test_strict_order_with_a_loop(fab: Client) -> None:
    fab.publish_many("t", [b"%d" % number for number in range(30)])
    done = []
    for message in fab.consume("t", group="g", order="strict", timeout=PATIENCE_S):
        with message:
            if int(message.body) % 5 == 0 and message.attempt == 1:
                raise Retry(0.01)
            done.append(int(message.body))
        if len(done) == 30:
            break
    assert done == list(range(30))


@pytest.mark.parametrize("joins", [False, True])
def test_a_group_that_acks_by_itself(fab: Client, joins: bool) -> None:
    fab.publish_many("t", [b"1", b"2"])
    if joins:
        fab.admin.groups.create("g", "t", ack="auto")
    consumer = fab.consume("t", group="g", count=2) if joins else fab.consume("t", group="g", ack="auto", count=2)
    for message in consumer:
        message.ack()  # has no effect
    eventually(lambda: fab.info("group", "g")["floor"] == 2)


def test_the_latest_of_each_key(fab: Client) -> None:
    for number in range(6):
        fab.publish("state", b"%d" % number, key="ab"[number % 2])
    assert [m.body for m in fab.get("state", by_key=True)] == [b"4", b"5"]
    found = [m.body for m in fab.consume("state", start="last_per_key", count=2, timeout=PATIENCE_S)]
    assert found == [b"4", b"5"]
    assert [m.body for m in fab.consume("state", start="last", count=1, timeout=PATIENCE_S)] == [b"5"]


# Transactions.


def test_publishes_go_out_with_the_ack(fab: Client) -> None:
    fab.publish_many("orders", [b"%d" % number for number in range(20)])

    def handle(message: Message, ctx: fabric_client.Transaction) -> None:
        ctx.publish("invoices", b"for " + message.body)
        if message.body == b"7" and message.attempt == 1:
            raise Retry(0.01)

    fab.work("orders", handle, group="g", concurrency=4, count=21, timeout=PATIENCE_S)
    invoices = [m.body for m in fab.get("invoices", n=100)]
    assert sorted(invoices) == sorted(b"for %d" % number for number in range(20))
    assert fab.info("group", "g")["floor"] >= 20


def test_a_transaction_in_a_loop_gives_its_receipt(fab: Client) -> None:
    fab.publish_many("orders", [b"1", b"2"])
    for message in fab.consume("orders", group="g", count=1, prefetch=1):
        with message.transaction() as txn:
            txn.publish("invoices", b"x")
            receipt = txn.commit()
    assert receipt.seqs == [3]
    for batch in fab.consume_batches("orders", group="g", count=1):
        with batch.transaction() as txn:
            txn.publish("invoices", b"y")
    assert [m.body for m in fab.get("invoices", n=10)] == [b"x", b"y"]
    assert not fab.fetch("orders", group="g", timeout=0.1)


def test_a_transaction_that_comes_too_late_does_nothing(fab: Client) -> None:
    fab.publish("orders", b"1")
    (message,) = fab.fetch("orders", group="g", timeout=PATIENCE_S)
    fab.admin.groups.seek("g", "first")
    with pytest.raises(Stale), message.transaction() as txn:
        txn.publish("invoices", b"x")
    assert not list(fab.get("invoices", n=10))
    (again,) = fab.fetch("orders", group="g", timeout=PATIENCE_S)
    again.ack()


def test_a_refused_transaction_brings_the_message_back(fab: Client) -> None:
    fab.admin.topics.create("invoices", max_msgs=1)
    fab.publish("invoices", b"full")
    fab.publish("orders", b"1")
    (message,) = fab.fetch("orders", group="g", timeout=PATIENCE_S, backoff="fixed", backoff_first=0.01)
    with pytest.raises(TopicFull), message.transaction() as txn:
        txn.publish("invoices", b"x")
    (again,) = acked(fab, group="g", count=1, timeout=PATIENCE_S)
    assert again.attempt == 2
