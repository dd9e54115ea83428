"""Ctrl-C, or a signal handler that raises, at any moment: the client goes on, and the result of flush() is right."""

import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

import fabric_client
from fabric_client import Client, VerdictsUnconfirmed
from fabric_client.core.ticket import Ticket
from tests.clients.real_hub import HubProcess, connect
from tests.clients.test_settle import Desk
from tests.patience import PATIENCE_S
from tests.seeds import seeded

TIMES = 40  # interruptions of each test
LATEST_S = 0.05


class Interrupted(BaseException):
    pass


class Alarm:
    """Interrupts the main thread a moment after it was set."""

    def __init__(self) -> None:
        self._is_set = False

    def ring(self, *_: object) -> None:
        if self._is_set:
            self._is_set = False
            raise Interrupted

    def ignored(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """Python has ignored an exception in a finalizer: ring once more if it was the alarm."""
        if isinstance(unraisable.exc_value, Interrupted):
            self._is_set = True
        else:
            sys.__unraisablehook__(unraisable)

    def interrupt(self, rng: random.Random, work: Callable[[], None]) -> None:
        """Run what never ends by itself."""
        self._is_set = True
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.001, LATEST_S), 0.01)
        try:
            work()
        except Interrupted:
            pass
        finally:
            self._is_set = False
            signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.fixture
def alarm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Alarm]:
    alarm = Alarm()
    monkeypatch.setattr(sys, "unraisablehook", alarm.ignored)
    before = signal.signal(signal.SIGALRM, alarm.ring)
    yield alarm
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def fab(hub_process: HubProcess) -> Iterator[Client]:
    client = connect(hub_process)
    yield client
    client._driver.stop()


@pytest.mark.parametrize("way", ["publish", "publish_nowait"])
def test_what_was_published_is_stored_once(hub_process: HubProcess, fab: Client, alarm: Alarm, way: str) -> None:
    rng, accepted, number = seeded(way), list[bytes](), 0

    def publish() -> None:
        nonlocal number
        while True:
            number += 1
            body = str(number).encode()
            if way == "publish":
                fab.publish("p", body, timeout=PATIENCE_S)
            else:
                fab.publish_nowait("p", body)
            accepted.append(body)

    for _ in range(TIMES):
        alarm.interrupt(rng, publish)
        if rng.random() < 0.3:
            fab.flush(PATIENCE_S)
    fab.flush(PATIENCE_S)
    with connect(hub_process) as reader:
        stored = Counter(message.body for message in reader.get("p", n=2 * number, timeout=PATIENCE_S))
    assert not set(accepted).difference(stored)
    assert set(stored.values()) == {1}


def test_what_was_acked_and_flushed_does_not_come_again(hub_process: HubProcess, fab: Client, alarm: Alarm) -> None:
    rng, acked, settled = seeded("acked"), set[int](), set[int]()
    fab.publish_many("a", [b"x"] * 100_000)
    fab.admin.groups.create("g", "a", attempts=0)
    consumer: fabric_client.Consumer[fabric_client.Message] | None = None

    def consume() -> None:
        assert consumer is not None
        for message in consumer:
            assert message.seq not in settled
            message.ack()
            acked.add(message.seq)

    for _ in range(TIMES):
        consumer = fab.consume("a", group="g")
        alarm.interrupt(rng, consume)
        consumer = None
        if rng.random() < 0.5:
            try:
                fab.flush(PATIENCE_S)
                settled |= acked
            except VerdictsUnconfirmed:
                pass
            acked.clear()
    assert settled


def test_a_loop_has_no_finalizer_in_which_an_interrupt_is_lost() -> None:
    desk = Desk()
    [message] = desk.deliver(1, b"x")
    assert not hasattr(type(message.batch), "__del__")


def test_verdicts_that_were_being_collected_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    one, two = desk.deliver(1, b"x", b"y")
    one.ack()
    monkeypatch.setattr(desk.sub.acks, "sent", interrupted)
    with pytest.raises(Interrupted):
        desk.session.flush(desk.sub)
    monkeypatch.undo()
    two.ack()
    desk.session.unsubscribe(desk.sub, Ticket())
    assert not desk.session.live, "what the hub knows of the subscription is not known"
    assert not desk.session.settled
    desk.again(resumed=False)
    error = desk.session.unsettled.take()
    assert error is not None
    assert error.messages == (("t", 1), ("t", 2))
    assert desk.session.settled


def test_an_interrupted_subscription_is_not_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    monkeypatch.setattr(desk.sub, "deliver", interrupted)
    with pytest.raises(Interrupted):
        desk.deliver(1, b"x")
    monkeypatch.undo()
    assert desk.session.subscriptions.seen() == []
    desk.session.flush(desk.sub)
    assert not desk.session.live


def interrupted(*_: object) -> None:
    raise Interrupted
