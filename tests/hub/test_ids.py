"""Idempotency keys over real connections: a hub that was killed still has them."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from fabric.hub import Hub, HubOptions
from fabric_protocol import block as b
from fabric_protocol import messages as m
from tests.hub.kit import Child, Talker, bodies_on_disk, sockets, talker
from tests.seeds import seeded


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    with zmq.Context() as context:
        yield context


def hub_in(folder: Path) -> Hub:
    return Hub(folder / "journal", HubOptions(binds=[f"inproc://{uuid.uuid4()}"], drain_s=0))


def publish(peer: Talker, topic: str, *ids: bytes, pseq: int = 0) -> tuple[Any, ...]:
    """The row of the confirmation, without the rid."""
    rid = peer.next_rid()
    peer.send(m.Publish(rid, pseq, m.Level.JOURNALED, b.encode(topic, [b"body " + i for i in ids], ids=ids)))
    (row,) = peer.until(m.PubOk).confirms
    assert row[0] == rid
    return row[1:]


def test_keys_outlive_a_hub_that_is_killed(tmp_path: Path, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    with sockets() as folder, Child(tmp_path, folder) as hub:
        hub.start()
        with talker(context, hub.url) as peer:
            for at in range(0, 2000, 200):
                names = [b"%d" % i for i in range(at, at + 200)]
                assert publish(peer, "t", *names) == (at + 1, 200, 0)
            assert publish(peer, "t", b"17", b"new", b"1999", b"new") == (2001, 1, 3, ((0, 18), (2, 2000), (3, 2001)))
        for _ in range(2):
            hub.kill()
            hub.start()
            with talker(context, hub.url) as peer:
                assert publish(peer, "t", b"0", b"new", b"1000") == (1, 0, 3, ((0, 1), (1, 2001), (2, 1001)))
                assert publish(peer, "u", b"0")[0] == 2002
        hub.kill()
    bodies = bodies_on_disk(hub.journal)
    assert len(bodies) == 2002
    assert bodies[:2001] == [b"body %d" % i for i in range(2000)] + [b"body new"]


def test_each_id_is_stored_once_however_often_the_hub_dies(
    tmp_path: Path, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    """A producer without numbers sends everything again that was not confirmed, and some of what was."""
    rng = seeded("dying hub")
    batches = [[b"%d-%d" % (number, i) for i in range(rng.choice((1, 7, 300)))] for number in range(60)]
    seqs: dict[bytes, int] = {}
    with sockets() as folder, Child(tmp_path, folder) as hub:
        for life in range(5):
            hub.start()
            with talker(context, hub.url) as peer:
                begun = [batch for batch in batches if rng.random() < 0.3 or not seqs.keys() >= set(batch)]
                rids = {peer.next_rid(): batch for batch in begun}
                for rid, batch in rids.items():
                    peer.send(m.Publish(rid, 0, m.Level.JOURNALED, b.encode("t", batch, ids=batch)))
                wanted = len(rids) if life == 4 else rng.randrange(len(rids))
                while wanted > 0:
                    for rid, first, stored, dups, *rows in peer.until(m.PubOk).confirms:
                        wanted -= 1
                        known: dict[int, int] = dict(*rows)
                        fresh = iter(range(first, first + stored))
                        assert (stored + dups, len(known)) == (len(rids[rid]), dups)
                        for index, name in enumerate(rids[rid]):
                            seq = known[index] if index in known else next(fresh)
                            assert seqs.setdefault(name, seq) == seq
            hub.kill()
    bodies = bodies_on_disk(hub.journal)
    assert sorted(bodies) == sorted(name for batch in batches for name in batch)
    assert [seqs[body] for body in bodies] == list(range(1, len(bodies) + 1))


def test_a_consumer_sees_each_id_once(tmp_path: Path) -> None:
    with hub_in(tmp_path) as hub, talker(hub.context, hub.binds[0]) as peer:
        peer.subscribe("t", group="g")
        publish(peer, "t", b"1", b"2", b"1")
        publish(peer, "t", b"2")
        publish(peer, "t", b"3", b"2")
        assert [body for _, body in peer.take(3)] == [b"body 1", b"body 2", b"body 3"]
        assert peer.receive(0) is None


def test_a_stopped_hub_goes_on_with_its_keys(tmp_path: Path) -> None:
    for life in range(3):
        with hub_in(tmp_path) as hub, talker(hub.context, hub.binds[0]) as peer:
            row = publish(peer, "t", b"always", b"life %d" % life)
            assert row == ((1, 2, 0) if life == 0 else (life + 2, 1, 1, ((0, 1),)))
