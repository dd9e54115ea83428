"""Both clients against the real hub: in this process, and as a process of its own that is killed and restarted."""

import asyncio
import contextlib
import os
import socket
import threading
import time
from pathlib import Path

import pytest

import fabric_client
from fabric.hub import Hub, HubOptions
from fabric_client import AsyncClient, Client
from tests.clients.real_hub import HubProcess, connect, eventually
from tests.patience import PATIENCE_S


def group_info(fab: Client, name: str) -> dict[str, object]:
    found: dict[str, object] = next(group for group in fab.info("groups")["groups"] if group["group"] == name)
    return found


def test_publish_and_consume(fab: Client) -> None:
    assert fab.publish("orders.created", {"id": 101}, key="c1", headers={"source": "web"}).seq == 1
    assert fab.publish_many("orders.paid", ["a", "b"]).seq == 2
    messages = []
    for message in fab.consume("orders.*", group="billing", count=3):
        with message:
            messages.append((message.seq, message.topic, message.data, message.key))
    assert messages == [
        (1, "orders.created", {"id": 101}, "c1"),
        (2, "orders.paid", "a", None),
        (3, "orders.paid", "b", None),
    ]
    fab.flush()
    assert group_info(fab, "billing")["floor"] == 3


def test_a_long_stream_keeps_its_order(fab: Client) -> None:
    for number in range(30_000):
        fab.publish_nowait("n", b"%d" % number)
    fab.flush()
    numbers = []
    for batch in fab.consume_batches("n", group="g", count=30_000):
        with batch:
            numbers += [int(body) for body in batch.payloads]
    assert numbers == list(range(30_000))


def test_many_topics_share_blocks_and_keep_their_names(fab: Client) -> None:
    for number in range(3000):
        fab.publish_nowait(f"t.{number % 50}", b"%d" % number)
    fab.flush()
    seen = []
    for message in fab.consume("t.*", group="g", count=3000):
        with message:
            seen.append((message.topic, message.body))
    assert seen == [(f"t.{number % 50}", b"%d" % number) for number in range(3000)]
    some = [message.body for message in fab.consume("t.7", start="first", count=60)]
    assert some == [b"%d" % number for number in range(7, 3000, 50)]


def test_retry_comes_again_and_reject_goes_to_the_dead_letters(fab: Client) -> None:
    fab.publish_many("job", [b"flaky", b"broken"])
    outcomes = []
    for message in fab.consume("job", group="g", count=3):
        outcomes.append((message.body, message.attempt))
        if message.body == b"broken":
            message.reject("no such thing")
        elif message.attempt == 1:
            message.retry(0.01)
        else:
            message.ack()
    assert outcomes == [(b"flaky", 1), (b"broken", 1), (b"flaky", 2)]
    (dead,) = fab.consume("$dlq.g", start="first", count=1)
    assert dead.body == b"broken"
    assert dead.headers["fabric-reason"] == "rejected"
    assert dead.headers["fabric-error"] == "no such thing"


def test_two_workers_share_the_work(fab: Client, hub: Hub) -> None:
    fab.publish_many("job", [b"%d" % number for number in range(200)])
    seen: list[list[bytes]] = [[], []]

    both_have_one = threading.Barrier(2)

    def work(name: int) -> None:
        with fabric_client.connect(hub.binds[1]) as worker:
            while len(seen[0]) + len(seen[1]) < 200:
                for message in worker.consume("job", group="g", prefetch=1, timeout=0.2):
                    with message:
                        seen[name].append(message.body)
                        if len(seen[name]) == 1:
                            both_have_one.wait(PATIENCE_S)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(seen[0] + seen[1], key=int) == [b"%d" % number for number in range(200)]
    assert all(seen)


def test_held_messages_keep_their_lease(fab: Client, hub: Hub) -> None:
    fab.publish("job", b"x")
    (message,) = fab.fetch("job", group="g", lease=3.0, count=1)
    (member,) = hub._router.groups["g"].members
    (lease,) = member.leases
    for _ in range(2):
        before = lease.deadline
        eventually(lambda: lease.deadline > before)  # noqa: B023
    message.ack()
    fab.flush()
    assert group_info(fab, "g")["floor"] == 1


def test_what_is_held_survives_a_lost_connection(hub: Hub) -> None:
    with fabric_client.connect(hub.binds[1]) as fab:
        fab.publish_many("job", [b"%d" % number for number in range(10)])
        consumer = fab.consume("job", group="g", prefetch=5)
        held = [next(consumer) for _ in range(5)]
        for round_ in range(3):
            with fab._driver.lock:
                fab._session.lost(time.monotonic(), "the test cut the line")
            fab.publish("other", b"%d" % round_)
            assert fab.hub["resumed"]
            held[round_].ack()
        held[3].ack()
        held[4].ack()
        rest = []
        for message in consumer:
            with message:
                rest.append((message.body, message.attempt))
            if len(rest) == 5:
                break
        assert rest == [(b"%d" % number, 1) for number in range(5, 10)]
        fab.flush()
        assert group_info(fab, "g")["outstanding"] == 0


def test_group_settings_that_differ_are_refused(fab: Client) -> None:
    fab.consume("a", group="g", lease=10).close()
    with pytest.raises(fabric_client.GroupMismatch) as error:
        fab.consume("a", group="g", lease=20)
    assert error.value.hint
    with pytest.raises(fabric_client.BadPattern):
        fab.consume("a.>.b", group="h")


def test_a_newer_producer_of_the_same_name_fences_the_older(hub: Hub) -> None:
    with fabric_client.connect(hub.binds[1], producer="till-1") as old:
        old.publish("a", b"1")
        with fabric_client.connect(hub.binds[1], producer="till-1") as new:
            new.publish("a", b"2")
            with pytest.raises(fabric_client.Fenced):
                old.publish("a", b"3")


def test_async_twin_publishes_and_consumes(hub: Hub) -> None:
    async def main() -> list[bytes]:
        async with fabric_client.aconnect(hub.binds[1]) as fab:
            await asyncio.gather(*[fab.publish("a", b"%d" % number) for number in range(500)])
            bodies = []
            async for message in fab.consume("a", group="g", count=500):
                async with message:
                    bodies.append(message.body)
            return bodies

    assert asyncio.run(main()) == [b"%d" % number for number in range(500)]


def drain(fab: Client, group: str, enough: int) -> list[int]:
    """Every number that the group has, in order of seq."""
    numbers = {}
    for message in fab.consume("n", group=group, start="first"):
        with message:
            numbers[message.seq] = int(message.body)
        if len(numbers) == enough:
            break
    return [numbers[seq] for seq in sorted(numbers)]


def test_killed_hub_neither_loses_nor_doubles_what_was_published(hub_process: HubProcess) -> None:
    total = 20_000
    with connect(hub_process) as fab:
        for number in range(total):
            fab.publish_nowait("n", b"%d" % number)
            if number % 5000 == 2500:
                hub_process.kill()
                hub_process.start()
        fab.flush(PATIENCE_S)
        assert fab.publish("end", b"x", timeout=PATIENCE_S).seq == total + 1
        assert drain(fab, "g", total) == list(range(total))


def test_confirmed_means_stored_even_when_the_hub_is_killed_at_once(hub_process: HubProcess) -> None:
    seqs = {}
    with connect(hub_process) as fab:
        for number in range(30):
            seqs[fab.publish("n", b"%d" % number, timeout=PATIENCE_S).seq] = number
            if number % 10 == 9:
                hub_process.kill()
                hub_process.start()
        assert [seqs[seq] for seq in sorted(seqs)] == drain(fab, "g", 30) == list(range(30))


def test_consumer_survives_a_killed_hub_and_handles_everything(hub_process: HubProcess) -> None:
    with connect(hub_process) as fab:
        fab.publish_many("n", [b"%d" % number for number in range(2000)])
        seen: set[int] = set()
        killed = False
        for message in fab.consume("n", group="g", prefetch=100):
            with message:
                seen.add(int(message.body))
            if len(seen) == 1000 and not killed:
                killed = True
                hub_process.kill()
                hub_process.start()
            if len(seen) == 2000:
                break
        with contextlib.suppress(fabric_client.VerdictsUnconfirmed):  # acks that died with the hub
            fab.flush(PATIENCE_S)

        def is_settled() -> bool:
            for message in fab.fetch("n", group="g", count=100, timeout=0.2):  # messages whose acks died come again
                message.ack()
            return group_info(fab, "g")["floor"] == 2000

        eventually(is_settled)


def test_draining_hub_is_waited_for(hub_process: HubProcess) -> None:
    with connect(hub_process) as fab:
        done = threading.Event()

        def publish() -> None:
            with contextlib.suppress(fabric_client.Closed):
                for number in range(300):
                    fab.publish("n", b"%d" % number, timeout=PATIENCE_S)
            done.set()

        thread = threading.Thread(target=publish)
        thread.start()
        hub_process.stop()
        hub_process.start()
        assert done.wait(PATIENCE_S)
        thread.join()
        assert drain(fab, "g", 300) == list(range(300))


def test_async_twin_survives_a_killed_hub(hub_process: HubProcess) -> None:
    total = 6000

    async def scenario(fab: AsyncClient) -> list[int]:
        for number in range(total):
            fab.publish_nowait("n", b"%d" % number)
            if number % 3000 == 1500:
                await asyncio.to_thread(hub_process.kill)
                hub_process.start()
        await fab.flush(PATIENCE_S)
        numbers = {}
        async for message in fab.consume("n", group="g"):
            async with message:
                numbers[message.seq] = int(message.body)
            if len(numbers) == total:
                break
        return [numbers[seq] for seq in sorted(numbers)]

    async def main() -> list[int]:
        async with fabric_client.aconnect(hub_process.url, timeout=PATIENCE_S) as fab:
            return await scenario(fab)

    assert asyncio.run(main()) == list(range(total))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork with threads: the very thing that is tested
def test_child_process_connects_for_itself(hub_process: HubProcess) -> None:
    with connect(hub_process) as fab:
        fab.publish("n", b"0")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                try:
                    fab.publish("n", b"never")
                except fabric_client.Forked:
                    with fabric_client.connect(hub_process.url) as own:
                        own.publish("n", b"1")
                    code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        fab.publish("n", b"2")
        assert drain(fab, "g", 3) == [0, 1, 2]


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_an_address_of_ipv6_is_reached(tmp_path: Path) -> None:
    async def main(url: str) -> None:
        async with fabric_client.aconnect(url, timeout=PATIENCE_S) as fab:
            assert (await fab.publish("t", b"x")).seq == 2

    with Hub(tmp_path / "data", HubOptions(binds=["tcp://[::1]:*"])) as hub:
        with fabric_client.connect(hub.binds[0], timeout=PATIENCE_S) as fab:
            assert fab.publish("t", b"x").seq == 1
        asyncio.run(main(hub.binds[0]))
