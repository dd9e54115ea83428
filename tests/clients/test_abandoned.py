"""A subscription that the program has dropped ends: the hub delivers nothing more to it, and its messages go to other
consumers at once."""

import asyncio
import gc
import signal
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

import fabric_client
from fabric.hub import Hub
from fabric_client import AsyncClient, Client, Message
from fabric_client.core.ending import drop
from fabric_client.core.session import Session
from fabric_client.core.subscription import Subscription
from fabric_client.core.ticket import Ticket
from fabric_client.errors import ConnectionLost, GroupMismatch
from fabric_client.sync import consume as sync_consume
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from tests.clients.real_hub import HubProcess, another, connect, eventually
from tests.clients.talk import deliver, live_session, said, take, welcome
from tests.patience import PATIENCE_S

NOTHING = {"consumers": 0, "outstanding": 0}


def held(fab: Client, group: str = "g") -> dict[str, int]:
    """How many consumers the hub sees in a group, and how many messages they hold."""
    consumers = fab.info("group", group)["consumers"]
    return {"consumers": len(consumers), "outstanding": sum(one["outstanding"] for one in consumers)}


def run(hub: Hub, scenario: Callable[[AsyncClient], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with fabric_client.aconnect("inproc://hub", context=hub.context) as fab:
            await scenario(fab)

    asyncio.run(main())


async def until(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(eventually, condition)


# With a real hub.


def test_a_cancelled_fetch_ends_its_subscription(hub: Hub, fab: Client) -> None:
    fab.admin.groups.create("g", "a")

    async def scenario(left: AsyncClient) -> None:
        fetch = asyncio.create_task(left.fetch("a", group="g", count=10, at_least=10, timeout=3600))
        await until(lambda: held(fab)["consumers"])
        await asyncio.to_thread(fab.publish, "a", b"1")
        await until(lambda: held(fab)["outstanding"])
        fetch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetch
        await until(lambda: held(fab) == NOTHING)

    run(hub, scenario)


def test_a_fetch_that_is_interrupted_ends_its_subscription(hub: Hub, fab: Client) -> None:
    fab.admin.groups.create("g", "a")

    def interrupt() -> None:
        eventually(lambda: held(fab)["consumers"])
        fab.publish("a", b"1")
        eventually(lambda: held(fab)["outstanding"])
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with another(hub) as left:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            left.fetch("a", group="g", count=10, at_least=10, timeout=3600)
        thread.join(PATIENCE_S)
        eventually(lambda: held(fab) == NOTHING)


def test_messages_of_an_earlier_fetch_outlive_one_that_is_cancelled(hub: Hub, fab: Client) -> None:
    fab.admin.groups.create("g", "a")
    fab.publish("a", b"1")

    async def scenario(left: AsyncClient) -> None:
        (first,) = await left.fetch("a", group="g", timeout=PATIENCE_S)
        fetch = asyncio.create_task(left.fetch("a", group="g", count=10, at_least=10, timeout=3600))
        await asyncio.to_thread(fab.publish, "a", b"2")
        await until(lambda: held(fab)["outstanding"] == 2)
        fetch.cancel()
        await asyncio.wait([fetch])
        await until(lambda: held(fab) == {"consumers": 1, "outstanding": 1})
        await asyncio.to_thread(fab.publish, "a", b"3")  # not for the subscription that was left
        (second,) = await left.fetch("a", group="g", timeout=PATIENCE_S)
        (third,) = await left.fetch("a", group="g", timeout=PATIENCE_S)
        assert [first.body, second.body, third.body] == [b"1", b"2", b"3"]
        for message in (first, second, third):
            await message.settle(timeout=PATIENCE_S)
        await until(lambda: held(fab) == {"consumers": 1, "outstanding": 0})  # the one that the next fetch will use

    run(hub, scenario)


def test_fetched_messages_that_the_program_drops_go_back(hub: Hub, fab: Client) -> None:
    fab.publish_many("a", [b"1", b"2", b"3"])
    with another(hub) as left:

        def handle() -> None:
            for message in left.fetch("a", group="g", count=3, timeout=PATIENCE_S):
                with message:
                    if message.body == b"2":
                        raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            handle()
        gc.collect()
        left.flush(PATIENCE_S)
        eventually(lambda: held(fab)["outstanding"] == 0)
        found: dict[bytes, Message] = {}
        while len(found) < 2:
            for message in left.fetch("a", group="g", count=3, timeout=PATIENCE_S):
                found[message.body] = message
        assert sorted(found) == [b"2", b"3"]


def test_a_consumer_that_could_not_subscribe_is_not_subscribed_later(
    hub_process: HubProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_consume, "ANSWER_S", 0.2)
    with connect(hub_process) as fab, connect(hub_process) as left:
        fab.admin.groups.create("g", "a")
        hub_process.kill()
        eventually(lambda: not left.connected)
        with pytest.raises(ConnectionLost):
            left.consume("a", group="g")
        with pytest.raises(ConnectionLost):
            left.fetch("a", group="g")
        hub_process.start()
        left.publish("a", b"1", timeout=PATIENCE_S)  # it is connected again, and has said all that it had to say
        left.info(timeout=PATIENCE_S)
        eventually(lambda: fab.connected)
        assert held(fab) == NOTHING


@pytest.mark.parametrize("how", ["never started", "closed before it was started", "left in the middle", "cancelled"])
def test_asyncio_consumers_end_however_they_are_left(hub: Hub, fab: Client, how: str) -> None:
    fab.publish_many("a", [b"1", b"2", b"3"])

    async def scenario(left: AsyncClient) -> None:
        consumer = left.consume("a", group="g", prefetch=10)
        await until(lambda: held(fab)["outstanding"] == 3)
        if how == "never started":
            del consumer
            gc.collect()
        elif how == "closed before it was started":
            await consumer.close()
        elif how == "left in the middle":
            async for _ in consumer:
                break
            del consumer
            gc.collect()
        else:
            task = asyncio.create_task(consume(consumer))
            await until(lambda: len(seen) == 3)
            task.cancel()
            await asyncio.wait([task])
        await until(lambda: held(fab) == NOTHING)

    seen: list[Message] = []

    async def consume(consumer: Any) -> None:
        async for message in consumer:
            await asyncio.sleep(0)
            seen.append(message)

    fab.admin.groups.create("g", "a")
    run(hub, scenario)


def test_a_blocking_consumer_ends_when_its_loop_raises(hub: Hub, fab: Client) -> None:
    fab.publish_many("a", [b"1", b"2", b"3"])
    with another(hub) as left:

        def handle() -> None:
            for message in left.consume("a", group="g"):
                raise ValueError(message.body)

        with pytest.raises(ValueError, match="1"):
            handle()
        gc.collect()
        eventually(lambda: held(fab) == NOTHING)


def test_work_that_is_cancelled_twice_ends_its_subscription(hub: Hub, fab: Client) -> None:
    fab.publish_many("a", [b"1", b"2", b"3"])
    begun = []

    async def handle(message: Message) -> None:
        begun.append(message)
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.05)  # so that the second cancel finds it at its end

    async def scenario(left: AsyncClient) -> None:
        work = asyncio.create_task(left.work("a", handle, group="g"))
        await until(lambda: len(begun) == 3)
        work.cancel()
        await asyncio.sleep(0)
        work.cancel()
        await asyncio.wait([work])
        await until(lambda: held(fab) == NOTHING)

    fab.admin.groups.create("g", "a")
    run(hub, scenario)


def test_a_cancelled_request_is_forgotten(hub: Hub, fab: Client) -> None:
    async def scenario(left: AsyncClient) -> None:
        with another(hub) as shop, shop.serve("q") as questions:
            request = asyncio.create_task(left.request("q", b"x", timeout=PATIENCE_S))
            asked = await asyncio.to_thread(next, questions)
            request.cancel()
            await asyncio.wait([request])
            assert not left._session.calls.all()
            asked.reply(b"y")
            await left.info()

    run(hub, scenario)


def test_two_threads_fetch_at_once(hub: Hub, fab: Client) -> None:
    fab.publish_many("a", [b"%d" % number for number in range(400)])
    found: list[bytes] = []

    def fetch() -> None:
        while len(found) < 400:
            for message in fab.fetch("a", group="g", count=3, timeout=0.05):
                with message:
                    found.append(message.body)

    threads = [threading.Thread(target=fetch) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert len(found) == len(set(found)) == 400


# The core: time is a number, the hub is a list of messages.


def open_sub(session: Session, **how: Any) -> tuple[Subscription, Ticket]:
    ticket = Ticket()
    sub = session.subscribe(lambda chan: Subscription(chan, {"patterns": ["#"], "group": "g"}, **how), ticket)
    return sub, ticket


def accept(session: Session) -> None:
    """Answer the SUB that is on its way."""
    (asked,) = [message for message in said(session) if isinstance(message, m.Subscribe)]
    session.receive(m.Ok(asked.chan, asked.rid, {"group": "g", "lease_ms": 30_000, "order": "none"}), 0.0)


def again(session: Session, *, resumed: bool = False, subs: tuple[int, ...] = ()) -> list[m.ToHub]:
    """The connection breaks and comes back; what is said then."""
    session.lost(1.0, "test")
    session.opened(session.reopen_at)
    welcome(session, resumed=resumed, subs=subs, now=session.reopen_at)
    return said(session)


def kinds(messages: Sequence[m.ToHub]) -> list[type]:
    return [type(message) for message in messages]


@pytest.mark.parametrize("fetching", [False, True])
def test_left_before_the_answer_and_without_a_connection_it_is_not_asked_for_again(fetching: bool) -> None:
    session = live_session()
    session.lost(0.0, "test")
    sub, _ = open_sub(session, fetching=fetching)
    drop(session, sub)
    session.opened(session.reopen_at)
    welcome(session, now=session.reopen_at)
    assert said(session) == []
    assert not session.subscriptions
    assert not session.calls.all()


@pytest.mark.parametrize("resumed", [False, True])
def test_left_while_the_connection_is_down(resumed: bool) -> None:
    session = live_session()
    sub, _ = open_sub(session)
    accept(session)
    session.receive(deliver(sub.chan, 1, b"1"), 0.0)
    session.lost(0.0, "test")
    drop(session, sub)
    session.opened(session.reopen_at)
    welcome(session, resumed=resumed, subs=[sub.chan] if resumed else [], now=session.reopen_at)
    heard = [message for message in said(session) if not isinstance(message, m.Credit)]
    assert kinds(heard) == ([m.Unsubscribe] if resumed else [])


def test_left_while_the_hub_asks_for_patience() -> None:
    session = live_session()
    sub, ticket = open_sub(session)
    (asked,) = said(session)
    assert isinstance(asked, m.Subscribe)
    session.receive(m.Err(sub.chan, asked.rid, Code.BUSY, "later", {"retry_ms": 100}), 0.0)
    drop(session, sub)
    (left,) = said(session)
    assert isinstance(left, m.Unsubscribe)
    session.receive(m.Err(sub.chan, left.rid, Code.NOT_FOUND, "no subscription", {}), 0.0)
    session.tick(1.0)
    assert said(session) == []
    assert not session.subscriptions
    assert ticket.done


def test_a_fetching_subscription_with_messages_out_ends_with_the_last_of_them() -> None:
    session = live_session()
    sub, _ = open_sub(session, fetching=True)
    accept(session)
    session.fetch(sub, (10, 1000, 1), Ticket())
    session.receive(deliver(sub.chan, 1, b"1", b"2"), 0.0)
    first, second = take(sub)
    session.receive(deliver(sub.chan, 3, b"3"), 0.0)
    said(session)
    drop(session, sub)
    released, credit = said(session)
    assert isinstance(released, m.Settle)
    assert released.verdicts == ((m.Verdict.RELEASE, 3, 3, None),)
    assert credit == m.Credit(sub.chan, 0, 0)
    session.receive(deliver(sub.chan, 4, b"4"), 0.0)  # was on its way
    first.ack()
    session.flush(sub)
    (settled,) = said(session)
    assert isinstance(settled, m.Settle)
    assert settled.verdicts == ((m.Verdict.ACK, 1, 1, None), (m.Verdict.RELEASE, 4, 4, None))
    second.ack()
    session.flush(sub)
    assert kinds(said(session)) == [m.Settle, m.Unsubscribe]


def test_a_fetching_subscription_that_was_left_is_not_opened_again() -> None:
    session = live_session()
    sub, _ = open_sub(session, fetching=True)
    accept(session)
    session.receive(deliver(sub.chan, 1, b"1"), 0.0)
    batch = take(sub)
    drop(session, sub)
    said(session)
    assert again(session) == []
    assert not session.subscriptions
    assert len(batch) == 1


def test_a_fetch_waits_for_its_subscription_after_a_restart_of_the_hub() -> None:
    session = live_session()
    sub, _ = open_sub(session, fetching=True)
    accept(session)
    ticket = Ticket()
    session.fetch(sub, (1, 1000, 1), ticket)
    said(session)
    (asked,) = again(session)
    assert isinstance(asked, m.Subscribe)
    session.receive(m.Err(sub.chan, asked.rid, Code.BUSY, "later", {"retry_ms": 100}), 2.0)
    session.tick(3.0)
    assert kinds(said(session)) == [m.Subscribe]
    session.receive(m.Ok(sub.chan, asked.rid, {"group": "g"}), 3.0)
    assert kinds(said(session)) == [m.Fetch]
    assert not ticket.done


def test_a_fetch_fails_with_its_subscription_after_a_restart_of_the_hub() -> None:
    session = live_session()
    sub, _ = open_sub(session, fetching=True)
    accept(session)
    ticket = Ticket()
    session.fetch(sub, (1, 1000, 1), ticket)
    said(session)
    (asked,) = again(session)
    assert isinstance(asked, m.Subscribe)
    session.receive(m.Err(sub.chan, asked.rid, Code.GROUP_MISMATCH, "the group differs", {}), 2.0)
    with pytest.raises(GroupMismatch):
        ticket.result()
    assert said(session) == []


def test_a_fetch_that_was_asked_for_without_a_connection_is_said_on_a_resumed_session() -> None:
    session = live_session()
    sub, _ = open_sub(session, fetching=True)
    accept(session)
    session.lost(1.0, "test")
    session.fetch(sub, (1, 1000, 1), Ticket())
    session.opened(session.reopen_at)
    welcome(session, resumed=True, subs=[sub.chan], now=session.reopen_at)
    assert kinds(said(session)) == [m.Fetch]


def test_a_touch_from_another_thread_is_not_lost_against_collect() -> None:
    session = live_session()
    sub, _ = open_sub(session)
    accept(session)
    session.receive(deliver(sub.chan, 1, *[b"x"] * 2000), 0.0)
    messages = list(take(sub))
    over = threading.Event()

    def touch() -> None:
        for message in messages:
            message.touch()
        over.set()

    thread = threading.Thread(target=touch)
    thread.start()
    rows: list[m.ToHub] = []
    while not over.is_set() or sub._touches:
        session.flush(sub)
        rows += said(session)
    thread.join()
    touched = [row for message in rows if isinstance(message, m.Settle) for row in message.verdicts]
    assert sum(last - first + 1 for _, first, last, _ in touched) == len(messages)
