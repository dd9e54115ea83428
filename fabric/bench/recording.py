"""What delivery events cost the hub: the same load with events off and on, in turn, on the same hub.

The figures are CPU time of the hub for each message, because it varies less than speed. It still varies by more than
events cost: compare medians of many rounds, or count instructions with `bench/event_cost.py`.
"""

import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import zmq

import fabric_client
from fabric.bench.crew import Line, Task, run
from fabric.bench.figures import JOURNALED, Figure, median_figure
from fabric.bench.floods import CREDIT, Talker
from fabric.bench.parts import Bench
from fabric.cli.support.hub_process import cpu_clock
from fabric.journal.environment import open_environment, open_tables
from fabric.journal.limits import table_bytes
from fabric_protocol import block
from fabric_protocol import messages as m
from fabric_protocol.errors import FabricError

PAIRS_MIN: Final = 5
CHAN: Final = 1


class _Load(NamedTuple):
    what: str
    messages: int  # of one publish; each publish is acked by a frame of its own
    unacked: int  # publishes
    total: int  # messages of one round, without --count


LOADS: Final = (
    _Load("blocks of 1,000 messages", 1_000, 8, 400_000),
    _Load("single messages, each acked", 1, 32, 6_000),
    _Load("one single message at a time, acked", 1, 1, 800),
)


def part_events(bench: Bench) -> Iterator[Figure]:
    with fabric_client.connect(bench.url) as fab:
        for load in LOADS:
            yield from _figures(bench, fab, load)


def _figures(bench: Bench, fab: fabric_client.Client, load: _Load) -> Iterator[Figure]:
    count = max(bench.settings.messages or load.total, load.messages) // load.messages * load.messages
    costs: dict[bool, list[float]] = {False: [], True: []}
    foreign, size, noted = 0.0, 0, 0
    _round(bench, load, count)  # the first round begins cold
    for number in range(max(bench.settings.repeats, PAIRS_MIN)):
        for is_on in (False, True) if number % 2 == 0 else (True, False):
            fab.admin.ask("hub.update", events=is_on)
            before = _event_bytes(bench)
            cpu_s, others = _round(bench, load, count)
            costs[is_on].append(cpu_s / count * 1e6)
            foreign = max(foreign, others)
            if is_on:
                fab.admin.ask("hub.update", events=False)  # its commit has the last events
                size, noted = size + _event_bytes(bench) - before, noted + count
    for is_on, word in ((False, "off"), (True, "on")):
        what = f"{load.what}, events {word}, CPU of the hub each"
        yield median_figure("events", what, "µs", JOURNALED, costs[is_on], note=f"{count:,} messages", foreign=foreign)
    share = [100 * (on / off - 1) for off, on in zip(costs[False], costs[True], strict=True)]
    yield median_figure("events", f"{load.what}: events cost", "%", JOURNALED, share, foreign=foreign)
    yield Figure("events", f"{load.what}: bytes of events on disk, each", size / noted, "B", JOURNALED)


def _event_bytes(bench: Bench) -> int:
    """Bytes of the pages that hold events."""
    environment = open_environment(bench.folder / "journal", readonly=True)
    try:
        tables = open_tables(environment)
        with environment.begin(buffers=True) as txn:
            return table_bytes(txn, tables.events)
    finally:
        environment.close()


def _round(bench: Bench, load: _Load, count: int) -> tuple[float, float]:
    """CPU seconds of the hub, and the share that other programs took."""
    arguments = {
        "url": bench.url, "hub_pid": bench.hub.pid, "name": bench.fresh("bench.events"), "count": count,
        "size": bench.settings.size, "messages": load.messages, "unacked": load.unacked,
    }  # fmt: skip
    done = run([Task(publish_and_ack, arguments)], bench.hub)
    return done.results[0]["hub_cpu_s"], done.foreign


def publish_and_ack(
    line: Line, *, url: str, hub_pid: int, name: str, count: int, size: int, messages: int, unacked: int
) -> dict[str, Any]:
    """Publish, receive and ack over one connection."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        talker, clock = Talker(context, url), cpu_clock(hub_pid)
        talker.ask(m.Subscribe(CHAN, 2, {"patterns": [name], "group": name, "credit": CREDIT}))
        publish = m.Publish(3, 0, m.Level.JOURNALED, block.encode(name, [bytes(size)] * messages))
        line.ready()
        cpu_s, begun, hub_s = time.process_time(), time.monotonic(), time.clock_gettime(clock)
        sent = acked = 0
        while acked < count:
            while sent < count and sent - acked < unacked * messages:
                talker.send(publish)
                sent += messages
            talker.wait()
            for heard in talker.hear():
                if isinstance(heard, m.Deliver):
                    acked += _ack(talker, heard, messages)
                elif isinstance(heard, m.Err):
                    raise FabricError(f"the hub refused a command: {heard.text}")
        talker.ask(_verdict(m.Verdict.TOUCH, acked, acked, rid=4))  # the answer comes when all acks are on disk
        hub_cpu_s = time.clock_gettime(clock) - hub_s
        return {"begun": begun, "ended": time.monotonic(), "hub_cpu_s": hub_cpu_s, "cpu_before_s": cpu_s}
    except zmq.ZMQError as error:
        raise FabricError(f"a connection failed: {error.strerror}") from error
    finally:
        context.destroy(linger=0)


def _ack(talker: Talker, delivery: m.Deliver, step: int) -> int:
    """Ack a delivery with a frame for each `step` messages; returns the number of messages."""
    first, count = delivery.first_ordinal, block.Block(delivery.block).count
    for ordinal in range(first, first + count, step):
        talker.tell(_verdict(m.Verdict.ACK, ordinal, min(ordinal + step, first + count) - 1))
    return count


def _verdict(verdict: m.Verdict, first: int, last: int, rid: int = 0) -> m.Settle:
    return m.Settle(CHAN, rid, ((verdict, first, last, None),))
