"""Exceptions that are planted in the running hub: the session that caused one gets INTERNAL, others lose nothing.

If state may be half changed, the hub restores itself from its journal, as after a crash, without ending.
"""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

import fabric_client
from fabric.hub import Hub, HubOptions
from fabric.hub.advisory_log import AdvisoryLog
from fabric.hub.faults import Faults
from fabric.journal.journal import Journal
from fabric.records import Append, SaveSetting
from fabric.router import commands
from fabric.router.read import info
from fabric.router.router import Router
from fabric_client.errors import HubError, PublishRefused, VerdictsUnconfirmed
from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.errors import Code, FabricError
from tests.commands import SAMPLES, Sample, handler_of, handlers
from tests.hub.kit import Talker, bodies_on_disk, eventually, talker
from tests.patience import PATIENCE_S

OFFENDER: Final = "offender"
POSITIONS: Final = ("entry", "boundary", "end")


class Planted(Exception):
    """The fault that a test has made."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(tmp_path / "journal", HubOptions(binds=[f"inproc://{uuid.uuid4()}"], drain_s=0)) as hub:
        yield hub


class SteadyClient:
    """A client as applications have it: publishes and consumes all the time, and must not notice more than a pause."""

    def __init__(self, hub: Hub) -> None:
        self._fab = fabric_client.connect(hub.binds[0], context=hub.context, name="steady", producer="steady")
        self._stop = threading.Event()
        self.published: list[bytes] = []
        self.received: set[bytes] = set()
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in (self._publish, self._listen)]

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._failures.append(error)

    def _publish(self) -> None:
        while not self._stop.is_set():
            payload = b"message %d" % len(self.published)
            self._fab.publish("steady", payload, timeout=PATIENCE_S)
            self.published.append(payload)

    def _listen(self) -> None:
        while not self._stop.is_set() or len(self.received) < len(self.published):
            for message in self._fab.consume("steady", group="steady", timeout=0.5):
                self.received.add(bytes(message.data))
                message.ack()

    def __enter__(self) -> "SteadyClient":
        for thread in self._threads:
            thread.start()
        eventually(lambda: self.received, "the first message")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in self._threads)
        with suppress(VerdictsUnconfirmed):  # of a session that the hub forgot: the messages come again
            self._fab.close()
        if kind is None:
            assert not self._failures, self._failures
            assert self.received == set(self.published)

    def goes_on(self) -> None:
        """All confirmed messages are received, and more are published."""
        before = len(self.published)
        eventually(lambda: len(self.published) > before or self._failures, "another message")
        assert not self._failures, self._failures


def plant(monkeypatch: pytest.MonkeyPatch, said: m.ToHub | type, position: str) -> None:
    """Let the handler fail when the offender says this message, or one of this kind."""

    def around(original: Callable[..., None]) -> Callable[..., None]:
        def handler(router: Router, message: Any, who: Any, *rest: Any) -> None:
            is_it = type(message) is said if isinstance(said, type) else message == said
            if not is_it or not (isinstance(who, bytes) or who.client == OFFENDER):
                original(router, message, who, *rest)
                return
            if position == "end":
                try:
                    original(router, message, who, *rest)
                finally:
                    router.shared.change.begin()
                    raise Planted(position)
            if position == "boundary":
                router.shared.change.begin()
            raise Planted(position)

        return handler

    monkeypatch.setattr(commands, "hello", around(commands.hello))
    monkeypatch.setattr(commands, "handle", around(commands.handle))


def offend(hub: Hub, sample: Sample, context: Any) -> None:
    """Say the sample; what is heard is INTERNAL and, if state had begun to change, that the session is over."""
    is_hello = isinstance(sample.message, m.Hello)
    peer = Talker(context, hub.binds[0]) if is_hello else talker(context, hub.binds[0], client=OFFENDER)
    with peer:
        if not is_hello:
            peer.subscribe("t", group="g", chan=1)
        peer.send(sample.message)
        error = peer.until(m.Err)
        assert (error.code, error.rid) == (Code.INTERNAL, getattr(sample.message, "rid", 0)), (sample, error)


def counted(hub: Hub) -> tuple[int, int]:
    return hub.counters["internal_errors"], hub.counters["restored"]


def test_there_is_a_sample_of_every_handler() -> None:
    assert {handler_of(sample) for sample in SAMPLES} == handlers()


@pytest.mark.parametrize("position", POSITIONS)
def test_a_fault_in_every_handler(hub: Hub, tmp_path: Path, position: str, caplog: pytest.LogCaptureFixture) -> None:
    """All of them one after the other, while another client goes on."""
    with SteadyClient(hub) as steady:
        for n, sample in enumerate(SAMPLES, 1):
            with pytest.MonkeyPatch.context() as patched:
                plant(patched, sample.message, position)
                offend(hub, sample, hub.context)
            wanted = (n, n if position != "entry" else 0)
            eventually(lambda wanted=wanted: counted(hub) == wanted, f"{sample.name} is counted")  # type: ignore[misc]
            if n % 10 == 0:
                steady.goes_on()
        steady.goes_on()
    hub.stop()
    stored = [body for body in bodies_on_disk(tmp_path / "journal") if body.startswith(b"message ")]
    assert stored == steady.published, "each once, in order"
    lines = [record.__dict__["fields"] for record in caplog.records if record.getMessage() == "command failed"]
    assert 1 <= len(lines) <= 21, "bounded"
    assert all("Planted" in line["error"] and line["frame0"] for line in lines[:20])


@pytest.mark.parametrize("position", POSITIONS)
def test_the_client_takes_internal_for_final(hub: Hub, monkeypatch: pytest.MonkeyPatch, position: str) -> None:
    """The call fails, it is not sent again, and the client goes on."""
    with fabric_client.connect(hub.binds[0], context=hub.context, name=OFFENDER, producer="p") as fab:
        fab.publish("t", b"1")
        with monkeypatch.context() as patched:
            plant(patched, m.Publish, position)
            with pytest.raises(PublishRefused) as refused:
                fab.publish("t", b"2", timeout=PATIENCE_S)
            assert refused.value.code == Code.INTERNAL
        assert hub.counters["internal_errors"] == 1
        with monkeypatch.context() as patched:
            plant(patched, m.Info, position)
            with pytest.raises(HubError) as failed:
                fab.info("groups")
            assert failed.value.code == Code.INTERNAL
        assert hub.counters["internal_errors"] == 2
        fab.publish("t", b"3", timeout=PATIENCE_S)
        assert [bytes(message.data) for message in fab.get("t", seq=1, n=10)] == [b"1", b"3"]


@pytest.mark.parametrize("where", ["tick", "seal", "committed", "next_deadline", "wants_commit"])
def test_a_fault_outside_of_commands(hub: Hub, tmp_path: Path, where: str) -> None:
    original = getattr(Router, where)
    left = 2

    def fails(self: Router, *args: Any, **kwargs: Any) -> Any:
        nonlocal left
        if left and threading.current_thread().name == "fabric-hub":
            left -= 1
            raise Planted(where)
        return original(self, *args, **kwargs)

    with SteadyClient(hub) as steady:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Router, where, fails)
            eventually(lambda: left == 0, "the faults have happened")
            steady.goes_on()
        steady.goes_on()
    assert hub.failure is None
    hub.stop()
    stored = [body for body in bodies_on_disk(tmp_path / "journal") if body.startswith(b"message ")]
    assert stored == steady.published


def test_a_fault_that_does_not_end_ends_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cause is in the journal: no client was heard of between."""

    def fails(self: Router, *args: Any) -> None:
        raise Planted("again")

    monkeypatch.setattr(Router, "tick", fails)
    eventually(lambda: hub.failure, "the hub gives up")
    assert isinstance(hub.failure, FabricError)
    assert "failed 3 times in a row: Planted: again" in str(hub.failure)


def test_a_turn_that_cannot_be_encoded_is_not_the_end(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of it is on disk, nothing of it was confirmed, and what clients send again is stored."""
    original, left = Journal.commit, 3

    def fails(self: Journal, turn: Any) -> None:
        nonlocal left
        if left and any(isinstance(record, Append) for record in turn):
            left -= 1
            original(self, [*turn, SaveSetting("x", 1 << 70)])
        else:
            original(self, turn)

    monkeypatch.setattr(Journal, "commit", fails)
    with SteadyClient(hub) as steady:
        steady.goes_on()
    assert left == 0
    assert hub.failure is None
    assert hub.counters["restored"] == 3
    hub.stop()
    assert [body for body in bodies_on_disk(tmp_path / "journal") if body.startswith(b"message ")] == steady.published
    assert any("OverflowError" in str(record.__dict__.get("fields")) for record in caplog.records)


def test_frames_that_make_the_decoder_fail(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    original = wire.decode_command

    def fails(frames: Any) -> Any:
        if b"poison" in frames[0]:
            raise KeyError("poison")
        return original(frames)

    monkeypatch.setattr(wire, "decode_command", fails)
    with talker(hub.context, hub.binds[0]) as peer:
        peer.send(m.Info(77, {"what": "poison"}))
        assert peer.refused(77) == Code.INTERNAL
        peer.still_served()
    assert hub.counters["restored"] == 0


def test_an_answer_that_cannot_be_encoded(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    original = info.info

    def strange(router: Router, session: Any, fields: Any) -> dict[str, Any]:
        return {"n": 1 << 70} if fields.get("what") == "strange" else original(router, session, fields)

    monkeypatch.setattr(commands, "info", strange)
    with talker(hub.context, hub.binds[0]) as peer:
        peer.send(m.Info(77, {"what": "strange"}))
        assert peer.refused(77) == Code.INTERNAL
        peer.still_served()
        assert peer.info("counters")["internal_errors"] == 1


def test_faults_in_a_row_are_waited_for_longer_and_longer() -> None:
    faults, now = Faults(AdvisoryLog()), 1000.0
    pauses = [faults.of_hub(Planted("x"), now + n, heard=True) for n in range(10)]
    assert pauses[:4] == [0.0, 0.05, 0.1, 0.2]
    assert pauses[-1] == 5.0, "clients were heard of between: it goes on for ever"
    assert faults.of_hub(Planted("x"), now + 100, heard=False) == 0.0, "forgotten"
    assert faults.of_hub(Planted("x"), now + 101, heard=False) == 0.05
    with pytest.raises(FabricError, match="failed 3 times in a row: Planted: x"):
        faults.of_hub(Planted("x"), now + 102, heard=False)
