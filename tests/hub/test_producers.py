"""Claims of a producer's name, with a hub that is killed: a confirmed publish is stored, from whichever session."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from fabric_protocol import block as b
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from tests.hub.kit import Child, Talker, bodies_on_disk, sockets


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    with sockets() as folder, Child(tmp_path, folder) as child:
        yield child


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


def said(peer: Talker, pseq: int, body: bytes) -> int:
    rid = peer.next_rid()
    peer.send(m.Publish(rid, pseq, 0, b.encode("t", [body])))
    return rid


def test_a_claim_outlives_kill_9_though_nothing_was_published_under_it(
    child: Child, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    """One session publishes under a name; a newer one claims it and publishes; the hub dies before that is stored; the
    older session is back first and would publish; then the newer one sends its message again."""
    child.start()
    with Talker(context, child.url) as older, Talker(context, child.url) as newer:
        old = older.hello(producer={"name": "p"}).fields["producer"]["epoch"]
        older.publish("t", b"from the older", pseq=1)
        welcome = newer.hello(producer={"name": "p"}).fields["producer"]
        assert welcome["last_pseq"] == 1
        child.kill()  # the moment WELCOME is here: what is published now is never stored by this hub
        said(newer, 2, b"from the newer")
    child.start()
    with Talker(context, child.url) as older, Talker(context, child.url) as newer:
        older.send(m.Hello(1, {"proto": 1, "producer": {"name": "p", "epoch": old}}))
        assert older.refused(1) is Code.FENCED
        again = newer.hello(producer={"name": "p", "epoch": welcome["epoch"]}).fields["producer"]
        assert (again["epoch"], again["last_pseq"]) == (welcome["epoch"], 1)
        assert newer.publish("t", b"from the newer", pseq=2) == 2
    child.kill()
    assert bodies_on_disk(child.journal) == [b"from the older", b"from the newer"]


def test_a_resend_after_kill_9_is_compared_with_what_was_stored(
    child: Child, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    child.start()
    with Talker(context, child.url) as peer:
        epoch = peer.hello(producer={"name": "p"}).fields["producer"]["epoch"]
        seq = peer.publish("t", b"stored", pseq=1)
        child.kill()
    child.start()
    with Talker(context, child.url) as peer:
        peer.hello(producer={"name": "p", "epoch": epoch})
        assert peer.refused(said(peer, 1, b"another")) is Code.PSEQ_TAKEN
        assert peer.publish("t", b"stored", pseq=1) == seq
    child.kill()
    assert bodies_on_disk(child.journal) == [b"stored"]
