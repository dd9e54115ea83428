"""The blocking client against the real hub: requests, refreshes, administration, reading."""

import time
from typing import Any

import pytest

from fabric.hub import Hub
from fabric_client import (
    Client,
    Message,
    NoResponders,
    NotFound,
    Refresh,
    RemoteError,
    Request,
    TimedOut,
    TopicFull,
)
from tests.clients.real_hub import acked, another, eventually, running
from tests.patience import PATIENCE_S

# Requests.


def test_a_request_is_answered(fab: Client, hub: Hub) -> None:
    with another(hub) as other:
        with running(
            lambda: other.respond("quote.*", lambda request: {"echo": request.text}, count=2, timeout=PATIENCE_S)
        ):
            eventually(lambda: _is_served(fab, "quote.get"))
            reply = fab.request("quote.get", "A1", timeout=PATIENCE_S)
        assert (reply.data, reply.sender, reply.final) == ({"echo": "A1"}, "another", True)
    with pytest.raises(NoResponders):
        fab.request("quote.get", b"x")


def _is_served(fab: Client, topic: str) -> bool:
    try:
        fab.request(topic, b"", timeout=PATIENCE_S)
    except NoResponders:
        return False
    return True


def test_many_replies_a_failure_and_a_timeout(fab: Client, hub: Hub) -> None:
    def handle(request: Request) -> Any:
        if request.text == "fail":
            raise ValueError("no such sku")
        if request.text == "sleep":
            time.sleep(0.3)
            return b"late"
        return (str(number) for number in range(4))

    with another(hub) as other, running(lambda: other.respond("quote", handle, count=5, timeout=PATIENCE_S)):
        eventually(lambda: _is_served(fab, "quote"))
        assert [r.text for r in fab.request("quote", "all", replies_max=100)] == ["0", "1", "2", "3"]
        assert [r.text for r in fab.request("quote", "some", replies_max=2)] == ["0", "1"]
        with pytest.raises(RemoteError, match="no such sku"):
            fab.request("quote", "fail")
        with pytest.raises(TimedOut):
            fab.request("quote", "sleep", timeout=0.1)


def test_requests_in_a_loop(fab: Client, hub: Hub) -> None:
    def serve(other: Client) -> None:
        for request in other.serve("q", group="pool", count=2, timeout=PATIENCE_S):
            request.reply(request.body.upper())

    with another(hub) as other, running(lambda: serve(other)):
        eventually(lambda: _is_served(fab, "q"))
        assert fab.request("q", "abc").body == b"ABC"


def test_a_durable_request_outlives_its_client(hub: Hub) -> None:
    with another(hub, "asker") as asker, pytest.raises(TimedOut, match="order-7"):
        asker.request("work", "do it", durable=True, correlation="order-7", timeout=0.2)
    with another(hub, "worker") as worker:
        worker.work(
            "work", lambda message, ctx: ctx.reply({"did": message.text}), group="workers", count=1, timeout=PATIENCE_S
        )
    with another(hub, "asker") as asker:
        reply = asker.request("work", "do it", durable=True, correlation="order-7", timeout=PATIENCE_S)
        assert reply.data == {"did": "do it"}
        assert len(list(asker.get("work", n=10))) == 1, "it was asked once"


# Refreshes.


def test_a_refresh_comes_in_order_and_is_answered(fab: Client) -> None:
    fab.publish_many("state", [b"1", b"2", b"3"])
    seen: list[object] = []

    def on_refresh(refresh: Refresh) -> None:
        seen.append(refresh.phase)
        if not refresh.begins:
            consumer.ready(refresh)

    def consume() -> None:
        for message in consumer:
            with message:
                seen.append(message.body)

    consumer = fab.consume("state", group="copy", on_refresh=on_refresh, count=6, timeout=PATIENCE_S)
    with running(consume):
        eventually(lambda: fab.info("group", "copy")["floor"] == 3)
        answer = fab.admin.groups.refresh("copy")
        assert (answer["refresh"], answer["target"]) == (1, 3)
    assert seen == [b"1", b"2", b"3", "begin", b"1", b"2", b"3"]


def test_handlers_finish_before_a_refresh_begins(fab: Client, hub: Hub) -> None:
    fab.publish_many("state", [b"%d" % number for number in range(8)])
    seen: list[object] = []

    def handle(message: Message) -> None:
        time.sleep(0.01)
        seen.append(message.seq)

    def on_refresh(refresh: Refresh) -> None:
        seen.append(refresh.phase)
        if not refresh.begins:
            refresh.ready()

    def work() -> None:
        worker.work("state", handle, group="copy", concurrency=4, on_refresh=on_refresh)

    with another(hub) as worker, running(work):
        eventually(lambda: len(seen) == 8 and fab.info("group", "copy")["floor"] == 8)
        fab.admin.groups.refresh("copy")
        eventually(lambda: "end" in seen)
        worker.close()
    assert sorted(n for n in seen[:8] if isinstance(n, int)) == list(range(1, 9))
    assert seen[8] == "begin"
    assert sorted(n for n in seen[9:17] if isinstance(n, int)) == list(range(1, 9))
    assert seen[17:] == ["end"]


# Administration and reading.


def test_a_deleted_group_ends_its_consumers(fab: Client) -> None:
    consumer = fab.consume("t", group="g", timeout=PATIENCE_S)
    fab.admin.groups.delete("g")
    with pytest.raises(NotFound, match="deleted"):
        next(consumer)
    with pytest.raises(NotFound):
        fab.admin.groups.pause("g")


def test_the_hub_tells_what_happens(fab: Client) -> None:
    consumer = fab.consume("t", "$sys.group.#", timeout=PATIENCE_S)
    fab.admin.groups.create("g", "t")
    message = next(consumer)
    assert (message.topic, message.data["group"], message.seq) == ("$sys.group.created", "g", 0)
    fab.publish("t", b"x")
    assert next(consumer).body == b"x"


def test_a_paused_group_gets_nothing(fab: Client) -> None:
    fab.admin.groups.create("g", "t")
    fab.admin.groups.pause("g")
    fab.publish("t", b"x")
    assert fab.fetch(group="g", timeout=0.1) == []
    fab.admin.groups.resume("g")
    (message,) = fab.fetch(group="g", timeout=PATIENCE_S)
    message.ack()


def test_queues_and_topics(fab: Client) -> None:
    fab.admin.queues.create("jobs", lease=5, max_msgs=3)
    fab.publish_many("jobs", [b"1", b"2", b"3"])
    with pytest.raises(TopicFull) as caught:
        fab.publish("jobs", b"4")
    assert "max_msgs" in str(caught.value)
    acked(fab, group="jobs", count=2)
    eventually(lambda: fab.info("topic", "jobs")["msgs"] == 1)
    fab.publish("jobs", b"4")
    fab.admin.queues.purge("jobs")
    assert fab.fetch(group="jobs", timeout=0.1) == []
    fab.admin.queues.delete("jobs")
    with pytest.raises(NotFound):
        fab.info("group", "jobs")


def test_reading_without_a_group(fab: Client) -> None:
    fab.publish_many("a.x", [b"%d" % number for number in range(1500)])
    fab.publish("b.y", b"last")
    assert [m.body for m in fab.get("a.x")] == [b"0"]
    everything = list(fab.get("a.*", n=2000))
    assert [int(m.body) for m in everything] == list(range(1500))
    assert [m.seq for m in fab.get("a.*", seq=1400, n=3)] == [1400, 1401, 1402]
    assert [m.body for m in fab.get("#", last=True, n=2)] == [b"1499", b"last"]
    for number in range(100):  # blocks of their own: more than the hub looks at for one answer
        fab.publish("d.z", b"%d" % number)
    assert [int(m.body) for m in fab.get("d.z", last=True, n=90)] == list(range(10, 100))
    assert [int(m.body) for m in fab.get("a.x", last=True, n=1200)] == list(range(300, 1500))
    assert list(fab.get("c.#", n=5)) == []
    assert len(list(fab.get("#", time=everything[0].ts, n=5))) == 5
    everything[0].ack()  # has no effect


def test_what_the_hub_knows(fab: Client) -> None:
    fab.admin.hub.update(events=True)
    assert fab.info("settings")["events"] is True
    assert fab.info()["last_seq"] == 0
    with pytest.raises(NotFound):
        fab.info("nonsense")
    assert fab.admin.sessions.kick(client="tests")["kicked"] == 1
    assert fab.publish("t", b"x").seq == 1
