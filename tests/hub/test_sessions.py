"""Heartbeats, lost sessions and resumes over real connections; and the level `received`."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fabric.hub import Hub, HubOptions
from fabric_protocol import block as b
from fabric_protocol import messages as m
from fabric_protocol.messages import Level
from tests.hub.kit import Talker, eventually, talker


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(tmp_path / "journal", HubOptions(binds=[f"inproc://{uuid.uuid4()}"], drain_s=0)) as hub:
        yield hub


@pytest.fixture
def peers(hub: Hub) -> Iterator[list[Talker]]:
    """Closed in the end: the hub's own context waits for all its sockets."""
    made: list[Talker] = []
    yield made
    for peer in made:
        peer._socket.close()


def test_silent_session_is_suspected_and_then_lost(hub: Hub, peers: list[Talker]) -> None:
    watcher, quiet = talker(hub.context, hub.binds[0]), talker(hub.context, hub.binds[0], hb_ms=200, ttl_ms=2000)
    peers += [watcher, quiet]
    quiet.subscribe("t", group="g", lease_ms=600_000)
    watcher.publish("t", b"1")
    assert quiet.take(1) == [(1, b"1")]

    def state() -> list[bool]:
        return sorted(bool(s["suspect"]) for s in watcher.info("sessions")["sessions"])

    eventually(lambda: state() == [False, True], "suspected")
    watcher.publish("t", b"2")
    eventually(lambda: state() == [False], "lost")
    assert quiet.receive(0) is None, "a suspect is handed nothing"
    watcher.subscribe(group="g")
    assert {body for _, body in watcher.take(2)} == {b"1", b"2"}
    quiet.send(m.Ping(9))
    assert quiet.until(m.Err, 9).code == 201


def test_pings_keep_a_session(hub: Hub, peers: list[Talker]) -> None:
    watcher, alive = talker(hub.context, hub.binds[0]), talker(hub.context, hub.binds[0], hb_ms=200, ttl_ms=1000)
    gone = talker(hub.context, hub.binds[0], hb_ms=200, ttl_ms=1000)
    peers += [watcher, alive, gone]

    def one_is_lost() -> bool:
        alive.still_served()
        return len(watcher.info("sessions")["sessions"]) == 2

    eventually(one_is_lost, "the silent one is lost")
    alive.still_served()


def test_resume_over_a_new_connection(hub: Hub, peers: list[Talker]) -> None:
    first = Talker(hub.context, hub.binds[0])
    peers.append(first)
    session = first.hello(producer={"name": "p"}).fields
    first.subscribe("t", group="g")
    first.publish("t", b"1", pseq=1)
    assert first.take(1) == [(1, b"1")]
    first.publish("t", b"2", pseq=2)
    first.until(m.Deliver)  # arrived, but the client says it has not seen it
    first._socket.close()

    second = Talker(hub.context, hub.binds[0])
    peers.append(second)
    resume = {"session": session["session"], "subs": [[1, 1]]}
    producer = {"name": "p", "epoch": session["producer"]["epoch"]}
    welcome = second.hello(resume=resume, producer=producer).fields
    assert (welcome["resumed"], welcome["subs"], welcome["producer"]["last_pseq"]) == (True, [1], 2)
    assert second.take(1) == [(2, b"2")]
    assert second.publish("t", b"2", pseq=2) == 2, "a duplicate is answered with its first seq"
    assert second.publish("t", b"3", pseq=3) == 3
    assert second.take(1) == [(3, b"3")]
    assert second.ack(1, 3) == {"applied": 3, "stale": []}


def test_what_a_lost_connection_held_goes_to_another_member_after_its_ttl(hub: Hub, peers: list[Talker]) -> None:
    lost, other = talker(hub.context, hub.binds[0], hb_ms=200, ttl_ms=1000), talker(hub.context, hub.binds[0])
    peers += [lost, other]
    lost.subscribe("t", group="g", lease_ms=600_000)
    other.publish("t", b"1")
    assert lost.take(1) == [(1, b"1")]
    lost._socket.close()
    other.subscribe(group="g")
    delivery = other.until(m.Deliver)
    assert delivery.attempt == 2


def test_level_received_is_confirmed_and_reaches_the_disk_all_the_same(hub: Hub, peers: list[Talker]) -> None:
    peer = talker(hub.context, hub.binds[0])
    peers.append(peer)
    peer.subscribe("t", group="safe", chan=1)
    peer.subscribe("t", group="hasty", chan=2, level="received")
    peer.send(m.Publish(5, 0, Level.RECEIVED, b.encode("t", [b"1"])))
    confirm = peer.until(m.PubOk)
    assert (confirm.level, confirm.confirms) == (Level.RECEIVED, ((5, 1, 1, 0),))
    assert sorted(peer.until(m.Deliver).chan for _ in range(2)) == [1, 2]
    assert peer.publish("t", b"2") == 2
    assert sorted(peer.until(m.Deliver).chan for _ in range(2)) == [1, 2]
    for chan in (1, 2):
        assert peer.ack(1, 2, chan=chan) == {"applied": 2, "stale": []}
    assert peer.info("hub")["last_seq"] == 2
