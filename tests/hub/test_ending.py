"""How a hub ends: drained by a signal, forced by a second one, or by a journal that fails."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from fabric.hub.serve import EXIT_STORAGE
from fabric.journal.journal import Journal
from fabric.router.publish.producers import WINDOW_BLOCKS
from fabric_protocol import block as b
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from tests.hub.kit import Child, bodies_on_disk, sockets, talker

LONG_S = 600.0


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    with sockets() as folder, Child(tmp_path, folder) as child:
        yield child


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


def test_sigterm_drains(child: Child, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    child.start(drain_s=LONG_S)
    with talker(context, child.url) as producer, talker(context, child.url) as consumer:
        consumer.subscribe("t", group="g", credit=3)
        producer.publish("t", b"1", b"2", b"3", b"4")
        assert len(consumer.take(3)) == 3
        child.signal(signal.SIGTERM)
        assert producer.until(m.Notice).kind == "drain"
        assert consumer.until(m.Notice).kind == "drain"
        producer.send(m.Publish(77, 0, 0, b.encode("t", [b"too late"])))
        error = producer.until(m.Err, 77)
        assert error.code == Code.SHUTTING_DOWN
        assert error.fields["retry_ms"] > 0
        consumer.send(m.Credit(1, 100, 1 << 40))  # nothing new is handed out any more
        assert consumer.ack(1, 2) == {"applied": 2, "stale": []}
        assert child.process.poll() is None, "an ack is outstanding"
        assert consumer.ack(3, 3) == {"applied": 1, "stale": []}
        assert child.wait() == 0
        assert consumer.receive(0) is None
    journal = Journal.open(child.journal, create=False)
    state = journal.load()
    journal.close()
    assert state.was_clean
    assert [(g.name, g.cursor, g.open) for g in state.groups] == [("g", 4, ())]
    assert bodies_on_disk(child.journal) == [b"1", b"2", b"3", b"4"]


def test_second_signal_does_not_wait(child: Child, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    child.start(drain_s=LONG_S)
    with talker(context, child.url) as peer:
        peer.subscribe("t", group="g")
        peer.publish("t", b"1", b"2")
        peer.take(2)
        peer.ack(1, 1)
        child.signal(signal.SIGTERM)
        assert peer.until(m.Notice).kind == "drain"
        peer.still_served()
        assert child.process.poll() is None
        child.signal(signal.SIGINT)
        assert child.wait() == 0
    child.start()
    with talker(context, child.url) as peer:
        peer.subscribe(group="g")
        assert peer.until(m.Deliver).attempt == 2
        assert peer.info("groups")["groups"][0]["floor"] == 1


def test_groups_that_have_read_nothing_of_theirs_keep_their_place(
    child: Child, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    """A narrow group has nothing to ack, but the journal behind it need not be searched again."""
    child.start()
    with talker(context, child.url) as peer:
        peer.subscribe("rare", group="g")
        for _ in range(5):
            peer.publish("common", b"x", b"y")
        child.signal(signal.SIGTERM)
        assert child.wait() == 0
    journal = Journal.open(child.journal, create=False)
    groups = journal.load().groups
    journal.close()
    assert [(g.name, g.cursor) for g in groups] == [("g", 11)]


def test_failing_journal_ends_the_hub_and_nothing_false_was_confirmed(
    child: Child, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    """The data file may not grow beyond a limit, so at some point a commit fails."""
    child.start(file_bytes_max=4 << 20)
    confirmed: dict[int, bytes] = {}
    with talker(context, child.url) as peer:
        for number in range(1, 1000):
            body = b"%d " % number + bytes(100_000)
            peer.send(m.Publish(number, 0, 0, b.encode("t", [body])))
            while child.process.poll() is None and number > len(confirmed):
                message = peer.receive(0.05)
                if isinstance(message, m.PubOk):
                    for rid, seq, stored, *_ in message.confirms:
                        assert (rid, stored) == (number, 1)
                        confirmed[seq] = body
            if child.process.poll() is not None:
                break
        assert child.wait() == EXIT_STORAGE
        while (message := peer.receive(0)) is not None:  # last words that were on their way
            if isinstance(message, m.PubOk):
                confirmed |= {seq: body for _, seq, *_ in message.confirms}
    assert 10 < len(confirmed) < 100
    assert "journal failed" in child.errors()
    child.start()
    with talker(context, child.url) as peer:
        peer.subscribe("t", group="g")
        got = dict(peer.take(len(confirmed)))
        assert got == confirmed
        assert peer.publish("t", b"goes on") > len(confirmed)


def test_start_after_a_kill_in_the_midst_of_commits(child: Child, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    """Again and again, with a window of publishes under way each time."""
    confirmed: dict[int, bytes] = {}
    for life in range(5):
        child.start()
        with talker(context, child.url) as peer:
            assert peer.info("hub")["last_seq"] >= max(confirmed, default=0)
            bodies = {rid: b"%d.%d" % (life, rid) for rid in range(1, WINDOW_BLOCKS + 1)}
            for rid, body in bodies.items():
                peer.send(m.Publish(rid, 0, 0, b.encode("t", [body])))
            for rid, seq, *_ in peer.until(m.PubOk).confirms:
                assert seq not in confirmed
                confirmed[seq] = bodies[rid]
            child.kill()
            while (message := peer.receive(0)) is not None:
                if isinstance(message, m.PubOk):
                    confirmed |= {seq: bodies[rid] for rid, seq, *_ in message.confirms}
    stored = dict(enumerate(bodies_on_disk(child.journal), 1))
    assert confirmed.items() <= stored.items()


def test_quota_refuses_publishes_and_not_acks(child: Child, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    child.start(limits={"quota_bytes": 1 << 20})
    with talker(context, child.url) as peer:
        peer.subscribe("t", group="g", lease_ms=600_000)
        stored, answer = 0, None
        for number in range(1, 5000):  # far more than fits; where exactly it ends is a matter of time
            peer.send(m.Publish(number, 0, 0, b.encode("t", [bytes(64 << 10)])))
            answer = peer.receive()
            while isinstance(answer, m.Deliver):
                answer = peer.receive()
            if isinstance(answer, m.Err):
                break
            assert isinstance(answer, m.PubOk)
            stored += 1
        assert isinstance(answer, m.Err), "it was never full"
        assert answer.code == Code.DISK_FULL
        assert answer.fields["retry_ms"] > 0
        assert "quota" in answer.text
        assert peer.ack(1, stored) == {"applied": stored, "stale": []}
        assert "quota" in peer.info("hub")["refusing"]
        child.signal(signal.SIGTERM)
        assert child.wait() == 0
    assert len(bodies_on_disk(child.journal)) == stored < 5000


def test_disk_that_is_nearly_full_refuses_publishes_from_the_start(
    child: Child, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    child.start(limits={"disk_floor_bytes": 1 << 60})
    with talker(context, child.url) as peer:
        peer.send(m.Publish(5, 0, 0, b.encode("t", [b"x"])))
        error = peer.until(m.Err, 5)
        assert error.code == Code.DISK_FULL
        assert "free" in error.text
        assert peer.subscribe("t", group="g")["created"] is True
