"""Addresses at which a hub listens; a journal belongs to one hub."""

import contextlib
import itertools
import socket
import uuid
from pathlib import Path

import pytest
import zmq

from fabric.errors import JournalError
from fabric.hub import Hub, HubOptions
from fabric.hub.addresses import mistakes
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


@pytest.mark.parametrize(
    ("urls", "says"),
    [
        (["tcp://::1:7171"], "an IPv6 address has brackets around it"),
        (["tcp://127.0.0.1:1,tcp://127.0.0.1:2"], "these are several addresses"),
        (["ipc://a ipc://b"], "these are several addresses"),
        (["ipc://"], "it has no path"),
        (["inproc://"], "its transport is not"),
        (["ipc://@hub"], "every user of the machine could connect"),
        ([f"ipc:///{'x' * 107}"], "its path has 108 bytes, and that of a socket at most 107"),
        (["ipc://a\0b"], "it has characters that no address has"),
        (["tcp://127.0.0.1:7171\n"], "it has characters that no address has"),
        (["ipc://\udcff"], "it has characters that no address has"),
        (["tcp://127.0.0.1:7171", "tcp://127.0.0.1:7171"], "it is given twice"),
        (["tcp://0.0.0.0:7171", "tcp://127.0.0.1:7171"], "tcp://0.0.0.0:7171 takes that place"),
        (["tcp://127.0.0.1:7171", "tcp://*:7171"], "tcp://127.0.0.1:7171 takes that place"),
        (["tcp://localhost:7171", "tcp://127.0.0.1:7171"], "tcp://localhost:7171 takes that place"),
        (["tcp://[::]:7171", "tcp://127.0.0.1:7171"], "tcp://[::]:7171 takes that place"),
        (["ipc://a", "ipc://./a"], "ipc://a takes that place"),
        (["inproc://a", "inproc://a"], "it is given twice"),
    ],
)
def test_addresses_that_cannot_be_are_told_before_a_journal_is_made(tmp_path: Path, urls: list[str], says: str) -> None:
    with pytest.raises(FabricError) as error:
        Hub(tmp_path / "journal", HubOptions(binds=urls))
    assert "cannot listen at" in str(error.value)
    assert says in str(error.value)
    assert error.value.hint
    assert str(error.value).isprintable()
    assert not (tmp_path / "journal").exists()


@pytest.mark.parametrize(
    "urls",
    [
        ["tcp://127.0.0.1:0", "tcp://127.0.0.1:0"],
        ["tcp://127.0.0.1:*", "tcp://0.0.0.0:*"],
        ["tcp://127.0.0.1:1", "tcp://127.0.0.2:1"],
        ["tcp://0.0.0.0:1", "tcp://[::1]:1"],
        ["tcp://0.0.0.0:1", "tcp://0.0.0.0:2"],
        ["ipc://a", "ipc://b,c"],
    ],
)
def test_addresses_beside_each_other_are_no_mistake(urls: list[str]) -> None:
    assert list(mistakes(urls)) == []


def can_listen(urls: list[str]) -> bool:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as listener:
        try:
            for url in urls:
                listener.setsockopt(zmq.IPV6, "[" in url)
                listener.bind(url)
        except zmq.ZMQError:
            return False
        return True


def test_two_addresses_are_a_mistake_if_the_system_refuses_both_at_once() -> None:
    hosts = ["0.0.0.0", "*", "127.0.0.1", "localhost", "127.0.0.2", "[::]", "[::1]"]
    hosts = [host for host in hosts if can_listen([f"tcp://{host}:*"])]  # not each machine has IPv6
    for first, second in itertools.product(hosts, hosts):
        expected = list(mistakes([f"tcp://{first}:1", f"tcp://{second}:1"])) == []
        tries = 5 if expected else 1  # another program may take the port
        assert any(can_listen(at_one_port(first, second)) for _ in range(tries)) is expected, (first, second)


def at_one_port(*hosts: str) -> list[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return [f"tcp://{host}:{probe.getsockname()[1]}" for host in hosts]


def test_every_mistake_in_a_list_of_addresses_is_found() -> None:
    found = [str(error) for error in mistakes(["x", "tcp://127.0.0.1:1", "ipc://", "tcp://0.0.0.0:1"])]
    assert [text.split(":")[0] for text in found] == [
        "cannot listen at x",
        *["cannot listen at ipc", "cannot listen at tcp"],
    ]


@pytest.mark.parametrize("binds", ["tcp://127.0.0.1:7171", [], ()])
def test_a_hub_without_a_list_of_addresses_is_refused(tmp_path: Path, binds: list[str]) -> None:
    with pytest.raises(FabricError, match="a hub needs a list of addresses"):
        Hub(tmp_path / "journal", HubOptions(binds=binds))


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_a_file_is_not_replaced_by_a_socket(tmp_path: Path, kind: str) -> None:
    """ZeroMQ removes whatever has the name of its socket."""
    with sockets() as folder:
        place = folder / "precious"
        if kind == "folder":
            place.mkdir()
        else:
            (folder / "file").write_text("of a person")
            place.symlink_to("file") if kind == "link" else place.write_text("of a person")
        with pytest.raises(FabricError, match="there is a file or folder of that name"):
            Hub(tmp_path / "journal", HubOptions(binds=[f"ipc://{place}"]))
        assert place.is_dir() if kind == "folder" else place.read_text() == "of a person"


def test_the_socket_of_the_data_folder_may_be_an_address(tmp_path: Path) -> None:
    with sockets() as folder:
        data = folder / "j"
        binds = ["tcp://0.0.0.0:*", f"ipc://{data}/../j/hub.sock"]
        with Hub(data, HubOptions(binds=binds)) as hub:
            assert hub.access is not None
            assert hub.access.admin_bind == f"ipc://{data}/hub.sock"


def test_a_missing_folder_of_a_socket_is_told(tmp_path: Path) -> None:
    with sockets() as folder, pytest.raises(FabricError, match="No such file") as error:
        Hub(tmp_path / "journal", HubOptions(binds=[f"ipc://{folder}/missing/hub"]))
    assert error.value.hint == "make the folder of the socket"


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
