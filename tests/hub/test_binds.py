"""Addresses at which a hub listens; a journal belongs to one hub."""

import contextlib
import socket
import uuid
from pathlib import Path

import pytest
import zmq

from fabric.errors import JournalError
from fabric.hub import Hub, HubOptions
from fabric_protocol.errors import FabricError
from tests.hub.kit import sockets, talker


def test_all_addresses_lead_to_the_same_hub(tmp_path: Path) -> None:
    with sockets() as folder, contextlib.ExitStack() as peers:
        binds = ["tcp://127.0.0.1:*", "tcp://127.0.0.1:*", f"ipc://{folder}/hub", f"inproc://{uuid.uuid4()}"]
        with Hub(tmp_path / "journal", HubOptions(binds=binds)) as hub:
            assert len({*hub.binds}) == 4
            assert "*" not in "".join(hub.binds)
            context: zmq.Context[zmq.Socket[bytes]] = peers.enter_context(zmq.Context())
            everyone = [
                peers.enter_context(talker(hub.context if url.startswith("inproc") else context, url))
                for url in hub.binds
            ]
            for peer in everyone:
                peer.subscribe("t")
            for number, peer in enumerate(everyone, 1):
                assert peer.publish("t", b"%d" % number) == number
            for peer in everyone:
                assert peer.take(4) == [(1, b"1"), (2, b"2"), (3, b"3"), (4, b"4")]
            peers.close()


@pytest.mark.parametrize(
    "url",
    [
        *("tcp://example.org:7171", "tcp://eth99:7171", "tcp://:7171", "tcp://127.0.0.1:70000", "tcp://127.0.0.1"),
        *("udp://127.0.0.1:7171", "pgm://127.0.0.1:7171", "127.0.0.1:7171", ""),
    ],
)
def test_address_that_no_hub_can_have_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(FabricError) as error:
        Hub(tmp_path / "journal", HubOptions(binds=[url]))
    assert error.value.hint
    with Hub(tmp_path / "journal", HubOptions(binds=["tcp://localhost:*"])):
        pass  # nothing was left behind that holds the journal


def test_taken_port_is_refused_with_a_hint(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        url = f"tcp://127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(FabricError, match="cannot listen") as error:
            Hub(tmp_path / "journal", HubOptions(binds=[url]))
        assert "--bind" in error.value.hint
    with Hub(tmp_path / "journal", HubOptions(binds=[url])):
        pass


def test_socket_of_a_running_hub_is_not_taken_from_it(tmp_path: Path) -> None:
    with sockets() as folder:
        url = f"ipc://{folder}/hub"
        with (
            Hub(tmp_path / "first", HubOptions(binds=[url])),
            pytest.raises(FabricError, match="another process already listens there"),
        ):
            Hub(tmp_path / "second", HubOptions(binds=[url]))
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(folder / "hub"))
        with Hub(tmp_path / "second", HubOptions(binds=[url])):
            pass  # the file that a killed hub leaves behind is no obstacle


def test_second_hub_on_a_journal_is_refused(tmp_path: Path) -> None:
    with (
        Hub(tmp_path / "journal", HubOptions(binds=["tcp://127.0.0.1:*"])),
        pytest.raises(JournalError, match="in use"),
    ):
        Hub(tmp_path / "journal", HubOptions(binds=["tcp://127.0.0.1:*"]))
    with Hub(tmp_path / "journal", HubOptions(binds=["tcp://127.0.0.1:*"])):
        pass
