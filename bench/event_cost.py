"""What delivery events cost the hub, in instructions: the hub runs under valgrind, with events off and with events on.

    python bench/event_cost.py            # three runs of each, some minutes; needs the program valgrind

Seconds vary from run to run by more than the events cost; instructions do not. The hub runs in this process, turn by
turn, so that each run has the same turns and commits: one turn takes the publishes and the acks of a round, the next
one confirms and delivers. A round has the messages that one commit has when a real hub is busy. A run is measured with
two numbers of rounds, and the difference is the cost of the rounds between; the frames of the client are made before.
What remains of the client are its calls of zmq.
"""

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import lmdb
import zmq

from fabric.hub.hub import Hub, HubOptions
from fabric_protocol import block, wire
from fabric_protocol import messages as m

URL: Final = "inproc://hub"
SIZE: Final = 128
RUNS: Final = 3
TURN_US: Final = 1_000  # as a turn of a busy hub takes
MAP_BYTES: Final = 1 << 33  # valgrind cannot map as much as the hub asks for


class Load(NamedTuple):
    what: str
    publishes: int  # in one round
    messages: int  # of one publish; each publish is acked by a frame of its own
    rounds: int


LOADS: Final = {
    "bulk": Load("4 blocks of 1,000 messages in a commit", 4, 1_000, 60),
    "singles": Load("16 single messages in a commit, each acked", 16, 1, 100),
    "alone": Load("one single message in a commit, acked", 1, 1, 400),
}


class Clock:
    """A time that goes on with each turn, so that what the hub does now and then is the same in each run."""

    def __init__(self) -> None:
        self.us = 1_700_000_000_000_000

    def rule(self) -> None:
        """Become the clock of this process."""
        time.monotonic = lambda: self.us / 1e6
        time.time_ns = lambda: self.us * 1000


clock: Final = Clock()


class SteppedHub(Hub):
    """A hub that runs one turn for each call of `step`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, HubOptions(binds=[URL]))
        self._may_turn = threading.Semaphore(0)
        self._has_turned = threading.Semaphore(0)

    def turn(self) -> None:
        self._may_turn.acquire()
        super().turn()
        self._has_turned.release()

    def step(self) -> None:
        clock.us += TURN_US
        self._may_turn.release()
        self._has_turned.acquire()

    def let_go(self) -> None:
        for _ in range(1_000):
            self._may_turn.release()


class Client:
    def __init__(self, hub: SteppedHub) -> None:
        self._hub = hub
        self._socket = hub.context.socket(zmq.DEALER)
        self._socket.connect(URL)
        self.ask(m.Hello(1, {"proto": m.PROTOCOL_VERSION, "client": "bench"}))

    def ask(self, message: m.ToHub) -> None:
        self.send(wire.encode(message))
        while not self._socket.poll(0):
            self._hub.step()
        answer = wire.decode(self._socket.recv_multipart())
        assert isinstance(answer, m.Ok | m.Welcome), answer

    def send(self, frames: list[Any]) -> None:
        self._socket.send_multipart(frames)

    def drop_answers(self) -> None:
        while self._socket.poll(0):
            self._socket.recv_multipart()

    def close(self) -> None:
        self._socket.close(linger=0)


def play(load: Load, rounds: int, *, events: bool) -> None:
    """Publish, deliver and ack the messages of so many rounds."""
    folder = Path(tempfile.mkdtemp(prefix="event-cost-"))
    hub = SteppedHub(folder / "journal")
    hub.start()
    client = Client(hub)
    client.ask(m.Admin(2, {"op": "hub.update", "events": events}))
    credit = [1 << 40, 1 << 50]
    client.ask(m.Subscribe(1, 3, {"patterns": ["a"], "group": "g", "credit": credit}))
    publish = wire.encode(m.Publish(9, 0, m.Level.JOURNALED, block.encode("a", [bytes(SIZE)] * load.messages)))
    each = load.publishes * load.messages
    acks = [
        wire.encode(m.Settle(1, 0, ((m.Verdict.ACK, first, first + load.messages - 1, None),)))
        for first in range(1, 3 * load.rounds * each + 1, load.messages)
    ]
    acked = 0
    for number in range(1, rounds + 1):
        for _ in range(load.publishes):
            client.send(publish)
        hub.step()
        while hub.counters["deliveries"] < number * each:
            hub.step()
        client.drop_answers()
        for _ in range(load.publishes):
            client.send(acks[acked])
            acked += 1
    client.close()
    hub.let_go()
    hub.stop()
    shutil.rmtree(folder)


def _open(opened: Callable[..., lmdb.Environment], path: str, **options: Any) -> lmdb.Environment:
    return opened(path, **{**options, "map_size": MAP_BYTES})


def instructions(name: str, rounds: int, events: str) -> int:
    valgrind = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    command = [*valgrind, sys.executable, __file__, "--play", name, str(rounds), events]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    assert found is not None, done.stderr
    return int(found[1].replace(",", ""))


def cost(name: str, load: Load, events: str) -> float:
    """Instructions for each message."""
    more = instructions(name, 3 * load.rounds, events) - instructions(name, load.rounds, events)
    return more / (2 * load.rounds * load.publishes * load.messages)


def main() -> None:
    parser = argparse.ArgumentParser(description="Count what delivery events cost the hub.")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--play", nargs=3, metavar=("LOAD", "ROUNDS", "EVENTS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.play:
        name, rounds, events = arguments.play
        lmdb.open = partial(_open, lmdb.open)  # type: ignore[assignment]
        clock.rule()
        play(LOADS[name], int(rounds), events=events == "on")
        return
    for name, load in LOADS.items():
        off, on = ([cost(name, load, events) for _ in range(arguments.runs)] for events in ("off", "on"))
        share = 100 * (statistics.median(on) / statistics.median(off) - 1)
        for events, runs in (("off", off), ("on", on)):
            spread = f"{min(runs):,.0f} to {max(runs):,.0f}"
            print(f"{name:8s} events {events:3s} {statistics.median(runs):10,.0f} instructions a message ({spread})")
        print(f"{name:8s} events cost {share:+.2f} %   ({load.what})", flush=True)


if __name__ == "__main__":
    main()
