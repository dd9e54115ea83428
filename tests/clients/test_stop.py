"""Loops and handlers that another thread or task, `close()` or SIGTERM ends: no handler begins after it, running
handlers finish, and messages that were not begun go to other consumers at once."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import fabric_client
from fabric.hub import Hub
from fabric_client import AsyncClient, Client, Closed, Message, NoResponders
from tests.clients.real_hub import HubProcess, another, connect, eventually, running
from tests.patience import PATIENCE_S

MANY = 20


def publish(fab: Client, count: int = MANY) -> None:
    fab.publish_many("jobs", [b"%d" % number for number in range(count)])


def numbers(fab: Client, count: int) -> list[int]:
    """What another consumer gets."""
    found = []
    for message in fab.consume("jobs", group="g", count=count, timeout=PATIENCE_S):
        message.ack()
        found.append(int(message.body))
    fab.flush(PATIENCE_S)
    return sorted(found)


def settled(fab: Client) -> int:
    fab.flush(PATIENCE_S)
    floor: int = fab.info("group", "g", timeout=PATIENCE_S)["floor"]
    return floor


@pytest.mark.parametrize("word", ["stop", "close"])
def test_a_loop_that_waits_is_ended_by_another_thread(hub: Hub, fab: Client, word: str) -> None:
    consumer = fab.consume("jobs", group="g")
    found: list[Message] = []
    with running(lambda: found.extend(consumer)):
        eventually(lambda: fab._driver._leading)
        getattr(consumer, word)()
    assert found == []
    eventually(lambda: not fab.info("group", "g")["members"])


@pytest.mark.parametrize("word", ["stop", "close"])
def test_a_loop_that_waits_beside_another_caller_is_ended(hub: Hub, fab: Client, word: str) -> None:
    leader, consumer = fab.consume("other", group="h"), fab.consume("jobs", group="g")
    with running(lambda: list(leader)):
        eventually(lambda: fab._driver._leading)
        with running(lambda: list(consumer)):
            eventually(lambda: fab._driver._followers)
            getattr(consumer, word)()
        leader.stop()


def test_a_stopped_loop_settles_what_it_has_in_hand_and_the_rest_is_for_others(hub: Hub, fab: Client) -> None:
    publish(fab)
    consumer = fab.consume("jobs", group="g", prefetch=10)
    first = next(consumer)
    stopper = threading.Thread(target=consumer.stop)
    stopper.start()
    stopper.join(PATIENCE_S)
    with another(hub) as other:
        assert numbers(other, MANY - 1) == list(range(1, MANY)), "while the first is still in hand"
    first.ack()
    assert list(consumer) == []
    assert settled(fab) == MANY
    assert hub.counters["stale_verdicts"] == 0


def test_several_messages_in_hand_are_settled_after_a_stop(hub: Hub, fab: Client) -> None:
    publish(fab, 5)
    consumer = fab.consume("jobs", group="g", prefetch=10)
    held = [next(consumer) for _ in range(3)]
    consumer.stop()
    for message in held:
        message.settle(timeout=PATIENCE_S)
    assert numbers(fab, 2) == [3, 4]


def test_a_loop_without_a_group_is_stopped(hub: Hub, fab: Client) -> None:
    publish(fab)
    consumer = fab.consume("jobs", start="first")
    assert next(consumer).body == b"0"
    consumer.stop()
    assert list(consumer) == []


def test_a_loop_over_batches_is_stopped(hub: Hub, fab: Client) -> None:
    for _ in range(2):
        publish(fab, 5)
    consumer = fab.consume_batches("jobs", group="g", prefetch=10)
    first = next(consumer)
    consumer.stop()
    assert list(consumer) == []
    with pytest.raises(Closed):  # leaving the loop gives back what has no verdict
        first.ack()
    assert numbers(fab, 10) == sorted([*range(5), *range(5)])


def test_a_closed_loop_gives_back_what_is_in_hand(hub: Hub, fab: Client) -> None:
    publish(fab, 2)
    consumer = fab.consume("jobs", group="g")
    first = next(consumer)
    closer = threading.Thread(target=consumer.close)
    closer.start()
    closer.join(PATIENCE_S)
    assert list(consumer) == []
    with pytest.raises(Closed):
        first.ack()
    assert numbers(fab, 2) == [0, 1]


def test_a_loop_over_requests_is_stopped(hub: Hub, fab: Client) -> None:
    consumer = fab.serve("calc")
    with running(lambda: list(consumer)):
        eventually(lambda: fab._driver._leading)
        consumer.stop()


class Handlers:
    """Handlers that say when they begin, and wait until they may end."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.go = threading.Event()

    def __call__(self, message: Message) -> None:
        self.begun.append(int(message.body))
        assert self.go.wait(PATIENCE_S)


def test_closing_the_client_ends_work_and_waits_for_handlers(hub: Hub, fab: Client) -> None:
    publish(fab)
    handlers, worker = Handlers(), another(hub, "worker")
    count: list[int] = []
    with running(lambda: count.append(worker.work("jobs", handlers, group="g", concurrency=2))):
        eventually(lambda: len(handlers.begun) == 2)
        with running(lambda: worker.close(PATIENCE_S)):
            assert numbers(fab, MANY - 2) == list(range(2, MANY)), "before the handlers are done"
            assert worker.connected, "close waits for them"
            handlers.go.set()
    assert count == [2]
    assert handlers.begun == [0, 1]
    assert settled(fab) == MANY, "their verdicts have arrived"


def test_a_client_is_stopped_and_works_on_later(hub: Hub, fab: Client) -> None:
    publish(fab, 4)
    handlers = Handlers()
    with running(lambda: fab.work("jobs", handlers, group="g", concurrency=1)):
        eventually(lambda: handlers.begun)
        fab.stop()
        handlers.go.set()
    assert handlers.begun == [0]
    assert fab.work("jobs", handlers, group="g", count=3, timeout=PATIENCE_S) == 3
    assert settled(fab) == 4


def test_a_handler_closes_its_client(hub: Hub, fab: Client) -> None:
    publish(fab, 3)
    worker, begun = another(hub, "worker"), list[int]()

    def handle(message: Message) -> None:
        begun.append(int(message.body))
        message.settle(timeout=PATIENCE_S)
        worker.close()

    assert worker.work("jobs", handle, group="g", concurrency=1) == 1
    assert begun == [0]
    assert numbers(fab, 2) == [1, 2]


def test_a_responder_answers_what_it_has_begun(hub: Hub, fab: Client) -> None:
    begun, go, answers = threading.Event(), threading.Event(), list[Any]()

    def handle(request: fabric_client.Request) -> bytes:
        begun.set()
        assert go.wait(PATIENCE_S)
        return request.body

    responder = another(hub, "responder")

    def ask() -> None:
        while not answers:
            with contextlib.suppress(NoResponders):  # it is about to subscribe
                answers.append(fab.request("echo", b"1", timeout=PATIENCE_S).body)

    with running(lambda: responder.respond("echo", handle)), running(ask):
        assert begun.wait(PATIENCE_S)
        with running(lambda: responder.close(PATIENCE_S)):
            go.set()
    assert answers == [b"1"]


# With asyncio.


def run(main: Callable[[AsyncClient], Any], hub: Hub) -> None:
    async def inside() -> None:
        async with fabric_client.aconnect("inproc://hub", context=hub.context) as fab:
            await asyncio.wait_for(main(fab), PATIENCE_S)

    asyncio.run(inside())


@pytest.mark.parametrize("word", ["stop", "close"])
def test_a_loop_is_ended_by_another_task(hub: Hub, word: str) -> None:
    async def main(fab: AsyncClient) -> None:
        consumer = fab.consume("jobs", group="g")

        async def loop() -> list[Message]:
            return [message async for message in consumer]

        task = asyncio.create_task(loop())
        while not fab._driver._waiting:
            await asyncio.sleep(0)
        ended = getattr(consumer, word)()
        if ended is not None:
            await ended
        assert await task == []

    run(main, hub)


def test_a_stopped_task_settles_what_it_has_in_hand(hub: Hub, fab: Client) -> None:
    publish(fab)

    async def main(client: AsyncClient) -> None:
        consumer = client.consume("jobs", group="g", prefetch=10)
        first = await anext(consumer)
        consumer.stop()
        assert await asyncio.to_thread(numbers, fab, MANY - 1) == list(range(1, MANY))
        first.ack()
        assert [message async for message in consumer] == []
        await client.flush(PATIENCE_S)
        assert settled(fab) == MANY

    run(main, hub)


@pytest.mark.parametrize("threads", [False, True])
def test_closing_the_asyncio_client_waits_for_handlers(hub: Hub, fab: Client, threads: bool) -> None:
    publish(fab)
    handlers = Handlers()

    async def handle(message: Message) -> None:
        await asyncio.to_thread(handlers, message)

    async def main(client: AsyncClient) -> None:
        work = asyncio.create_task(client.work("jobs", handlers if threads else handle, group="g", concurrency=2))
        while len(handlers.begun) < 2:
            await asyncio.sleep(0.01)
        close = asyncio.create_task(client.close(PATIENCE_S))
        rest = await asyncio.to_thread(numbers, fab, MANY - 2)
        assert rest == list(range(2, MANY)), "before the handlers are done"
        handlers.go.set()
        await close
        assert await work == 2

    run(main, hub)
    assert sorted(handlers.begun) == [0, 1]
    assert settled(fab) == MANY


# SIGTERM.

WORKER = """
import asyncio, os, sys, time
import fabric_client
way, url, go = sys.argv[1:]

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # whole lines, also from several threads

def wait():
    import pathlib
    while not pathlib.Path(go).exists():
        time.sleep(0.01)

def handle(message):
    say("begun", message.text)
    wait()
    say("ended", message.text)

async def handle_soon(message):
    say("begun", message.text)
    await asyncio.to_thread(wait)
    say("ended", message.text)

async def run():
    async with fabric_client.aconnect(url) as fab:
        if way == "two works":
            works = [fab.work("jobs", handle_soon, group=group, concurrency=1) for group in ("g", "h")]
            say("worked", sum(await asyncio.gather(*works)))
        else:
            say("worked", await fab.work("jobs", handle_soon, group="g", concurrency=2))

if way in ("asyncio", "two works"):
    asyncio.run(run())
else:
    with fabric_client.connect(url) as fab:
        say("worked", fab.work("jobs", handle, group="g", concurrency=2))
        while way == "for ever":
            fab.work("jobs", handle, group="g", concurrency=2)
"""


class Worker:
    """A program that works, and its words."""

    def __init__(self, way: str, url: str, go: str) -> None:
        path = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH", "")]))
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, way, url, go],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, list[str]]:
        """Its exit code and its last words."""
        words, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, words.split("\n")[:-1]


@pytest.mark.parametrize("way", ["threads", "asyncio", "for ever"])
def test_sigterm_ends_work_gracefully(hub_process: HubProcess, tmp_path: Any, way: str) -> None:
    with connect(hub_process) as fab:
        publish(fab)
        worker = Worker(way, hub_process.url, str(tmp_path / "go"))
        assert sorted([worker.line(), worker.line()]) == ["begun 0", "begun 1"]
        worker.process.send_signal(signal.SIGTERM)
        assert numbers(fab, MANY - 2) == list(range(2, MANY)), "while the handlers are at work"
        (tmp_path / "go").touch()
        code, words = worker.end()
        assert code == 0
        assert (sorted(words[:-1]), words[-1]) == (["ended 0", "ended 1"], "worked 2")
        assert settled(fab) == MANY


def test_sigterm_ends_all_works_of_a_loop(hub_process: HubProcess, tmp_path: Any) -> None:
    with connect(hub_process) as fab:
        publish(fab, 2)
        worker = Worker("two works", hub_process.url, str(tmp_path / "go"))
        assert [worker.line(), worker.line()] == ["begun 0", "begun 0"]
        worker.process.send_signal(signal.SIGTERM)
        (tmp_path / "go").touch()
        assert worker.end() == (0, ["ended 0", "ended 0", "worked 2"])


@pytest.mark.parametrize("way", ["threads", "asyncio"])
def test_a_second_sigterm_does_not_wait(hub_process: HubProcess, tmp_path: Any, way: str) -> None:
    with connect(hub_process) as fab:
        publish(fab, 4)
        worker = Worker(way, hub_process.url, str(tmp_path / "go"))
        assert sorted([worker.line(), worker.line()]) == ["begun 0", "begun 1"]
        worker.process.send_signal(signal.SIGTERM)
        assert numbers(fab, 2) == [2, 3], "the first was heard"
        worker.process.send_signal(signal.SIGTERM)
        assert worker.end()[0] == -signal.SIGTERM


def test_a_handler_of_the_program_is_left_alone(hub: Hub, fab: Client) -> None:
    publish(fab, 1)
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        fab.work("jobs", lambda message: signal.raise_signal(signal.SIGTERM), group="g", count=1)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_after_work_sigterm_is_as_before(hub: Hub, fab: Client) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert fab.work("jobs", print, group="g", timeout=0) == 0
    assert signal.getsignal(signal.SIGTERM) is before
