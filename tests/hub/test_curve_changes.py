"""Keys that change while clients are connected: invitations, revoked and rotated keys, changed access files."""

import os
from pathlib import Path

from fabric.access.keys import make_pair
from fabric.hub.hub_access import SPARE_CONNECTIONS
from fabric_protocol import block as b
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from tests.hub.curve_kit import ROLES, Keyed, access_text, keyed
from tests.hub.kit import Talker, eventually


def refused(peer: Talker, op: str, **fields: object) -> Code:
    rid = peer.next_rid()
    peer.send(m.Admin(rid, {"op": op, **fields}))
    return peer.refused(rid)


def is_cut(hub: Keyed, open_before: int) -> None:
    connections = hub.hub._socket.connections
    eventually(lambda: connections.open < open_before, "the connection is cut")


def test_a_guest_joins_by_an_invitation(tmp_path: Path) -> None:
    with keyed(tmp_path) as hub:
        pair = make_pair()
        assert hub.refusal(pair) == ("HANDSHAKE_FAILED_AUTH", 400)
        code = hub.admin.admin("keys.invite", name="billing", role="client", ttl_ms=600_000)["code"]
        guest = hub.talker(pair)
        guest.hello(enrol=True)
        rid = guest.next_rid()
        guest.send(m.Publish(rid, 0, 0, b.encode("t", [b"x"])))
        assert guest.refused(rid) in (Code.FORBIDDEN, Code.AUTH_FAILED)
        assert guest.admin("keys.enrol", code=code)["principal"] == "billing"
        client = hub.talker(pair)
        client.hello()
        assert client.info("me")["principal"] == "billing"
        assert client.publish("t", b"x") == 1


def test_one_of_two_guests_gets_the_name(tmp_path: Path) -> None:
    with keyed(tmp_path) as hub:
        hub.admin.admin("keys.invite", name="other", role="client", ttl_ms=600_000)  # keeps the door open for both
        code = hub.admin.admin("keys.invite", name="billing", role="client", ttl_ms=600_000)["code"]
        guests = [hub.talker(make_pair()) for _ in range(2)]
        for guest in guests:
            guest.hello(enrol=True)
        for guest in guests:
            guest.send(m.Admin(1, {"op": "keys.enrol", "code": code}))
        answers = [guest.receive() for guest in guests]
        assert sorted(type(answer).__name__ for answer in answers) == ["Err", "Ok"]
        assert [answer.code for answer in answers if isinstance(answer, m.Err)] == [Code.AUTH_FAILED]


def test_guesses_are_slowed_down_over_all_connections_of_an_address(tmp_path: Path) -> None:
    with keyed(tmp_path) as hub:
        hub.admin.admin("keys.invite", name="billing", role="client", ttl_ms=600_000)
        codes = []
        for _ in range(4):
            guest = hub.talker(make_pair())
            guest.hello(enrol=True)
            codes += [refused(guest, "keys.enrol", code=f"guess{n}") for n in range(2)]
        assert codes == [Code.AUTH_FAILED] * 5 + [Code.BUSY] * 3


def test_guests_are_cut_when_the_last_invitation_expires(tmp_path: Path) -> None:
    with keyed(tmp_path) as hub:
        hub.admin.admin("keys.invite", name="billing", role="client", ttl_ms=1_000)
        pair = make_pair()
        guest = hub.talker(pair)
        guest.hello(enrol=True)
        assert guest.until(m.Notice).kind == "kicked"
        eventually(lambda: hub.hub._socket.connections.open == 1, "the guest is cut")
        assert hub.refusal(make_pair()) == ("HANDSHAKE_FAILED_AUTH", 400)


def test_a_revoked_key_loses_its_session_and_its_connection(tmp_path: Path) -> None:
    with keyed(tmp_path) as hub:
        client, pair = hub.joined()
        client.publish("t", b"x")
        count = hub.hub._socket.connections.open
        hub.admin.admin("keys.revoke", name="billing")
        rid = client.next_rid()
        client.send(m.Publish(rid, 0, 0, b.encode("t", [b"late"])))
        assert client.until(m.Notice).kind == "kicked"
        is_cut(hub, count)
        assert hub.refusal(pair) == ("HANDSHAKE_FAILED_AUTH", 400)
        assert hub.admin.info("hub")["last_seq"] == 1


def test_a_revoked_key_that_floods_publishes_nothing_more(tmp_path: Path) -> None:
    with keyed(tmp_path) as hub:
        client, _ = hub.joined()
        count = hub.hub._socket.connections.open
        for rid in range(1000, 1500):  # more than the window, so some are refused
            client.send(m.Publish(rid, 0, 0, b.encode("t", [b"x"])))
        hub.admin.admin("keys.revoke", name="billing")
        for rid in range(2000, 2100):
            client.send(m.Publish(rid, 0, 0, b.encode("late", [b"x"])))
        while not isinstance(said := client.receive(), m.Notice):
            assert said is not None
        assert said.kind == "kicked"
        is_cut(hub, count)
        assert [row["topic"] for row in hub.admin.info("topics")["topics"]] in ([], ["t"])


def test_a_rotated_key_is_answered_then_cut(tmp_path: Path) -> None:
    with keyed(tmp_path) as hub:
        client, old = hub.joined()
        twin = hub.talker(old)
        twin.hello()
        new = make_pair()
        assert client.admin("keys.rotate", key=new.public)["before"] == old.public
        assert client.until(m.Notice).kind == "kicked"
        assert twin.until(m.Notice).kind == "kicked"
        assert hub.refusal(old) == ("HANDSHAKE_FAILED_AUTH", 400)
        again = hub.talker(new)
        again.hello()
        assert again.info("me")["principal"] == "billing"


def test_a_key_that_leaves_the_access_file_is_cut(tmp_path: Path) -> None:
    first, second = make_pair(), make_pair()
    with keyed(tmp_path, text=access_text(billing=first.public, shop=second.public)) as hub:
        clients = [hub.talker(first), hub.talker(second)]
        for client in clients:
            client.hello(hb_ms=60_000, ttl_ms=600_000)
        (tmp_path / "access.toml").write_text(access_text(shop=second.public))
        assert clients[0].until(m.Notice).kind == "kicked"
        clients[1].still_served()
        assert hub.refusal(first) == ("HANDSHAKE_FAILED_AUTH", 400)


def test_a_key_that_moves_to_another_principal_is_cut(tmp_path: Path) -> None:
    pair = make_pair()
    with keyed(tmp_path, text=access_text(billing=pair.public)) as hub:
        client = hub.talker(pair)
        client.hello(hb_ms=60_000, ttl_ms=600_000)
        (tmp_path / "access.toml").write_text(access_text(shop=pair.public))
        assert client.until(m.Notice).kind == "kicked"
        again = hub.talker(pair)
        again.hello()
        assert again.info("me")["principal"] == "shop"


def test_a_key_added_to_the_access_file_gets_in(tmp_path: Path) -> None:
    pair = make_pair()
    with keyed(tmp_path) as hub:
        assert hub.refusal(pair) == ("HANDSHAKE_FAILED_AUTH", 400)
        (tmp_path / "access.toml").write_text(access_text(billing=pair.public))
        eventually(lambda: "billing" in hub.access.book.roles(), "the file is read")
        eventually(lambda: hub.refusal(pair) == ("HANDSHAKE_SUCCEEDED", 0), "the key is known")


def test_a_broken_access_file_keeps_rights_and_tells_health(tmp_path: Path) -> None:
    pair = make_pair()
    with keyed(tmp_path, text=access_text(billing=pair.public)) as hub:
        client = hub.talker(pair)
        client.hello(hb_ms=60_000, ttl_ms=600_000)
        (tmp_path / "access.toml").write_text(ROLES + "[principal.billing\n")
        eventually(lambda: hub.admin.info("health")["health"] == "DEGRADED", "health tells")
        reason = hub.admin.info("health")["reasons"][0]
        assert reason["code"] == "access"
        assert "access.toml" in reason["text"]
        assert "line" in reason["text"]
        assert client.publish("t", b"x") == 1
        os.unlink(tmp_path / "access.toml")
        eventually(lambda: "vanished" in hub.admin.info("health")["reasons"][0]["text"], "health tells")
        assert client.publish("t", b"x") == 2
        (tmp_path / "access.toml").write_text(access_text(billing=pair.public))
        eventually(lambda: hub.admin.info("health")["health"] == "HEALTHY", "all is well")


def test_identities_survive_a_restored_router(tmp_path: Path) -> None:
    with keyed(tmp_path) as hub:
        client, _ = hub.joined()

        def fail(now: float) -> None:
            raise AssertionError("a fault")

        hub.hub._router.tick = fail  # type: ignore[method-assign]
        assert client.until(m.Err).code == Code.NO_SESSION
        client.hello(hb_ms=60_000)
        assert client.info("me")["principal"] == "billing"


def test_a_guest_that_has_no_session_is_not_heard_any_more(tmp_path: Path) -> None:
    with keyed(tmp_path) as hub:
        hub.admin.admin("keys.invite", name="billing", role="client", ttl_ms=600_000)
        guest, connections = hub.talker(make_pair()), hub.hub._socket.connections
        for rid in range(1, 200):
            guest.send(m.Ping(rid))
        assert guest.until(m.Err).code == Code.NO_SESSION
        accepted = connections.accepted
        eventually(lambda: connections.accepted > accepted, "it was cut, and connects again")
        assert hub.hub.counters["refused_no_session"] == 1
        assert not hub.access.turned_away
        guest.hello(enrol=True)
        guest.still_served()


def test_a_principal_has_not_many_more_connections_than_sessions(tmp_path: Path) -> None:
    pair = make_pair()
    text = access_text(billing=pair.public).replace("[role.reader]", "limits = { sessions = 1 }\n[role.reader]")
    with keyed(tmp_path, text=text) as hub:
        client = hub.talker(pair)
        client.hello(hb_ms=60_000, ttl_ms=600_000)
        others = [hub.talker(pair) for _ in range(2 + SPARE_CONNECTIONS)]
        for other in others:
            for rid in range(1, 20):
                other.send(m.Ping(rid))
            assert other.until(m.Err).code == Code.NO_SESSION
        eventually(
            lambda: hub.hub.counters["refused_no_session"] == 19 * (len(others) - 1) + 1, "the last is turned away"
        )
        client.still_served()


def test_connections_of_guests_are_cut_before_those_of_clients(tmp_path: Path) -> None:
    with keyed(tmp_path) as hub:
        hub.admin.admin("keys.invite", name="other", role="client", ttl_ms=600_000)
        hub.talker(make_pair()).hello(enrol=True)
        hub.joined()
        connections = hub.hub._socket.connections
        names = {descriptor: connections.identity_of(peer).name for descriptor, peer in connections.peers()}
        assert [names[descriptor] for descriptor in connections.excess] == ["?", "billing", "local"]
