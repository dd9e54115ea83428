"""Frames that cost much: each has an answer, and other peers are served in between."""

from collections.abc import Iterator
from typing import Final

import msgpack
import pytest

from fabric.router.publish.publishing import LOOKUPS_MAX
from fabric_protocol import block as b
from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.block import COUNT_MAX, Block
from fabric_protocol.errors import Code
from fabric_protocol.messages import Verdict
from tests.hub.hostile import Peer
from tests.hub.test_hostile import Stage
from tests.hub.test_hostile import shared_hub as shared_hub

HELD: Final = 2 * COUNT_MAX


@pytest.fixture
def stage(shared_hub: Stage) -> Iterator[Stage]:
    yield shared_hub
    shared_hub.assert_well()


@pytest.fixture
def holder(stage: Stage) -> Iterator[Peer]:
    """A consumer that holds very many messages."""
    with stage.peer() as peer:
        peer.hello(hb_ms=60_000, ttl_ms=600_000)
        group = {"group": "cost", "patterns": ["cost.held"], "credit": [1 << 40, 1 << 50], "lease_ms": 600_000}
        peer.send(m.Subscribe(1, 5, {**group, "start": "new"}))
        peer.until(m.Ok, 5)
        for rid in (6, 7):
            peer.send(m.Publish(rid, 0, 0, b.encode("cost.held", [b"x"] * COUNT_MAX)))
        held = 0
        while held < HELD:
            held += Block(peer.until(m.Deliver).block).count
        yield peer
        peer.send(m.Settle(1, 99, ((Verdict.ACK, 1, HELD, None),)))
        peer.until(m.Ok, 99)


def test_long_acks_let_others_in_between(stage: Stage, holder: Peer) -> None:
    """Every frame is refused and counted; another client sees the count rise step by step."""
    spread = wire.encode(m.Settle(1, 0, tuple((Verdict.TOUCH, n, n, None) for n in range(1, HELD, 2))))
    before, count = stage.canary.counters().get("refused_too_large", 0), 40
    for _ in range(count):
        holder.send_raw(spread)
    seen = {0}
    while max(seen) < count:
        seen.add(stage.canary.counters().get("refused_too_large", 0) - before)
    assert len(seen) > 5, "one turn has not taken them all"
    for _ in range(count):
        assert holder.until(m.Err).code == Code.TOO_LARGE


def test_a_long_ack_of_one_ordinal_is_one_touch(stage: Stage, holder: Peer) -> None:
    for rid in range(10, 20):
        holder.send(m.Settle(1, rid, ((Verdict.TOUCH, 1, 1, None),) * COUNT_MAX))
    for rid in range(10, 20):
        assert holder.until(m.Ok, rid).fields == {"applied": 1, "stale": []}


def test_touches_among_very_many_open_ranges(stage: Stage, holder: Peer) -> None:
    for start in range(1, HELD, 8_192):
        rows = tuple((Verdict.ACK, n, n, None) for n in range(start, start + 8_192, 2))
        holder.send(m.Settle(1, 30, rows))
        assert holder.until(m.Ok, 30).fields["applied"] == 4_096
    for rid in range(40, 45):
        holder.send(m.Settle(1, rid, tuple((Verdict.TOUCH, 4 * n, 4 * n, None) for n in range(1, 4_097))))
    for rid in range(40, 45):
        assert holder.until(m.Ok, rid).fields["applied"] == 4_096


def test_transactions_with_very_many_rows_are_refused(stage: Stage, holder: Peer) -> None:
    rows = [[int(Verdict.ACK), n, n] for n in range(1, HELD, 2)]
    settles = [[1, rows[at : at + 1_000]] for at in range(0, 64_000, 1_000)]
    for rid in range(50, 60):
        holder.send_raw([msgpack.packb([wire.Verb.TXN, 0, rid, 0, settles]), b.encode("cost.made", [b"x"])])
    for rid in range(50, 60):
        assert holder.refused(rid) is Code.TOO_LARGE


def test_gets_with_many_wildcards_are_answered(stage: Stage) -> None:
    """Patterns for which an expression would try very many ways, on topics for which it would try them all."""
    with stage.peer() as peer:
        peer.hello(hb_ms=60_000, ttl_ms=600_000)
        topics = [".".join("ab"[(n >> bit) & 1] for bit in range(12)) for n in range(2_000)]
        peer.send(m.Publish(5, 0, 0, b.encode(topics, [b"x"] * len(topics))))
        peer.until(m.PubOk)
        for rid in range(10, 20):
            peer.send(m.Get(rid, {"pattern": [f"#.a.#.b.#.a.#.b.#.a.#.z{rid}-{n}" for n in range(64)]}))
        for rid in range(10, 20):
            assert peer.until(m.Ok, rid).fields["count"] == 0


def test_a_block_of_old_ids_is_answered(stage: Stage) -> None:
    with stage.peer() as peer:
        peer.hello(hb_ms=60_000, ttl_ms=600_000)
        ids = [b"old %d" % n for n in range(LOOKUPS_MAX)]
        for rid, order, stored in ((5, ids, LOOKUPS_MAX), (6, ids[::-1], 0)):
            peer.send(m.Publish(rid, 0, 0, b.encode("cost.ids", [b""] * LOOKUPS_MAX, ids=order)))
            ((_, _, new, known, *_),) = peer.until(m.PubOk).confirms
            assert (new, known) == (stored, LOOKUPS_MAX - stored)


def test_wide_and_nested_maps_are_refused(stage: Stage) -> None:
    wide = msgpack.packb([wire.Verb.INFO, 0, 7, {"what": [[1] * 7 for _ in range(60_000)]}])
    nested = b"\x94\x32\x00\x07\x81\xa1x" + b"\xdc\xff\xff" * 1_000
    with stage.peer() as peer:
        peer.hello(hb_ms=60_000, ttl_ms=600_000)
        for _ in range(20):
            peer.send_raw([wide])
            assert peer.refused(7) is Code.TOO_LARGE
            peer.send_raw([nested])
            assert peer.refused(7) is Code.BAD_META
