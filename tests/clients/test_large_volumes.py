"""Two hundred megabytes, in messages of one byte up to nine megabytes, read in every way: credit is renewed by bytes as
well as by count, so that no reader stops before the end."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

import fabric_client
from fabric.cli.support.hub_process import HubProcess
from fabric_client import Client, connect
from tests.patience import PATIENCE_S

SIZES = [*([9 << 20] * 8), *([5_000] * 20_000), *([1] * 2_000), *([3 << 20] * 8), *([1] * 10), 15 << 20]
COUNT = len(SIZES)
WAYS = ["consume", "consume_batches"]
GROUPS = [None, "explicit", "auto"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with HubProcess(tmp_path_factory.mktemp("much")) as hub:
        with connect(hub.url) as fab:
            for size in SIZES:
                fab.publish_nowait("much", bytes(size))
            fab.flush(PATIENCE_S)
        yield hub.url


def check(sizes: Sequence[int]) -> None:
    assert (len(sizes), sum(sizes)) == (COUNT, sum(SIZES))
    assert list(sizes) == SIZES


def settings(group: str | None, way: str) -> dict[str, str]:
    return {} if group is None else {"group": f"{way}-{group}", "ack": group}


def read(fab: Client, way: str, group: str | None) -> Iterator[int]:
    how = {"start": "first", "count": COUNT, "timeout": PATIENCE_S, **settings(group, way)}
    if way == "consume":
        for message in fab.consume("much", **how):  # type: ignore[arg-type]
            with message:
                yield len(message.body)
    else:
        for batch in fab.consume_batches("much", **how):  # type: ignore[arg-type]
            with batch:
                yield from map(len, batch.payloads)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("group", GROUPS)
def test_all_of_it_is_read(url: str, way: str, group: str | None) -> None:
    with connect(url) as fab:
        check(list(read(fab, way, group)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("group", GROUPS)
def test_all_of_it_is_read_with_asyncio(url: str, way: str, group: str | None) -> None:
    sizes: list[int] = []
    how = {"start": "first", "count": COUNT, "timeout": PATIENCE_S, **settings(group, f"asyncio-{way}")}

    async def run() -> None:
        async with fabric_client.aconnect(url) as fab:
            if way == "consume":
                async for message in fab.consume("much", **how):  # type: ignore[arg-type]
                    async with message:
                        sizes.append(len(message.body))
            else:
                async for batch in fab.consume_batches("much", **how):  # type: ignore[arg-type]
                    async with batch:
                        sizes.extend(map(len, batch.payloads))

    asyncio.run(run())
    check(sizes)


def test_all_of_it_is_fetched(url: str) -> None:
    sizes: list[int] = []
    with connect(url) as fab:
        while len(sizes) < COUNT:
            messages = fab.fetch("much", group="fetched", count=COUNT - len(sizes), timeout=PATIENCE_S)
            assert messages
            for message in messages:
                with message:
                    sizes.append(len(message.body))
    check(sizes)


def test_all_of_it_is_read_from_the_journal(url: str) -> None:
    with connect(url) as fab:
        check([len(message.body) for message in fab.get("much", n=2 * COUNT, timeout=PATIENCE_S)])


ALL = ["sub", "much", "--start", "first", "--count", str(COUNT), "--timeout", f"{PATIENCE_S}s"]
COMMANDS = [ALL, [*ALL, "--group", "commands"], ["get", "much", "--all"]]


@pytest.mark.parametrize("command", COMMANDS, ids=["sub", "sub-group", "get"])
def test_all_of_it_is_read_by_commands(url: str, command: list[str]) -> None:
    whole = [sys.executable, "-m", "fabric", *command, "-f", "%S\\n", "--url", url]
    done = subprocess.run(whole, capture_output=True, check=True, timeout=10 * PATIENCE_S)
    check([int(line) for line in done.stdout.split()])
