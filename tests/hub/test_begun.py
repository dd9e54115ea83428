"""A message kills its consumer: the hub counts a failure for the messages that were begun. With real processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fabric_client
from fabric.hub import Hub, HubOptions
from fabric_client import Client
from tests.hub.hostile import ROOT
from tests.hub.kit import eventually
from tests.patience import PATIENCE_S

# Each way of consuming acks what it gets, until a message kills the process.
CONSUMER = """
import asyncio, os, signal, sys
import fabric_client
way, url, poison = sys.argv[1], sys.argv[2], sys.argv[3]
how = {"group": "g", "attempts": 1}

def handle(message):
    if message.text == poison:
        os.kill(os.getpid(), signal.SIGKILL)

async def handle_soon(message):
    handle(message)

def in_transaction(message, ctx):
    handle(message)
    ctx.publish("out", message.body)

async def run():
    async with fabric_client.aconnect(url) as fab:
        if way == "async work":
            await fab.work("t", handle_soon, concurrency=1, **how)
        elif way == "async work, four at once":
            await fab.work("t", handle_soon, concurrency=4, **how)
        elif way == "async fetch of ten":
            while True:
                for message in await fab.fetch("t", count=10, **how):
                    async with message:
                        handle(message)
        elif way == "async batches":
            async for batch in fab.consume_batches("t", **how):
                for message in batch:
                    handle(message)
                batch.ack()
        else:
            async for message in fab.consume("t", **how):
                async with message:
                    handle(message)

if way.startswith("async"):
    asyncio.run(run())
with fabric_client.connect(url) as fab:
    if way == "work":
        fab.work("t", handle, concurrency=1, **how)
    elif way == "work, four at once":
        fab.work("t", handle, concurrency=4, **how)
    elif way == "fetch of ten":
        while True:
            for message in fab.fetch("t", count=10, **how):
                with message:
                    handle(message)
    elif way == "transactions":
        fab.work("t", in_transaction, concurrency=1, **how)
    elif way == "fetch":
        while True:
            for message in fab.fetch("t", **how):
                with message:
                    handle(message)
    elif way == "batches":
        for batch in fab.consume_batches("t", **how):
            for message in batch:
                handle(message)
            batch.ack()
    else:
        for message in fab.consume("t", **how):
            with message:
                handle(message)
"""
SEVERAL = [
    "work, four at once", "fetch of ten", "batches", "async work, four at once", "async fetch of ten", "async batches",
]  # fmt: skip
SINGLE = ["messages", "work", "transactions", "fetch", "async messages", "async work"]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(tmp_path / "journal", HubOptions(binds=["tcp://127.0.0.1:*"], drain_s=0)) as hub:
        yield hub


def killed(hub: Hub, way: str, poison: int) -> None:
    """Run a consumer until its message kills it."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "clients/python"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", CONSUMER, way, hub.binds[0], str(poison)]
    process = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, check=False, timeout=10 * PATIENCE_S)
    assert process.returncode == -9


def letters(fab: Client) -> list[int]:
    return [int(letter.text) for letter in fab.get("$dlq.g", n=100, timeout=PATIENCE_S)]


@pytest.mark.parametrize("way", SINGLE)
def test_the_message_that_kills_is_the_dead_letter(hub: Hub, way: str) -> None:
    with fabric_client.connect(hub.binds[0]) as fab:
        for start in range(0, 100, 20):
            fab.publish_many("t", [b"%d" % n for n in range(start, start + 20)])
            killed(hub, way, start + 9)
            eventually(lambda: hub.counters["dead_letters"] > start // 20, "a dead letter")  # noqa: B023
            for message in fab.consume("t", group="g", count=10):
                message.ack()
            fab.flush()
        assert letters(fab) == [9, 29, 49, 69, 89]
        assert hub.counters["dead_letters"] == 5


@pytest.mark.parametrize("way", ["batches", "async batches"])
def test_of_batches_the_one_that_was_begun_is_dead(hub: Hub, way: str) -> None:
    with fabric_client.connect(hub.binds[0]) as fab:
        for start in range(0, 100, 20):
            for n in range(start, start + 20):
                fab.publish("t", b"%d" % n)  # a block for each, and so a delivery
            killed(hub, way, start + 9)
            eventually(lambda: hub.counters["dead_letters"] > start // 20, "a dead letter")  # noqa: B023
            for message in fab.consume("t", group="g", count=10):
                message.ack()
            fab.flush()
        assert letters(fab) == [9, 29, 49, 69, 89]


@pytest.mark.parametrize("way", ["messages", "work", "async messages"])
def test_in_a_fast_flow_the_message_that_kills_is_found_in_the_end(hub: Hub, way: str) -> None:
    with fabric_client.connect(hub.binds[0]) as fab:
        fab.publish_many("t", [b"%d" % n for n in range(5000)])
        kills = 0
        while not hub.counters["dead_letters"]:
            killed(hub, way, 4000)
            kills += 1
            assert kills <= 4
            eventually(lambda: not hub._router.groups["g"].members, "the consumer is lost")
            fab.publish("other", b"")  # the turn in which it was lost is over
        for message in fab.consume("t", group="g", timeout=0.5):
            message.ack()
        fab.flush()
        assert letters(fab) == [4000]


@pytest.mark.parametrize("way", SEVERAL)
def test_of_several_at_work_only_the_message_that_kills_is_a_dead_letter(hub: Hub, way: str) -> None:
    with fabric_client.connect(hub.binds[0]) as fab:
        fab.publish_many("t", [b"%d" % n for n in range(20)])
        kills = 0
        while not hub.counters["dead_letters"]:
            killed(hub, way, 4)
            kills += 1
            assert kills <= 4
            eventually(lambda: not hub._router.groups["g"].members, "the consumer is lost")
            fab.publish("other", b"")  # the turn in which it was lost is over
        while hub._router.groups["g"].floor < 20:
            for message in fab.fetch("t", group="g", count=10, timeout=0.2):
                message.ack()
            fab.flush()
        assert letters(fab) == [4]
