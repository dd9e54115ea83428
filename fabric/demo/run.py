"""Runs the demo: a hub, a producer, two groups of competing consumers, and kill -9 in between.

The hub is a child process with a journal in a temporary folder, the clients use the public Python client, and all
figures are counted. The producer numbers the messages, so the confirmed messages and the messages that a group has seen
are sets of numbers; the result is a comparison of these sets.
"""

import contextlib
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import fabric_client
from fabric.cli.support.hub_process import HubProcess
from fabric_protocol.errors import FabricError

TOPICS: Final = ("orders.created", "orders.paid", "orders.shipped", "orders.returned")
GROUPS: Final = {"billing": ("orders.*", ("ada", "bob")), "audit": ("#", ("cleo", "dan"))}
BURST_S: Final = 0.01  # the producer publishes a burst this often, and waits until it is confirmed
DOWN_S: Final = 0.5  # how long the killed hub stays down, so that the view shows it
CATCH_UP_S: Final = 30.0  # after this time, messages that a group has not seen count as lost
LOOK_S: Final = 0.1  # between two updates of the view
PREFETCH: Final = 256  # small, so that both consumers of a group get messages


class GroupFigures(NamedTuple):
    seen: int
    again: int  # deliveries of messages that this group had already seen
    by_consumer: dict[str, int]


class Figures(NamedTuple):
    """The present figures of the demo."""

    elapsed_s: float
    hub: str
    sent: int
    confirmed: int
    groups: dict[str, GroupFigures]


class Verdict(NamedTuple):
    """The result. `lost` and `stored_twice` must be zero."""

    confirmed: int
    groups: dict[str, GroupFigures]
    lost: dict[str, int]
    stored_twice: int
    unconfirmed_at_kill: list[int]
    recovery_s: list[float]  # from the start of the new hub to its first confirm
    seconds: float

    @property
    def passed(self) -> bool:
        return self.confirmed > 0 and not any(self.lost.values()) and not self.stored_twice


class Worker(threading.Thread):
    """A client in its own thread."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(name=f"demo-{name}", daemon=True)
        self._url = url
        self._client: fabric_client.Client | None = None
        self.stopping = threading.Event()
        self.failure: FabricError | None = None

    def run(self) -> None:
        try:
            with fabric_client.connect(self._url, name=self.name.removeprefix("demo-")) as self._client:
                self._work(self._client)
        except fabric_client.VerdictsUnconfirmed:
            pass  # the verdicts were lost with the hub: their messages are delivered again, and counted
        except FabricError as error:
            self.failure = error

    def _work(self, fab: fabric_client.Client) -> None:
        raise NotImplementedError

    def abandon(self) -> None:
        """End the client at once."""
        self.stopping.set()
        if self._client is not None:
            with contextlib.suppress(FabricError):
                self._client.close(timeout=0)


class Producer(Worker):
    """Publishes numbered orders in small bursts. Numbers below `confirmed` are confirmed: on disk."""

    def __init__(self, url: str, rate: int) -> None:
        super().__init__(url, "producer")
        self._per_burst = max(1, round(rate * BURST_S))
        self.sent = 0
        self.confirmed = 0
        self.confirmed_at = 0.0

    def _work(self, fab: fabric_client.Client) -> None:
        due = time.monotonic()
        while not self.stopping.is_set():
            self._burst(fab)
            due = max(due + BURST_S, time.monotonic())
            self.stopping.wait(due - time.monotonic())

    def _burst(self, fab: fabric_client.Client) -> None:
        for number in range(self.sent, self.sent + self._per_burst):
            order = {"n": number, "total": number % 997 / 10}
            fab.publish_nowait(TOPICS[number % len(TOPICS)], json.dumps(order).encode())
        self.sent += self._per_burst
        fab.flush()
        self.confirmed = self.sent
        self.confirmed_at = time.monotonic()


class Group:
    """The messages that a group has seen, by consumer; and numbers that came with two seqs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seqs: dict[int, int] = {}
        self._again = 0
        self._by_consumer: dict[str, int] = {}
        self.stored_twice = 0

    def saw(self, consumer: str, rows: list[tuple[int, int]]) -> None:
        with self._lock:
            self._by_consumer[consumer] = self._by_consumer.get(consumer, 0) + len(rows)
            for number, seq in rows:
                first_seq = self._seqs.setdefault(number, seq)
                self.stored_twice += first_seq != seq
            self._again = sum(self._by_consumer.values()) - len(self._seqs)

    def figures(self) -> GroupFigures:
        with self._lock:
            return GroupFigures(len(self._seqs), self._again, dict(self._by_consumer))

    def missing(self, confirmed: int) -> int:
        """The number of confirmed messages that this group has not seen."""
        with self._lock:
            return sum(number not in self._seqs for number in range(confirmed))


class Consumer(Worker):
    """A consumer of a group: notes and acks every message."""

    def __init__(self, url: str, group_name: str, group: Group, name: str) -> None:
        super().__init__(url, name)
        self._group_name = group_name
        self._group = group
        self._who = name
        self.ready = threading.Event()

    def run(self) -> None:
        try:
            super().run()
        finally:
            self.ready.set()

    def _work(self, fab: fabric_client.Client) -> None:
        pattern = GROUPS[self._group_name][0]
        while not self.stopping.is_set():
            # The timeout ends the loop now and then, to check `stopping`.
            batches = fab.consume_batches(pattern, group=self._group_name, prefetch=PREFETCH, timeout=0.5)
            self.ready.set()
            for batch in batches:
                rows = [(json.loads(m.body)["n"], m.seq) for m in batch]
                self._group.saw(self._who, rows)
                batch.ack()


class Demo:
    """Runs the demo; calls `show` with the figures ten times a second, and `tell` with a sentence for each event."""

    def __init__(
        self, *, seconds: float, rate: int, kills: int, show: Callable[[Figures], None], tell: Callable[[str], None]
    ) -> None:
        self._seconds = seconds
        self._rate = rate
        self._kills = kills
        self._show = show
        self._tell = tell
        self._groups = {name: Group() for name in GROUPS}
        self._consumers: list[Consumer] = []
        self._unconfirmed_at_kill: list[int] = []
        self._recovery_s: list[float] = []
        self._hub_state = "starting"
        self._begun = time.monotonic()

    def run(self) -> Verdict:
        with tempfile.TemporaryDirectory(prefix="fabric-demo-") as folder, _hub(Path(folder)) as hub:
            self._hub_state = f"up, pid {hub.pid}"
            self._tell(f"hub listens at {hub.url}, journal in {folder}")
            self._producer = Producer(hub.url, self._rate)
            try:
                return self._play(hub)
            except BaseException:  # Ctrl-C: the clients must not wait for the hub
                for worker in (self._producer, *self._consumers):
                    worker.abandon()
                raise

    def _play(self, hub: HubProcess) -> Verdict:
        self._start_consumers(hub.url)
        self._producer.start()
        for _ in range(self._kills):
            self._watch_for(self._seconds / (self._kills + 1))
            self._kill(hub)
        self._watch_for(self._seconds / (self._kills + 1))
        return self._finish()

    def _start_consumers(self, url: str) -> None:
        for group_name, (pattern, names) in GROUPS.items():
            self._consumers += [Consumer(url, group_name, self._groups[group_name], name) for name in names]
            self._tell(f"group {group_name} on {pattern!r}: {' and '.join(names)} share the work")
        for consumer in self._consumers:
            consumer.start()
        for consumer in self._consumers:
            consumer.ready.wait(CATCH_UP_S)

    def _kill(self, hub: HubProcess) -> None:
        old = hub.pid
        hub.kill()
        in_flight = self._producer.sent - self._producer.confirmed
        self._unconfirmed_at_kill.append(in_flight)
        self._hub_state = "DOWN"
        self._tell(f"kill -9 {old}: the hub is gone; {in_flight:,} messages were sent and not confirmed")
        self._watch_for(DOWN_S)
        begun = time.monotonic()
        hub.start()
        self._hub_state = f"up, pid {hub.pid}"
        self._watch_until(lambda: self._producer.confirmed_at > begun, CATCH_UP_S)
        if self._producer.confirmed_at > begun:
            self._recovery_s.append(self._producer.confirmed_at - begun)
            self._tell(
                f"a new hub on the same journal: first confirm {self._recovery_s[-1] * 1000:,.0f} ms after start"
            )

    def _finish(self) -> Verdict:
        self._producer.stopping.set()
        self._watch_until(lambda: not self._producer.is_alive(), CATCH_UP_S)
        confirmed = self._producer.confirmed
        self._tell(f"producer done: {confirmed:,} messages confirmed; the groups catch up")
        self._watch_until(lambda: all(g.figures().seen >= confirmed for g in self._groups.values()), CATCH_UP_S)
        for consumer in self._consumers:
            consumer.stopping.set()
        self._watch_until(lambda: not any(c.is_alive() for c in self._consumers), CATCH_UP_S)
        for worker in (self._producer, *self._consumers):
            if worker.failure is not None:
                self._tell(f"{worker.name} failed: {worker.failure}")
        return Verdict(
            confirmed=confirmed,
            groups={name: group.figures() for name, group in self._groups.items()},
            lost={name: group.missing(confirmed) for name, group in self._groups.items()},
            stored_twice=sum(group.stored_twice for group in self._groups.values()),
            unconfirmed_at_kill=self._unconfirmed_at_kill,
            recovery_s=self._recovery_s,
            seconds=time.monotonic() - self._begun,
        )

    def _watch_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self._watch_until(lambda: time.monotonic() >= end, seconds)

    def _watch_until(self, reached: Callable[[], bool], seconds_max: float) -> None:
        end = time.monotonic() + seconds_max
        while not reached() and time.monotonic() < end:
            time.sleep(LOOK_S)
            self._look()
        self._look()

    def _look(self) -> None:
        groups = {name: group.figures() for name, group in self._groups.items()}
        elapsed_s = time.monotonic() - self._begun
        self._show(Figures(elapsed_s, self._hub_state, self._producer.sent, self._producer.confirmed, groups))


@contextlib.contextmanager
def _hub(folder: Path) -> Iterator[HubProcess]:
    hub = HubProcess(folder / "journal")
    try:
        yield hub.start()
    finally:
        hub.kill()  # the folder is removed anyway
