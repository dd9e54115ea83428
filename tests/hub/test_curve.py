"""A hub with keys over real sockets: which clients get in, as which principal, and when the hub does not start."""

import contextlib
import logging
import os
import socket
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq

from fabric.access.keys import have_keys, make_pair
from fabric.hub import Hub, HubOptions
from fabric.hub.addresses import admin_address, is_network
from fabric.hub.connections import Connections
from fabric.hub.curve import IO_THREADS
from fabric.router.access.identity import REFUSED_NAME, Identity
from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.errors import Code, FabricError
from tests.hub.curve_kit import access_text, forged_hello, keyed
from tests.hub.hostile import Peer
from tests.hub.kit import Talker, eventually, sockets
from tests.patience import PATIENCE_S

# The second one if the other side has closed the connection before.
MISMATCH = ("HANDSHAKE_FAILED_PROTOCOL", "HANDSHAKE_FAILED_NO_DETAIL")


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


def test_a_known_key_is_its_principal(tmp_path: Path) -> None:
    pair = make_pair()
    with keyed(tmp_path, text=access_text(billing=pair.public)) as hub:
        client = hub.talker(pair)
        client.hello()
        me = client.info("me")
        assert (me["principal"], me["role"], me["key"]) == ("billing", "client", pair.public)
        assert client.publish("orders", b"x") == 1
        assert hub.admin.info("me")["principal"] == "local"


def test_an_unknown_key_is_refused_with_an_audit_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pair = make_pair()
    with caplog.at_level(logging.INFO, "fabric"), keyed(tmp_path) as hub:
        hub.admin.subscribe("$sys.audit")
        assert hub.refusal(pair) == ("HANDSHAKE_FAILED_AUTH", 400)
        assert b'"kind": "refused_key"' in hub.admin.take(1)[0][1]

        def audited() -> bool:
            lines = [record.fields for record in caplog.records if record.message == "audit"]  # type: ignore[attr-defined]
            return any(line.get("key") == f"{pair.public[:8]}…" and line["address"] == "127.0.0.1" for line in lines)

        eventually(audited, "the refused key is in the log")
        assert pair.public not in caplog.text


def test_a_client_without_a_key_and_one_of_another_hub_are_refused(tmp_path: Path) -> None:
    with keyed(tmp_path) as hub:
        hub.admin.subscribe("$sys.audit")
        assert hub.refusal(None)[0] in MISMATCH
        assert b'"kind": "refused_key"' in hub.admin.take(1)[0][1]
        pair = hub.joined()[1]
        silent = hub.talker(pair, hub_key=make_pair().public)
        silent.send(m.Hello(1, {"proto": 1}))
        eventually(lambda: b"trusts another key" in hub.admin.take(1)[0][1], "the audit has it")
        assert silent.receive(0.2) is None


def test_the_audit_of_a_client_without_a_key_has_its_address(tmp_path: Path) -> None:
    """The client waits until the hub knows the connection, and does not end it: so the hub finds the mistake first."""
    with keyed(tmp_path) as hub:
        hub.admin.subscribe("$sys.audit")
        port = int(hub.url.rpartition(":")[2])
        accepted = hub.hub._socket.connections.accepted
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S, ("127.0.0.2", 0)) as client:
            eventually(lambda: hub.hub._socket.connections.accepted > accepted, "the hub has the connection")
            client.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
            told = hub.admin.take(1)[0][1]
        assert b"a client without a key" in told
        assert b'"address": "127.0.0.2"' in told


def test_a_descriptor_that_is_used_again_gives_no_wrong_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, socket.create_server(("127.0.0.1", 0)) as door:
        connections = Connections(context, router)
        connections.identify = lambda peer, frame: Identity("", "", "")
        with socket.create_connection(door.getsockname()), door.accept()[0] as used_again:
            kinds = (zmq.EVENT_ACCEPTED, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_DISCONNECTED)
            events = [struct.pack("=HI", kind, used_again.fileno()) for kind in (*kinds, zmq.EVENT_ACCEPTED)]

            def receive(flags: int) -> list[bytes]:
                if not events:
                    raise zmq.Again
                return [events.pop(0), b""]

            with monkeypatch.context() as patched:
                patched.setattr(connections, "_monitor", SimpleNamespace(recv_multipart=receive))
                connections.read()
                events += [struct.pack("=HI", kind, used_again.fileno()) for kind in kinds[1:]]
                connections.read()
        assert [refusal.address for refusal in connections.refusals] == ["", "127.0.0.1"]
        connections.close()


def test_a_client_with_a_key_is_refused_at_a_plain_address(tmp_path: Path) -> None:
    with keyed(tmp_path) as hub:
        assert hub.refusal(hub.joined()[1], url=hub.access.admin_bind)[0] in MISMATCH


def test_plain_and_encrypted_addresses_at_once(tmp_path: Path) -> None:
    with sockets() as folder, keyed(tmp_path, "tcp://127.0.0.1:*", f"ipc://{folder}/a", "tcp://0.0.0.0:*") as hub:
        first, pair = hub.joined()
        tcp, plain, network = hub.hub.binds
        assert plain == f"ipc://{folder}/a"
        peers = [first, hub.admin, hub.talker(url=plain), hub.talker(pair, network.replace("0.0.0.0", "127.0.0.1"))]
        for peer in peers[2:]:
            peer.hello()
        for peer in peers:
            peer.subscribe("t", chan=9)
        for number, peer in enumerate(peers, 1):
            assert peer.publish("t", b"%d" % number) == number
        for peer in peers:
            assert [body for _, body in peer.take(4)] == [b"1", b"2", b"3", b"4"]
        for url in (tcp, network.replace("0.0.0.0", "127.0.0.1")):
            assert hub.refusal(make_pair(), url=url) == ("HANDSHAKE_FAILED_AUTH", 400)


def test_the_largest_frame_passes_an_encrypted_address(tmp_path: Path) -> None:
    with keyed(tmp_path) as hub:
        client, _ = hub.joined()
        count = hub.hub._socket.connections.open
        client.send_raw([b"\x01", bytes(wire.FRAME_BYTES_MAX)])
        assert client.until(m.Err).code == Code.BAD_META, "it was read"
        client.still_served()
        client.send_raw([b"\x01", bytes(wire.FRAME_BYTES_MAX + 1)])
        eventually(lambda: hub.hub._socket.connections.accepted > count + 1, "the connection was closed, and is new")


def test_the_routing_id_of_another_client_gives_nothing(tmp_path: Path) -> None:
    with keyed(tmp_path) as hub:
        client, _ = hub.joined()
        other = make_pair()
        hub.admin.admin("keys.create", name="shop", role="reader", key=other.public)
        assert hub.access is not None
        for routing_id in [*hub.hub._socket.connections.descriptors, b"chosen"]:
            keys = (other.public, other.secret, hub.key)
            # ZeroMQ does not take ids that begin with a zero byte.
            with contextlib.suppress(zmq.ZMQError), Peer(hub.context, hub.url, routing_id, keys) as thief:
                thief.send(m.Hello(1, {"proto": 1}))
                assert thief.receive(0.2) is None
        client.still_served()
        assert client.info("me")["principal"] == "billing"


def test_a_plain_client_cannot_claim_a_key(tmp_path: Path) -> None:
    """ZeroMQ passes a user id that a plain client has written into its own handshake."""
    pair = make_pair()
    text = access_text(boss=pair.public) + '[principal.local]\nrole = "reader"\n'
    with keyed(tmp_path, text=text) as hub, zmq.Context() as context:
        with context.socket(zmq.ROUTER) as plain:  # that the claim works at all
            port = plain.bind_to_random_port("tcp://127.0.0.1")
            with forged_hello(port, [b"x"], User_Id=pair.public):
                assert plain.poll(int(PATIENCE_S * 1000))
                assert plain.recv_multipart(copy=False)[0].get("User-Id") == pair.public
                frame = zmq.Frame(b"")
        identify = hub.access.identify
        assert identify(b"\0peer", frame).name == "local"

        class Claiming:
            def get(self, name: str) -> str:
                return pair.public if name == "User-Id" else "127.0.0.1"

        assert identify(b"\0peer", Claiming()) == (REFUSED_NAME, "", "127.0.0.1")  # type: ignore[arg-type]


def test_the_hub_ends_when_the_handler_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with keyed(tmp_path) as hub:
        hub.access.zap.close()
        eventually(lambda: hub.hub.failure is not None, "the hub ends")
        assert isinstance(hub.hub.failure, FabricError)
        assert "ZAP handler" in str(hub.hub.failure)
    assert "hub failed" in caplog.text


def test_a_hub_whose_self_test_fails_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fabric.hub.zap.ZapHandler._answer", lambda *_: (b"200", b"", b"everything"))
    options = HubOptions(binds=["tcp://0.0.0.0:*"])
    with pytest.raises(FabricError, match="it was let in"):
        Hub(tmp_path / "j", options)
    monkeypatch.undo()
    with Hub(tmp_path / "j", options):
        pass  # nothing is left that holds the journal or the socket


def test_two_hubs_with_keys_need_two_contexts(tmp_path: Path) -> None:
    with zmq.Context() as context:
        options = HubOptions(binds=["tcp://127.0.0.1:*"], access=tmp_path / "access.toml", drain_s=0.1)
        (tmp_path / "access.toml").write_text(access_text())
        with Hub(tmp_path / "a", options, context):
            with pytest.raises(FabricError, match="another hub with keys") as error:
                Hub(tmp_path / "b", options, context)
            assert error.value.hint
            with Hub(tmp_path / "c", options):
                pass


def test_keys_are_used_again_on_loopback(tmp_path: Path) -> None:
    assert not have_keys(tmp_path / "j")
    with Hub(tmp_path / "j", HubOptions(binds=["tcp://127.0.0.1:*"])) as plain:
        assert plain.access is None
        assert not (tmp_path / "j/keys").exists()
    with Hub(tmp_path / "j", HubOptions(binds=["tcp://0.0.0.0:*"])) as network:
        assert network.access is not None
        assert network.access.book.is_new
        key = network.access.book.hub_key
        assert network.context.get(zmq.IO_THREADS) == IO_THREADS
    with Hub(tmp_path / "j", HubOptions(binds=["tcp://127.0.0.1:*"])) as again, zmq.Context() as context:
        assert again.access is not None
        assert again.access.book.hub_key == key
        with Talker(context, again.binds[0]) as peer:
            peer.send(m.Hello(1, {"proto": 1}))
            assert peer.receive(0.3) is None
        with Talker(context, again.access.admin_bind) as owner:
            owner.hello()


def test_the_access_file_may_be_given_as_text(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("")
    options = HubOptions(binds=["tcp://127.0.0.1:*"], access=str(tmp_path / "a.toml"))
    with Hub(tmp_path / "j", options) as hub:
        assert hub.access is not None
        assert hub.access.book.path == tmp_path / "a.toml"


def test_an_open_data_folder_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for mode, told in ((0o777, 1), (0o700, 0)):
        caplog.clear()
        tmp_path.chmod(mode)
        with Hub(tmp_path, HubOptions(binds=["tcp://0.0.0.0:*"])):
            pass
        assert [record.message for record in caplog.records].count("data folder open") == told


def test_a_broken_access_file_is_told_before_the_hub_listens(tmp_path: Path) -> None:
    (tmp_path / "access.toml").write_text("[role.client]\npubish = []\n")
    with pytest.raises(FabricError, match="'pubish' is not one of") as error:
        Hub(tmp_path / "j", HubOptions(binds=["tcp://127.0.0.1:*"], access=tmp_path / "access.toml"))
    assert error.value.hint == "did you mean publish?"
    assert not have_keys(tmp_path / "j"), "with keys, the next hub here would encrypt"


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("url", ["tcp://[::]:*", "tcp://[::1]:*"])
def test_addresses_of_ipv6_are_encrypted_as_well(tmp_path: Path, url: str) -> None:
    with keyed(tmp_path, url) as hub:
        reached = hub.url.replace("[::]", "127.0.0.1")
        if "[" not in reached:  # the client needs no IPv6
            assert hub.refusal(make_pair(), url=reached) == ("HANDSHAKE_FAILED_AUTH", 400)
            assert hub.refusal(hub.joined(url=reached)[1], url=reached) == ("HANDSHAKE_SUCCEEDED", 0)


@pytest.mark.parametrize(
    ("url", "network"),
    [
        *(
            (url, True)
            for url in ("tcp://0.0.0.0:1", "tcp://*:1", "tcp://[::]:1", "tcp://10.0.0.1:*", "tcp://[fe80::1]:1")
        ),
        *((url, False) for url in ("tcp://127.0.0.1:1", "tcp://[::1]:1", "tcp://localhost:1", "ipc://x", "inproc://x")),
    ],
)
def test_addresses_of_networks_need_keys(url: str, network: bool) -> None:
    assert is_network(url) is network


def test_the_admin_socket_has_a_short_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert admin_address(tmp_path) == f"ipc://{tmp_path}/hub.sock"
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    assert admin_address(deep) == ""
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep.parent)
    assert admin_address(deep) == f"ipc://{'e' * 60}/hub.sock"


def test_a_data_folder_whose_name_is_no_text_has_no_admin_socket(tmp_path: Path) -> None:
    data = tmp_path / os.fsdecode(b"\xff")
    with Hub(data, HubOptions(binds=["tcp://0.0.0.0:*"])) as hub:
        assert hub.access is not None
        assert hub.access.admin_bind == ""


def test_an_unknown_key_is_not_answered_at_all(tmp_path: Path) -> None:
    with keyed(tmp_path) as hub:
        stranger = hub.talker(make_pair())
        stranger.send(m.Hello(1, {"proto": 1}))
        assert stranger.receive(0.3) is None
        assert hub.hub.counters["sessions_opened"] == 1


def test_a_session_is_not_resumed_with_another_key(tmp_path: Path) -> None:
    with keyed(tmp_path) as hub:
        pair = hub.joined()[1]
        client = hub.talker(pair)
        session = client.hello(ttl_ms=600_000).fields["session"]
        thief = make_pair()
        hub.admin.admin("keys.create", name="shop", role="client", key=thief.public)
        other = hub.talker(thief)
        other.send(m.Hello(5, {"proto": 1, "resume": {"session": session, "subs": []}}))
        answer = other.receive()
        assert not (isinstance(answer, m.Welcome) and answer.fields["resumed"]), "identity of sessions"
        assert not isinstance(answer, m.Err) or answer.code in (Code.FORBIDDEN, Code.AUTH_FAILED, Code.NO_SESSION)
