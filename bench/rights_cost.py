"""What rights cost the hub for each command: the router handles the same commands for a principal with all rights, for
one with a role, and for one with a role that has limits.

    python bench/rights_cost.py           # half a minute

The router works over a real journal, without sockets. Only the time in `Router.step` is measured. The principals take
turns, some commands at a time, so that other programs on the machine disturb all of them. The median counts.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from fabric.access.book import AccessBook
from fabric.access.keys import make_pair
from fabric.hub.restore import restored_router
from fabric.journal.journal import Journal
from fabric.router.access.identity import LOCAL, Identity
from fabric_protocol import block
from fabric_protocol import messages as m

ROUNDS: Final = 500
COMMANDS: Final = 30  # of a round: fewer than a client may have unconfirmed
TOPICS: Final = 50
CHAN: Final = 1
RIGHTS: Final = """
publish = ["invoices.#", "events.*.done"]
subscribe = ["orders.*", "prices.#"]
groups = ["billing*", "reports"]
request = ["prices.*"]
deny = ["orders.secret.#", "invoices.secret.#"]
"""
LIMITS: Final = 'limits = { rate = "100M/s", bytes = "1000GB/s", sessions = 10, inflight = "1GB", groups = 20 }'
ROLES: Final = f"[role.role]{RIGHTS}\n[role.limits]{RIGHTS}{LIMITS}\n"


class Peer(NamedTuple):
    connection: bytes
    identity: Identity


class Bench:
    """A router with three peers. One has all rights, one has a role, and one has a role with limits."""

    def __init__(self, folder: Path) -> None:
        self._journal = Journal.open(folder)
        (folder / "access.toml").write_text(ROLES)
        book = AccessBook(folder)
        self._router = restored_router(self._journal, self._journal.load(), Counter(), lambda *_: None, book)
        self.peers = {"all rights": Peer(b"local", LOCAL)}
        for role in ("role", "limits"):
            key = make_pair().public
            book.create(role, role, key, time.time_ns() // 1000)
            self.peers[role] = Peer(role.encode(), book.identity_of(key))
        self._router.apply_access()
        for peer in self.peers.values():
            self.seconds(peer, [m.Hello(1, {"proto": m.PROTOCOL_VERSION, "client": "bench"})])

    def seconds(self, peer: Peer, commands: Sequence[m.ToHub]) -> float:
        """How long the router takes for some commands. They are on disk afterwards."""
        step, (connection, identity), now = self._router.step, peer, time.monotonic()
        begun = time.perf_counter()
        for command in commands:
            step(command, connection, now, identity)
        taken = time.perf_counter() - begun
        self._commit(now)
        return taken

    def _commit(self, now: float) -> None:
        self._router.tick(now)
        transaction = self._router.seal(time.time_ns() // 1000, now)
        self._journal.commit(transaction.records)
        self._router.release(transaction)
        self._router.committed(now)
        for _, answer in self._router.take_frames():
            assert not isinstance(answer, m.Err), answer

    def close(self) -> None:
        self._journal.close()


def reads() -> Iterator[m.ToHub]:
    for number in itertools.count(1):
        yield m.Get(number, {"topic": f"prices.n{number % TOPICS}"})


def subscriptions() -> Iterator[m.ToHub]:
    for number in itertools.count(1, 2):
        yield m.Subscribe(CHAN, number, {"patterns": [f"prices.n{number % TOPICS}.#"], "credit": [1, 1]})
        yield m.Unsubscribe(CHAN, number + 1)


def pings() -> Iterator[m.ToHub]:
    return map(m.Ping, itertools.count(1))


def publishes() -> Iterator[m.ToHub]:
    blocks = [block.encode(f"invoices.n{number}", [bytes(128)]) for number in range(TOPICS)]
    for number in itertools.count(1):
        yield m.Publish(number, 0, m.Level.JOURNALED, blocks[number % TOPICS])


KINDS: Final = {  # publishes are last, because a longer journal makes the others slower
    "GET of a topic": reads,
    "SUB and UNSUB, each": subscriptions,
    "PING, which needs no right": pings,
    "PUB of one message": publishes,
}


def measure(bench: Bench, commands: Iterator[m.ToHub], rounds: int) -> dict[str, float]:
    """Microseconds of one command for each peer."""
    taken: dict[str, list[float]] = {name: [] for name in bench.peers}
    for number in range(rounds):
        for name in sorted(taken, reverse=number % 2 == 0):  # a peer that is always first would find colder caches
            some = list(itertools.islice(commands, COMMANDS))
            taken[name].append(bench.seconds(bench.peers[name], some) / COMMANDS * 1e6)
    return {name: statistics.median(all_of_it) for name, all_of_it in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what rights cost the hub for each command.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="rights-cost-") as folder:
        bench = Bench(Path(folder) / "journal")
        for what, commands in KINDS.items():
            costs = measure(bench, commands(), rounds)
            free = costs.pop("all rights")
            others = "".join(f"   {name} {cost - free:+.2f} us" for name, cost in costs.items())
            print(f"{what:28s} all rights {free:6.2f} us{others}", flush=True)
        bench.close()


if __name__ == "__main__":
    main()
