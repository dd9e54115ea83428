"""TXN over real sockets and a real journal: all of it is on disk or none of it, whenever the hub is killed."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import zmq

from fabric.journal.journal import Journal
from fabric_protocol import block as b
from fabric_protocol import messages as m
from fabric_protocol.block import Block
from fabric_protocol.errors import Code
from tests.hub.kit import Child, Talker, sockets, talker
from tests.patience import PATIENCE_S

ACK: Final = m.Verdict.ACK
COUNT: Final = 400
KILLS: Final = 4


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    with sockets() as folder, Child(tmp_path, folder) as child:
        yield child


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


def transact(peer: Talker, pseq: int, body: bytes, *verdicts: tuple[int, int, int, Any]) -> int:
    rid = peer.next_rid()
    peer.send(m.Transact(rid, pseq, ((1, verdicts),), b.encode("done", [body])))
    return rid


def test_consume_and_produce_in_one_commit(child: Child, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    child.start()
    with talker(context, child.url, producer={"name": "worker"}) as worker:
        worker.subscribe("raw", group="work")
        worker.publish("raw", b"1", b"2")
        worker.take(2)
        answer = worker.until(m.Ok, transact(worker, 1, b"made of 1", (ACK, 1, 1, None)))
        assert answer.fields == {"first_seq": 3, "stored": 1, "dups": 0, "applied": 1}
        again = worker.until(m.Ok, transact(worker, 1, b"made of 1", (ACK, 1, 1, None)))
        assert again.fields == {"first_seq": 3, "stored": 0, "dups": 1, "applied": 0}
        stale = worker.until(m.Err, transact(worker, 2, b"made of 1 again", (ACK, 1, 2, None)))
        assert (stale.code, stale.fields) == (Code.STALE, {"chan": 1, "ordinals": [[1, 1]]})
        assert worker.info("hub")["last_seq"] == 3
        assert worker.ack(2, 2)["applied"] == 1


class Killer(threading.Thread):
    """Kills the hub now and then and starts it again."""

    def __init__(self, child: Child) -> None:
        super().__init__(daemon=True)
        self._child = child
        self.enough = threading.Event()
        self.kills = 0

    def run(self) -> None:
        while self.kills < KILLS and not self.enough.wait(0.25):
            self._child.kill()
            self.kills += 1
            self._child.start()


def work(context: "zmq.Context[zmq.Socket[bytes]]", url: str, finished: set[bytes]) -> None:
    """Take from `raw`, make `done` of each, until the connection breaks or all is done."""
    with Talker(context, url) as worker:
        deadline = time.monotonic() + 3.0
        worker.send(m.Hello(1, {"proto": 1, "hb_ms": 1_000, "producer": {"name": "worker"}}))
        welcome = worker.receive(3.0)
        if not isinstance(welcome, m.Welcome):
            return
        pseq = welcome.fields["producer"]["last_pseq"]
        worker.send(m.Subscribe(1, 2, {"group": "work", "patterns": ["raw"], "credit": [1, 1 << 30]}))
        bodies: dict[int, bytes] = {}
        while len(finished) < COUNT:
            message = worker.receive(max(deadline - time.monotonic(), 0))
            if message is None or (isinstance(message, m.Err) and message.code == Code.NO_SESSION):
                return  # killed: another worker goes on
            if isinstance(message, m.Deliver):
                (body,) = Block(message.block).payloads()
                ordinal, pseq = message.first_ordinal, pseq + 1
                bodies[100 + ordinal] = body
                settles = ((1, ((int(ACK), ordinal, ordinal, None),)),)
                worker.send(m.Transact(100 + ordinal, pseq, settles, b.encode("done", [body])))
                worker.send(m.Credit(1, ordinal + 1, 1 << 30))
            elif isinstance(message, m.Ok) and message.rid > 100:
                finished.add(bodies.pop(message.rid))
                deadline = time.monotonic() + 3.0


def test_exactly_once_though_the_hub_is_killed(child: Child, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    """Each raw message makes exactly one done: work whose answer was lost is neither lost nor done twice."""
    child.start()
    raw = [b"%d" % i for i in range(COUNT)]
    with talker(context, child.url) as boss:
        boss.publish("raw", *raw)
    killer = Killer(child)
    killer.start()
    finished: set[bytes] = set()
    progress, until = (0, 0), time.monotonic() + PATIENCE_S
    while killer.is_alive() or _left(context, child.url):
        work(context, child.url, finished)
        if progress != (progress := (killer.kills, len(finished))):
            until = time.monotonic() + PATIENCE_S
        assert time.monotonic() < until, f"{len(finished)} are done and it does not go on"
    killer.join()
    child.kill()
    done = sorted(_done(child.journal), key=int)
    assert killer.kills == KILLS
    assert done == sorted(raw, key=int)
    assert finished <= set(done)


def _left(context: "zmq.Context[zmq.Socket[bytes]]", url: str) -> bool:
    """True if the group has messages left, or if the hub does not answer."""
    with Talker(context, url) as peer:
        peer.send(m.Hello(1, {"proto": 1}))
        if not isinstance(peer.receive(3.0), m.Welcome):
            return True
        floors = [int(row["floor"]) for row in peer.info("groups")["groups"] if row["group"] == "work"]
        return not floors or floors[0] < COUNT


def _done(path: Path) -> list[bytes]:
    journal = Journal.open(path, create=False)
    try:
        reader, seq, bodies = journal.reader(), 1, list[bytes]()
        while seq <= journal.last_seq:
            block = reader.block_at(seq)
            assert isinstance(block, Block)
            bodies += [body for t, body in zip(block.topic_names(), block.payloads(), strict=True) if t == "done"]
            seq = block.last_seq + 1
        return bodies
    finally:
        journal.close()
