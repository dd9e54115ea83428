"""The asyncio client against the real hub, feature by feature."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import fabric_client
from fabric.hub import Hub, HubOptions
from fabric_client import (
    AsyncClient,
    Message,
    NoResponders,
    NotFound,
    Refresh,
    Reject,
    RemoteError,
    Request,
    Retry,
    Stale,
    TimedOut,
)
from tests.patience import PATIENCE_S

Story = Callable[[AsyncClient], Coroutine[Any, Any, None]]


@pytest.fixture
def tell(tmp_path: Path) -> Callable[[Story], None]:
    """Runs a story with a client of a hub of its own."""

    def run(story: Story) -> None:
        async def main(hub: Hub) -> None:
            async with fabric_client.aconnect("inproc://hub", context=hub.context, name="tests") as fab:
                await asyncio.wait_for(story(fab), PATIENCE_S)

        with Hub(tmp_path / "data", HubOptions(binds=["inproc://hub"])) as hub:
            asyncio.run(main(hub))

    return run


Tell = Callable[[Story], None]


async def eventually(condition: Callable[[], Awaitable[object]]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.01)


async def served(fab: AsyncClient, topic: str) -> None:
    async def is_served() -> bool:
        try:
            await fab.request(topic, b"", timeout=PATIENCE_S)
        except NoResponders:
            return False
        return True

    await eventually(is_served)


async def bodies(messages: AsyncIterator[Message]) -> list[bytes]:
    return [message.body async for message in messages]


def test_schedules(tell: Tell) -> None:
    async def story(fab: AsyncClient) -> None:
        receipt = await fab.publish("later", b"x", delay=0.1)
        kept = await fab.publish("later", b"y", delay=3600, name="hourly")
        assert [s.id async for s in fab.schedules(page=1)] == [receipt.schedule, kept.schedule]
        assert await fab.cancel(name="hourly") == kept.due
        with pytest.raises(NotFound):
            await fab.cancel(kept)
        fab.publish_nowait("later", b"z", delay=0.2)
        found = []
        async for message in fab.consume("later", group="g", count=2, timeout=PATIENCE_S):
            async with message:
                found.append(message.body)
        assert found == [b"x", b"z"]

    tell(story)


def test_ids(tell: Tell) -> None:
    async def story(fab: AsyncClient) -> None:
        first, again = await asyncio.gather(*[fab.publish("t", b"x", id="1") for _ in range(2)])
        assert (first.seq, again.seq, again.duplicate) == (1, 1, True)
        many = await fab.publish_many("t", [b"a", b"b"], ids=["1", "2"])
        assert list(many.seqs) == [1, 2]

    tell(story)


def test_handlers_in_tasks(tell: Tell) -> None:
    async def story(fab: AsyncClient) -> None:
        await fab.publish_many("jobs", [b"%d" % number for number in range(30)])
        at_once = most = 0

        async def handle(message: Message, ctx: fabric_client.Transaction) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.005)
            at_once -= 1
            if message.body == b"3":
                raise Reject("three")
            if message.body == b"5" and message.attempt == 1:
                raise Retry(0.01)
            ctx.publish("done", message.body)

        assert await fab.work("jobs", handle, group="g", concurrency=8, count=31, timeout=PATIENCE_S) == 31
        assert most == 8
        assert sorted(map(int, await bodies(fab.get("done", n=100)))) == [n for n in range(30) if n != 3]
        assert (await fab.admin.dead_letters("g").list())["letters"][0]["error"] == "three"

    tell(story)


def test_plain_functions_are_handlers_too(tell: Tell) -> None:
    async def story(fab: AsyncClient) -> None:
        await fab.publish_many("jobs", [b"1", b"2"])
        seen: list[bytes] = []
        await fab.work("jobs", lambda message: seen.append(message.body), group="g", count=2)
        assert sorted(seen) == [b"1", b"2"]

    tell(story)


def test_cancelled_work_releases_what_it_holds(tell: Tell) -> None:
    async def story(fab: AsyncClient) -> None:
        await fab.publish("jobs", b"1")
        begun = asyncio.Event()

        async def handle(message: Message) -> None:
            begun.set()
            await asyncio.sleep(60)

        task = asyncio.create_task(fab.work("jobs", handle, group="g"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (message,) = await fab.fetch("jobs", group="g", timeout=PATIENCE_S)
        message.ack()

    tell(story)


def test_keys_stay_in_order(tell: Tell) -> None:
    async def story(fab: AsyncClient) -> None:
        await fab.admin.groups.create("g", "t", order="key")  # a consumer that joins it need not know the order
        for number in range(40):
            fab.publish_nowait("t", b"%d" % number, key="ab"[number % 2])
        await fab.flush()
        done: list[int] = []
        failed: set[int] = set()

        async def handle(message: Message) -> None:
            await asyncio.sleep(0.001)
            if (number := int(message.body)) % 6 == 0 and number not in failed:
                failed.add(number)
                raise Retry(0.01)
            done.append(int(message.body))

        retried = len(range(0, 40, 6))
        await fab.work("t", handle, group="g", concurrency=4, count=40 + retried, timeout=PATIENCE_S)
        for rest in (0, 1):
            assert [n for n in done if n % 2 == rest] == list(range(rest, 40, 2))

    tell(story)


def test_transactions(tell: Tell) -> None:
    async def story(fab: AsyncClient) -> None:
        await fab.publish_many("orders", [b"1", b"2"])
        async for message in fab.consume("orders", group="g", count=1, prefetch=1):
            async with message.transaction() as txn:
                txn.publish("invoices", b"x")
        (message,) = await fab.fetch("orders", group="g", timeout=PATIENCE_S)
        await fab.admin.groups.seek("g", "first")
        with pytest.raises(Stale):
            async with message.transaction() as txn:
                txn.publish("invoices", b"y")
        assert await bodies(fab.get("invoices", n=10)) == [b"x"]
        (message, other) = await fab.fetch("orders", group="g", count=2, timeout=PATIENCE_S)
        async with message:
            message.context.publish("invoices", b"z")
        other.ack()
        assert await bodies(fab.get("invoices", n=10)) == [b"x", b"z"]

    tell(story)


def test_requests(tell: Tell) -> None:
    async def story(fab: AsyncClient) -> None:
        async def handle(request: Request) -> Any:
            if request.text == "fail":
                raise ValueError("no")
            if request.text == "sleep":
                await asyncio.sleep(0.3)
            return {"echo": request.text}

        async def stream(request: Request) -> AsyncIterator[str]:
            for number in range(3):
                yield str(number)

        with pytest.raises(NoResponders):
            await fab.request("quote", b"x")
        tasks = [
            asyncio.create_task(fab.respond("quote", handle, timeout=PATIENCE_S)),
            asyncio.create_task(fab.respond("stream", stream, timeout=PATIENCE_S)),
        ]
        await served(fab, "quote")
        await served(fab, "stream")
        replies = await asyncio.gather(*[fab.request("quote", str(number)) for number in range(40)])
        assert [reply.data["echo"] for reply in replies] == [str(number) for number in range(40)]
        with pytest.raises(RemoteError, match="no"):
            await fab.request("quote", "fail")
        with pytest.raises(TimedOut):
            await fab.request("quote", "sleep", timeout=0.1)
        parts = await fab.request("stream", b"", replies_max=10)
        assert [reply.text async for reply in parts] == ["0", "1", "2"]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    tell(story)


def test_serving_in_a_loop(tell: Tell) -> None:
    async def story(fab: AsyncClient) -> None:
        async def serve() -> None:
            async for request in fab.serve("q", count=2, timeout=PATIENCE_S):
                request.reply(request.body.upper())

        task = asyncio.create_task(serve())
        await served(fab, "q")
        assert (await fab.request("q", "abc")).body == b"ABC"
        await task

    tell(story)


def test_durable_requests(tell: Tell) -> None:
    async def story(fab: AsyncClient) -> None:
        with pytest.raises(TimedOut):
            await fab.request("work", b"1", durable=True, correlation="c1", timeout=0.1)
        asking = asyncio.create_task(fab.request("work", b"2", durable=True, timeout=PATIENCE_S))
        await fab.work("work", lambda message, ctx: ctx.reply(message.body * 2), group="w", count=2, timeout=PATIENCE_S)
        assert (await asking).body == b"22"
        assert (await fab.request("work", b"1", durable=True, correlation="c1", timeout=PATIENCE_S)).body == b"11"

    tell(story)


def test_refreshes(tell: Tell) -> None:
    async def story(fab: AsyncClient) -> None:
        await fab.publish_many("state", [b"1", b"2"])
        seen: list[object] = []

        async def on_refresh(refresh: Refresh) -> None:
            await asyncio.sleep(0)
            seen.append(refresh.phase)
            if not refresh.begins:
                await consumer.ready(refresh)
                seen.append("ready")

        consumer = fab.consume("state", group="copy", on_refresh=on_refresh, timeout=PATIENCE_S)

        async def consume() -> None:
            async for message in consumer:
                async with message:
                    seen.append(message.body)

        task = asyncio.create_task(consume())

        async def is_through() -> bool:
            return bool((await fab.info("groups"))["groups"]) and (await fab.info("group", "copy"))["floor"] == 2

        await eventually(is_through)
        await fab.admin.groups.refresh("copy")

        async def is_ready() -> bool:
            return "ready" in seen

        await eventually(is_ready)
        task.cancel()
        assert seen == [b"1", b"2", "begin", b"1", b"2", "end", "ready"]

    tell(story)


def test_administration_and_reading(tell: Tell) -> None:
    async def story(fab: AsyncClient) -> None:
        await fab.admin.groups.create("g", "t", start="first")
        await fab.publish_many("t", [b"1", b"2", b"3"], keys=["a", "b", "a"])
        assert (await fab.info("group", "g"))["patterns"] == ["t"]
        assert await bodies(fab.get("t", last=True)) == [b"3"]
        assert await bodies(fab.get("t", by_key=True)) == [b"2", b"3"]
        consumer = fab.consume(group="g", timeout=PATIENCE_S)
        assert (await anext(consumer)).body == b"1"
        await fab.admin.groups.delete("g")
        with pytest.raises(NotFound, match="deleted"):
            async for _ in consumer:
                pass

    tell(story)
