"""The asyncio client over real sockets, against the model hub. The core has tests of its own."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

import fabric_client
from fabric_client import AsyncClient, aconnect
from fabric_client.core import publisher
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from tests.clients.model_hub import Served
from tests.patience import PATIENCE_S


def run(served: Served, scenario: Callable[[AsyncClient], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with aconnect(served.url) as fab:
            await scenario(fab)

    asyncio.run(main())


async def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.002)


def test_await_and_async_with_both_connect(served: Served) -> None:
    async def main() -> None:
        fab = await aconnect(served.url)
        assert fab.connected
        await fab.close()
        with pytest.raises(fabric_client.Closed):
            await fab.publish("a", b"x")

    asyncio.run(main())
    assert served.hub.sessions == {}


def test_no_hub_is_said_with_a_hint(served: Served) -> None:
    served.stop()

    async def main() -> None:
        with pytest.raises(fabric_client.ConnectionLost) as error:
            await aconnect(served.url, timeout=0.05)
        assert "fabric hub" in error.value.hint

    asyncio.run(main())


def test_publish_in_all_its_forms(served: Served) -> None:
    async def scenario(fab: AsyncClient) -> None:
        assert (await fab.publish("a", {"n": 1})).seq == 1
        assert (await fab.publish_many("a", [b"x"] * 3000)).count == 3000
        receipts = await asyncio.gather(*[fab.publish("b", b"%d" % n) for n in range(500)])
        assert [receipt.seq for receipt in receipts] == list(range(3002, 3502))
        for number in range(5000):
            fab.publish_nowait("c", b"%d" % number)
        await fab.flush()

    run(served, scenario)
    bodies = [payload for topic, payload in served.hub.journal if topic == "c"]
    assert bodies == [b"%d" % number for number in range(5000)]


def test_concurrent_publishes_share_blocks(served: Served) -> None:
    async def scenario(fab: AsyncClient) -> None:
        with served.lock:  # the hub does not answer while they come
            tasks = [asyncio.create_task(fab.publish("b", b"x")) for _ in range(500)]
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)

    run(served, scenario)
    assert len([heard for heard in served.hub.heard if isinstance(heard, m.Publish)]) == 2


def test_a_full_buffer_raises_and_drain_waits(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "BUFFER_MESSAGES_MAX", 100)
    served.hub.flow = (1, 1 << 20)
    full = 0

    async def scenario(fab: AsyncClient) -> None:
        nonlocal full
        for number in range(20_000):
            try:
                fab.publish_nowait("a", b"%d" % number)
            except fabric_client.BufferFull:
                full += 1
                await fab.drain()
                fab.publish_nowait("a", b"%d" % number)
        await fab.flush()

    run(served, scenario)
    assert full > 0
    assert [payload for _, payload in served.hub.journal] == [b"%d" % number for number in range(20_000)]


def test_refused_messages_come_back_with_flush(served: Served) -> None:
    async def scenario(fab: AsyncClient) -> None:
        served.hub.refuse.append(m.Err(0, 0, Code.FORBIDDEN, "not here", {}))

        async def publish_and_flush() -> None:
            fab.publish_nowait("a", b"bad")  # raises itself if the answer comes this quickly
            await fab.flush()

        with pytest.raises(fabric_client.PublishRefused, match="not here"):
            await publish_and_flush()
        assert (await fab.publish("a", b"good")).seq == 1

    run(served, scenario)


def test_messages_are_acked_by_async_with(served: Served) -> None:
    async def scenario(fab: AsyncClient) -> None:
        await fab.publish_many("a", [b"%d" % n for n in range(2500)])
        bodies = []
        async for message in fab.consume("a", group="g", count=2500):
            async with message:
                bodies.append(message.body)
        await fab.flush()
        assert bodies == [b"%d" % n for n in range(2500)]
        assert sorted(served.hub.acked["g"]) == list(range(1, 2501))

    run(served, scenario)


def test_batches_and_fetch(served: Served) -> None:
    async def scenario(fab: AsyncClient) -> None:
        await fab.publish_many("a", [b"x"] * 1000)
        async for batch in fab.consume_batches("a", group="g", count=1000):
            async with batch:
                assert batch.payloads[0] == b"x"
        held = [message for _ in range(3) for message in await fab.fetch("a", group="h", count=2)]
        assert [message.seq for message in held] == [1, 2, 3, 4, 5, 6]
        assert [message.seq for message in await fab.fetch("a", start=5, count=2)] == [5, 6]
        assert await fab.fetch("none", group="g", timeout=0.01) == []
        for message in held:
            message.ack()
        await fab.flush()
        assert len(served.hub.acked["g"]) == 1000
        assert len(served.hub.acked["h"]) == 6

    run(served, scenario)


def test_acks_leave_while_the_next_message_is_being_worked_on(served: Served) -> None:
    async def scenario(fab: AsyncClient) -> None:
        def acked(count: int) -> bool:
            return len(served.hub.acked["g"]) == count

        await fab.publish_many("a", [b"x"] * 3)
        done = 0
        async for message in fab.consume("a", group="g", count=3):
            await eventually(partial(acked, done))
            message.ack()
            done += 1

    run(served, scenario)


def test_leaving_the_loop_unsubscribes(served: Served) -> None:
    async def scenario(fab: AsyncClient) -> None:
        await fab.publish_many("a", [b"x"] * 10)
        async for message in fab.consume("a", group="g"):
            message.ack()
            break
        await eventually(lambda: all(not peer.subs for peer in served.hub.peers.values()))
        async with fab.consume("a", group="g") as consumer:
            assert (await consumer.__anext__()).seq == 2
        await eventually(lambda: all(not peer.subs for peer in served.hub.peers.values()))

    run(served, scenario)


def test_refused_subscription_is_raised_by_the_first_step(served: Served) -> None:
    async def scenario(fab: AsyncClient) -> None:
        with pytest.raises(fabric_client.GroupMismatch):
            async for _ in fab.consume("a", group="taken"):
                pass

    run(served, scenario)


def test_cancelled_handler_gives_its_message_back(served: Served) -> None:
    async def scenario(fab: AsyncClient) -> None:
        await fab.publish("a", b"x")
        started = asyncio.Event()

        async def work() -> None:
            async for message in fab.consume("a", group="g"):
                async with message:
                    started.set()
                    await asyncio.sleep(PATIENCE_S)

        task = asyncio.create_task(work())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: served.hub.groups["g"])
        (message,) = await fab.fetch("a", group="g")
        assert message.seq == 1
        assert [row[0] for row in served.hub.verdicts] == [m.Verdict.RELEASE]

    run(served, scenario)


def test_restart_of_the_hub_neither_loses_nor_doubles(served: Served) -> None:
    async def scenario(fab: AsyncClient) -> None:
        for number in range(3000):
            fab.publish_nowait("a", b"%d" % number)
            if number % 1000 == 500:
                await asyncio.to_thread(served.restart)
        await fab.flush()

    run(served, scenario)
    assert [payload for _, payload in served.hub.journal] == [b"%d" % number for number in range(3000)]


def test_consumer_goes_on_after_a_restart_of_the_hub(served: Served) -> None:
    async def scenario(fab: AsyncClient) -> None:
        await fab.publish_many("a", [b"%d" % n for n in range(100)])
        seen: set[bytes] = set()
        async for message in fab.consume("a", group="g", prefetch=10):
            if len(seen) == 50:
                await asyncio.to_thread(served.restart)
            async with message:
                seen.add(message.body)
            if len(seen) == 100:
                break
        await fab.flush()

    run(served, scenario)
    assert set(served.hub.acked["g"]) == set(range(1, 101))


def test_a_busy_consumer_does_not_starve_the_loop(served: Served) -> None:
    async def scenario(fab: AsyncClient) -> None:
        await fab.publish_many("a", [b"x"] * 5000)
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(tick())
        async for message in fab.consume("a", group="g", count=5000):
            message.ack()
        task.cancel()
        assert ticks > 3

    run(served, scenario)


def test_info(served: Served) -> None:
    async def scenario(fab: AsyncClient) -> None:
        assert await fab.info() == {"what": "hub", "messages": 0}

    run(served, scenario)
