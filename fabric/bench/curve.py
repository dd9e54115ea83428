"""The cost of encryption: the same run with a hub that has keys and with one that has none, in turn; and how long many
encrypted clients take to be back after the hub was killed."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import zmq

from fabric.bench.crew import READY_S, Line, Run, Task, run, shared_counter
from fabric.bench.figures import JOURNALED, Figure, median_figure
from fabric.bench.keyed import KeyedBench
from fabric.bench.parts import KIB, Bench, end_to_end, worst
from fabric_client.aio.client import AsyncClient, aconnect

CLIENTS: Final = 2_000
PROCESSES: Final = 2
CONNECTING: Final = 50  # clients of one process that connect at the same time
BACK_S: Final = 120.0
SOCKETS_OF_CLIENT: Final = 4  # one and its monitor, twice while a client changes its connection


def part_curve(bench: Bench) -> Iterator[Figure]:
    with KeyedBench(bench.settings) as keyed:
        for size in (bench.settings.size, KIB):
            yield from _ratio(bench, keyed, size)
        backs = [_storm(keyed) for _ in range(bench.settings.repeats)]
        what = f"{CLIENTS:,} encrypted clients have published again, from the start of the hub after kill -9"
        yield median_figure("curve", what, "s", JOURNALED, backs)


def _ratio(bench: Bench, keyed: KeyedBench, size: int) -> Iterator[Figure]:
    encrypted: list[tuple[float, Run]] = []

    def measure(count: int) -> tuple[float, Run]:
        plain = end_to_end(bench, count, size)
        encrypted.append(end_to_end(keyed, count, size))
        return plain

    rates, runs, count = bench.repeated(measure)
    with_keys = [rate for rate, _ in encrypted[-len(rates) :]]  # without the trials
    foreign = max(worst(runs), worst([done for _, done in encrypted[-len(rates) :]]))
    what, note = f"publish + deliver + ack, {size} B, 1 producer, 1 consumer", f"{count:,} messages"
    yield median_figure("curve", f"{what}, plain", "msg/s", JOURNALED, rates, note=note, foreign=foreign)
    yield median_figure("curve", f"{what}, encrypted", "msg/s", JOURNALED, with_keys, note=note, foreign=foreign)
    shares = [100 * rate / base for rate, base in zip(with_keys, rates, strict=True)]
    yield median_figure("curve", "so encryption leaves, of the plain rate", "%", JOURNALED, shares, foreign=foreign)


def _storm(keyed: KeyedBench) -> float:
    """Seconds from the start of the new hub until each client has published again."""
    begun, killed = shared_counter(), shared_counter()
    shared = {"url": keyed.url, "topic": keyed.fresh("bench.storm"), "begun": begun, "killed": killed}
    tasks = [Task(come_back, {**shared, "count": CLIENTS // PROCESSES}) for _ in range(PROCESSES)]
    started: list[float] = []

    def restart() -> None:
        give_up = time.monotonic() + READY_S
        while begun.value < PROCESSES and time.monotonic() < give_up:
            time.sleep(0.01)
        keyed.hub.kill()
        killed.value = 1
        started.append(time.monotonic())
        keyed.hub.start()

    restarting = threading.Thread(target=restart, daemon=True)
    restarting.start()
    done = run(tasks)
    restarting.join()
    ended: float = max(result["ended"] for result in done.results)
    return ended - started[0]


def come_back(line: Line, *, url: str, topic: str, begun: Any, killed: Any, count: int) -> dict[str, Any]:
    """Connect clients; when the hub was killed, publish with each of them and wait for all confirms."""
    return asyncio.run(_come_back(line, url, topic, begun, killed, count))


async def _connected(url: str) -> AsyncClient:
    return await aconnect(url, timeout=BACK_S)


async def _come_back(line: Line, url: str, topic: str, begun: Any, killed: Any, count: int) -> dict[str, Any]:
    clients: list[AsyncClient] = []
    zmq.Context.instance().set(zmq.MAX_SOCKETS, SOCKETS_OF_CLIENT * count)
    try:
        while len(clients) < count:
            few = range(min(CONNECTING, count - len(clients)))
            clients += await asyncio.gather(*(_connected(url) for _ in few))
        await asyncio.to_thread(line.ready)
        with begun.get_lock():
            begun.value += 1
        cpu_s = time.process_time()
        while not killed.value:
            await asyncio.sleep(0.01)
        await asyncio.gather(*(client.publish(topic, b"x", timeout=BACK_S) for client in clients))
        return {"count": count, "ended": time.monotonic(), "cpu_before_s": cpu_s}
    finally:
        await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)
