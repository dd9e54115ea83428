"""What a hub tells its service manager: ready, its status, a sign of life from its loop, and that it stops."""

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import zmq

import fabric_client
from fabric.hub import notify
from fabric.hub.hub import Hub, HubOptions
from fabric.hub.notify import Notifier, of_environment
from fabric.journal.journal import Journal
from fabric.records import Record
from fabric.router.router import Router
from fabric.router.timers import NEVER
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from tests.deploy.manager import Manager
from tests.hub.kit import talker
from tests.patience import PATIENCE_S


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fab") as path:  # short: the address of a Unix socket has 107 bytes
        yield Path(path)


@pytest.fixture
def manager(folder: Path) -> Iterator[Manager]:
    with Manager(str(folder / "notify")) as manager:
        yield manager


def test_a_hub_tells_when_it_serves_and_when_it_stops(manager: Manager, folder: Path) -> None:
    service = manager.start_hub(folder / "journal")
    ready = manager.receive()
    assert ready["READY"] == "1"
    assert ready["STATUS"] == "HEALTHY, last seq 0"
    assert "WATCHDOG" not in ready, "the manager has not asked for it"
    with fabric_client.connect(f"ipc://{folder}/journal.sock", timeout=PATIENCE_S) as fab:
        fab.publish("a", b"1")
    service.send_signal(signal.SIGTERM)
    stopping = manager.receive()
    assert stopping["STOPPING"] == "1"
    assert "READY" not in stopping
    assert service.wait(PATIENCE_S) == 0


def test_an_abstract_address(folder: Path) -> None:
    with Manager(f"@fabric-test-{folder.name}") as manager:
        manager.start_hub(folder / "journal")
        assert manager.receive()["READY"] == "1"


def test_the_loop_gives_signs_of_life_and_a_stopped_process_does_not(manager: Manager, folder: Path) -> None:
    service = manager.start_hub(folder / "journal", watchdog_s=0.4)
    assert manager.receive_with("WATCHDOG")["READY"] == "1"
    for _ in range(5):  # of an idle hub
        assert manager.receive()["WATCHDOG"] == "1"
    service.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, service.pid, os.WSTOPPED | os.WNOWAIT)
    manager.forget()
    assert manager.receive(1.5) == {}, "nothing but the loop may send a sign of life"
    service.send_signal(signal.SIGCONT)
    assert manager.receive()["WATCHDOG"] == "1"


def test_a_drain_asks_for_more_time_again_and_again(manager: Manager, folder: Path) -> None:
    service = manager.start_hub(folder / "journal", "--drain", "1d", watchdog_s=0.4)
    manager.receive_with("READY")
    with fabric_client.connect(f"ipc://{folder}/journal.sock", timeout=PATIENCE_S) as fab:
        fab.publish("a", b"held")
        consumer = iter(fab.consume("a", group="g", start="first"))
        held = next(consumer)  # without a verdict, so the drain waits for it
        service.send_signal(signal.SIGTERM)
        for _ in range(4):
            message = manager.receive_with("EXTEND_TIMEOUT_USEC")
            assert service.poll() is None
            assert (message["STOPPING"], message["WATCHDOG"]) == ("1", "1")
            assert message["STATUS"].startswith("draining")
        held.ack()
        fab.flush()
        assert service.wait(PATIENCE_S) == 0


def test_a_hub_that_cannot_end_for_its_disk_asks_for_no_time_after_its_drain(
    manager: Manager, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, goes_on = threading.Event(), threading.Event()
    commit = Journal.commit

    def hang(journal: Journal, records: Sequence[Record]) -> None:
        hangs.set()
        goes_on.wait(PATIENCE_S)
        commit(journal, records)

    monkeypatch.setattr(Journal, "commit", hang)
    hub = Hub(folder / "journal", HubOptions(binds=[f"ipc://{folder}/hub"], drain_s=0.1))
    hub.notifier = Notifier(manager.address)
    with hub, zmq.Context() as context, talker(context, hub.binds[0]) as client:
        client.send(m.Publish(1, 0, 0, encode("a", [b"1"])))
        assert hangs.wait(PATIENCE_S)
        hub.request_stop()
        message = manager.receive_with("STOPPING")
        assert "EXTEND_TIMEOUT_USEC" in message
        end = time.monotonic() + PATIENCE_S
        while "EXTEND_TIMEOUT_USEC" in message:
            assert time.monotonic() < end
            message = manager.receive()
            assert message["STOPPING"] == "1"
        assert hub.counters["commits"] == 0, "the hub waits for its disk"
        goes_on.set()


def test_a_closed_terminal_drains_the_hub_unless_it_ignores_that(manager: Manager, folder: Path) -> None:
    service = manager.start_hub(folder / "journal")
    manager.receive_with("READY")
    service.send_signal(signal.SIGHUP)
    assert manager.receive()["STOPPING"] == "1"
    assert service.wait(PATIENCE_S) == 0
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        service = manager.start_hub(folder / "journal")
    finally:
        signal.signal(signal.SIGHUP, before)
    manager.receive_with("READY")
    service.send_signal(signal.SIGHUP)
    with fabric_client.connect(f"ipc://{folder}/journal.sock", timeout=PATIENCE_S) as fab:
        fab.publish("a", b"1")
    assert service.poll() is None


def test_a_loop_that_fails_in_each_turn_gives_no_sign(
    manager: Manager, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(folder / "journal", HubOptions(binds=["inproc://hub"]))
    hub.notifier = Notifier(manager.address, 0.1)
    with hub:
        assert "READY" in manager.receive()
        manager.receive_with("WATCHDOG")

        def fail(router: Router, now: float) -> None:
            raise ValueError("a mistake of the hub")

        monkeypatch.setattr(Router, "tick", fail)
        end = time.monotonic() + PATIENCE_S
        while hub.counters["restored"] < 2:
            assert time.monotonic() < end
        manager.forget()
        assert manager.receive(0.5) == {}
        monkeypatch.undo()


def test_without_a_manager_nothing_is_due() -> None:
    environment = {"PATH": "/bin"}
    notifier = of_environment(environment)
    assert notifier.due_at == NEVER
    notifier.stopping(5.0)
    assert notifier.due_at == NEVER
    assert environment == {"PATH": "/bin"}


def test_the_variables_are_not_for_child_processes(manager: Manager) -> None:
    environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())}
    notifier = of_environment(environment)
    assert environment == {}
    notifier.tick(100.0, 1_234)
    assert manager.receive() == {"READY": "1", "WATCHDOG": "1", "STATUS": "HEALTHY, last seq 1,234"}
    assert notifier.due_at == 101.0, "half of the time"


@pytest.mark.parametrize("watchdog", [{"WATCHDOG_PID": "1", "WATCHDOG_USEC": "2000000"}, {"WATCHDOG_USEC": "soon"}, {}])
def test_a_watchdog_of_another_process_is_not_ours(manager: Manager, watchdog: dict[str, str]) -> None:
    notifier = of_environment({"NOTIFY_SOCKET": manager.address, **watchdog})
    notifier.tick(100.0, 0)
    assert "WATCHDOG" not in manager.receive()
    assert notifier.due_at == 100.0 + notify.STATUS_S


def test_an_address_of_another_kind_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    assert of_environment({"NOTIFY_SOCKET": "vsock:2:1234"}).due_at == NEVER
    assert "service manager not told" in caplog.text


def test_a_manager_that_starts_again_is_told_that_the_hub_is_ready(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = str(folder / "notify")
    notifier = Notifier(address, 60.0)
    for now in (1.0, 2.0, 3.0):
        assert notifier.due_at <= now
        notifier.tick(now, 0)
    assert caplog.text.count("service manager not told") == 1
    with Manager(address) as manager:
        notifier.tick(4.0, 0)
        assert manager.receive()["READY"] == "1"
        assert notifier.due_at == 4.0 + notify.STATUS_S


def test_a_full_queue_does_not_hold_up_the_hub(manager: Manager) -> None:
    notifier = Notifier(manager.address, 60.0)
    for now in range(2_000):  # far more than the queue of a datagram socket holds
        notifier.tick(float(now), 0)
    assert notifier.due_at == 1_999.0 + notify.RETRY_S
    manager.forget()
    notifier.tick(2_000.0, 0)
    assert manager.receive()["WATCHDOG"] == "1"
