"""Encrypted connections and refused handshakes, over real sockets: what the client says, and when it comes back."""

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fabric_client
from fabric_client import AuthFailed, ConnectionLost, Credentials, FabricError
from fabric_client.core import reconnect
from fabric_client.io import dealer, greeting
from fabric_client.io.dealer import Ending
from fabric_client.io.refused import Refused
from fabric_client.keys import new_pair
from fabric_protocol import messages as m
from tests.clients.curve_hub import CurveServed
from tests.clients.model_hub import Served
from tests.clients.real_hub import eventually
from tests.patience import PATIENCE_S


@pytest.fixture
def keyed() -> Iterator[CurveServed]:
    """A model hub that wants keys."""
    served = CurveServed()
    yield served
    served.close()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused clients try again soon."""
    monkeypatch.setattr(reconnect, "REFUSED_S", 0.1)
    monkeypatch.setattr(reconnect, "KEYED_S", (0.01, 0.05, 0.1))


def connect_blocking(*args: Any, **how: Any) -> None:
    with fabric_client.connect(*args, **how) as fab:
        assert fab.publish("t", b"x").seq > 0


def connect_asyncio(*args: Any, **how: Any) -> None:
    async def main() -> None:
        async with fabric_client.aconnect(*args, **how) as fab:
            assert (await fab.publish("t", b"x")).seq > 0

    asyncio.run(main())


Connect = Callable[..., None]
both = pytest.mark.parametrize("connect", [connect_blocking, connect_asyncio])


def refusal(connect: Connect, kind: type[FabricError], *args: Any, **how: Any) -> FabricError:
    with pytest.raises(kind) as caught:
        connect(*args, **how)
    assert type(caught.value) is kind
    return caught.value


@both
def test_a_known_key_is_let_in(keyed: CurveServed, connect: Connect, tmp_path: Path) -> None:
    found = keyed.credentials()
    connect(credentials=found, timeout=PATIENCE_S)
    found.save(tmp_path / "x.cred")
    connect(credentials=tmp_path / "x.cred", timeout=PATIENCE_S)
    connect(credentials=str(tmp_path / "x.cred"), timeout=PATIENCE_S)
    assert len(keyed.hub.journal) == 3


@both
def test_an_unknown_key_is_told_at_once(keyed: CurveServed, connect: Connect) -> None:
    found = keyed.credentials(known=False)
    error = refusal(connect, AuthFailed, credentials=found, timeout=PATIENCE_S)
    assert str(error) == f"the key of this client is not known to the hub at {keyed.url}"
    assert "fabric join" in error.hint
    assert found.secret not in str(error) + error.hint + repr(error)


@both
def test_an_unknown_key_is_told_at_once_while_an_invitation_is_open(keyed: CurveServed, connect: Connect) -> None:
    keyed.invite()
    error = refusal(connect, AuthFailed, credentials=keyed.credentials(known=False), timeout=PATIENCE_S)
    assert "not known to the hub" in str(error)
    assert "fabric join" in error.hint


@both
def test_a_plain_client_is_told_that_the_hub_wants_a_key(keyed: CurveServed, connect: Connect) -> None:
    error = refusal(connect, AuthFailed, keyed.url, timeout=PATIENCE_S)
    assert f"the hub at {keyed.url} wants a key" in str(error)
    assert "fabric join" in error.hint


@both
def test_what_the_greeting_tells_meanwhile_is_in_the_error(
    keyed: CurveServed, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub may end the handshake first, and its greeting may arrive while the client looks at this failure."""
    guesses = iter([Ending.HANDSHAKE])
    monkeypatch.setattr(dealer, "_PROTOCOL_ENDINGS", dict.fromkeys(dealer._PROTOCOL_ENDINGS, Ending.HANDSHAKE))
    monkeypatch.setattr(Refused, "_guess", lambda *_: next(guesses, Ending.MISMATCH))
    error = refusal(connect, AuthFailed, keyed.url, timeout=PATIENCE_S)
    assert f"the hub at {keyed.url} wants a key" in str(error)


@both
def test_a_hub_without_encryption_is_not_used(served: Served, connect: Connect) -> None:
    found = Credentials(served.url, new_pair().public, secret=new_pair().secret)
    error = refusal(connect, AuthFailed, credentials=found, timeout=PATIENCE_S)
    assert str(error) == f"the hub at {served.url} has no encryption, and the credentials say that it must"
    assert served.hub.heard == [], "nothing was sent to it"


@both
def test_a_hub_with_another_key_is_not_trusted(
    keyed: CurveServed, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a handshake looks like that of a hub that is being stopped, so the client goes on until its timeout."""
    asked = threading.Event()
    mechanism = greeting.mechanism

    def ask(url: str) -> str:
        asked.set()
        return mechanism(url)

    monkeypatch.setattr(greeting, "mechanism", ask)
    found = keyed.credentials().replace(hub_key=new_pair().public)
    error = refusal(connect, ConnectionLost, credentials=found, timeout=2)
    assert asked.is_set()
    assert f"the hub at {keyed.url} is not the one that the credentials trust" in str(error)
    assert "no connection for 2 s" in str(error)
    assert "fabric join" in error.hint


@both
def test_a_hub_that_cannot_check_keys_yet_is_waited_for(keyed: CurveServed, connect: Connect) -> None:
    keyed.zap_status = "500"
    timer = threading.Timer(0.3, setattr, (keyed, "zap_status", "200"))
    timer.start()
    connect(credentials=keyed.credentials(), timeout=PATIENCE_S)
    timer.join()


def test_another_program_at_the_address_is_no_hub() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"tcp://127.0.0.1:{server.getsockname()[1]}"

        def answer() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)

        threading.Thread(target=answer, daemon=True).start()
        assert greeting.mechanism(url) == ""
        error = refusal(connect_blocking, ConnectionLost, url, timeout=1)
        assert "Fabric hub" in str(error) or "no hub" in str(error)
        server.shutdown(socket.SHUT_RDWR)


@both
def test_a_name_without_an_address_is_told(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_address(host: str, *_: object) -> list[object]:
        if host == "hub-1":
            raise socket.gaierror("Name or service not known")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    monkeypatch.setattr(greeting, "GREETING_S", PATIENCE_S)
    error = refusal(connect, ConnectionLost, "tcp://127.0.0.1:1,tcp://hub-1:7171", timeout=0.1)
    assert str(error).endswith("for 0.1 s: this machine finds no address of the name hub-1")
    assert "check the address" in error.hint


def test_the_greeting_names_the_mechanism(keyed: CurveServed, served: Served) -> None:
    assert (greeting.mechanism(keyed.url), greeting.mechanism(served.url)) == ("CURVE", "NULL")
    assert greeting.mechanism("tcp://127.0.0.1:1") == greeting.mechanism("ipc:///x") == ""
    assert greeting.mechanism("tcp://no such host:7171") == ""


def test_an_address_of_bytes_that_are_no_text_is_refused_in_words() -> None:
    """A variable with another encoding."""
    with pytest.raises(FabricError, match="not a usable address"):
        fabric_client.connect("tcp://h\udcff:1", timeout=1)


# Running clients.


def test_a_running_client_whose_key_was_forgotten_comes_back_when_it_is_enrolled(
    keyed: CurveServed, caplog: pytest.LogCaptureFixture
) -> None:
    found = keyed.credentials()
    with fabric_client.connect(credentials=found, timeout=PATIENCE_S) as fab:
        fab.publish("t", b"1")
        keyed.revoke()
        keyed.restart()
        fab.publish_nowait("t", b"2")
        eventually(lambda: "is not known to the hub" in caplog.text)
        with pytest.raises(ConnectionLost, match="is not known to the hub"):
            fab.publish("t", b"withdrawn", timeout=0.1)
        before = keyed.asked
        eventually(lambda: keyed.asked > before + 2)  # libzmq does not try again: the client does
        keyed.enrol(found)
        fab.flush(timeout=PATIENCE_S)
        assert [payload for _, payload in keyed.hub.journal] == [b"1", b"2"]
    assert caplog.text.count("no connection to the hub: the key of this client") == 1, "one line, not one per attempt"


def test_a_running_asyncio_client_comes_back_when_its_key_is_enrolled(keyed: CurveServed) -> None:
    found = keyed.credentials()

    async def main() -> None:
        async with fabric_client.aconnect(credentials=found, timeout=PATIENCE_S) as fab:
            await fab.publish("t", b"1")
            keyed.revoke()
            keyed.restart()
            before = keyed.asked
            while keyed.asked < before + 3:
                await asyncio.sleep(0.01)
            keyed.enrol(found)
            assert (await fab.publish("t", b"2", timeout=PATIENCE_S)).seq == 2

    asyncio.run(main())


def test_a_revoked_key_on_a_live_connection_keeps_what_was_not_confirmed(keyed: CurveServed) -> None:
    """The hub ends the session (NOTICE kicked) and refuses the next HELLO. Nothing is refused for good."""
    found = keyed.credentials()
    with fabric_client.connect(credentials=found, timeout=PATIENCE_S, heartbeat=0.2) as fab:
        fab.publish("t", b"1")
        with keyed.lock:
            (peer,) = keyed.hub.peers
            keyed.hub.known.clear()
            keyed.hub.peers.clear()
        keyed.tell(peer, m.Notice("kicked", {"reason": "the key was revoked"}))
        eventually(lambda: not fab.connected)
        fab.publish_nowait("t", b"2")
        with pytest.raises(ConnectionLost, match="not known to the hub"):
            fab.flush(timeout=0.2)
        keyed.enrol(found)
        fab.flush(timeout=PATIENCE_S)
        assert [payload for _, payload in keyed.hub.journal] == [b"1", b"2"]


@pytest.mark.parametrize("invited", [False, True])
def test_a_rotated_key_is_read_again_by_a_running_client(keyed: CurveServed, tmp_path: Path, invited: bool) -> None:
    if invited:  # then an unknown key passes the handshake, and HELLO is refused
        keyed.invite(name="another")
    path = tmp_path / "x.cred"
    found = keyed.credentials()
    found.save(path)
    with fabric_client.connect(credentials=path, timeout=PATIENCE_S) as fab:
        fab.publish("t", b"1")
        new = new_pair()
        keyed.revoke()
        keyed.credentials(new)
        found.replace(secret=new.secret).save(path)
        keyed.restart()
        assert fab.publish("t", b"2", timeout=PATIENCE_S).seq == 2


@both
def test_a_rotation_that_was_interrupted_stops_no_program(keyed: CurveServed, connect: Connect, tmp_path: Path) -> None:
    """The file has both keys, and the hub knows the new one already."""
    path, new = tmp_path / "x.cred", new_pair()
    keyed.credentials(known=False).replace(pending=new.secret).save(path)
    with pytest.raises(AuthFailed, match="not known to the hub"):
        connect(credentials=path, timeout=PATIENCE_S)
    keyed.credentials(new)
    connect(credentials=path, timeout=PATIENCE_S)


def test_a_lost_connection_with_keys_is_resumed(keyed: CurveServed) -> None:
    with fabric_client.connect(credentials=keyed.credentials(), timeout=PATIENCE_S) as fab:
        for number in range(3):
            keyed.restart()
            assert fab.publish("t", b"%d" % number, timeout=PATIENCE_S).seq == number + 1


def test_no_secret_is_logged(keyed: CurveServed, caplog: pytest.LogCaptureFixture) -> None:
    found = keyed.credentials()
    with caplog.at_level(logging.DEBUG), fabric_client.connect(credentials=found, timeout=PATIENCE_S) as fab:
        keyed.revoke()
        keyed.restart()
        eventually(lambda: "not known" in caplog.text)
        keyed.enrol(found)
        fab.publish("t", b"1", timeout=PATIENCE_S)
    assert found.secret not in caplog.text
