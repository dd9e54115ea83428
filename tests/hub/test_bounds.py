"""Numbers of a peer at the edges of their ranges and beyond, with a hub in a process of its own."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from fabric.journal.journal import Journal
from fabric.records import CountSchedules, GroupSettings, SaveFailure, SaveGroup, SaveSchedule
from fabric_protocol import block as b
from fabric_protocol import messages as m
from fabric_protocol.bounds import HORIZON_MS, TABLE, TIME_US_MAX, Bound
from fabric_protocol.errors import Code
from tests import numbers
from tests.hub.hostile import Canary
from tests.hub.kit import Child, Talker, sockets, talker


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    with sockets() as folder, Child(tmp_path, folder) as child:
        yield child.start()


@pytest.fixture
def peer(child: Child) -> Iterator[Talker]:
    with zmq.Context() as context, talker(context, child.url, producer={"name": "p"}) as peer:
        yield peer


@pytest.mark.parametrize("verdict", [m.Verdict.RETRY, m.Verdict.TOUCH])
@pytest.mark.parametrize("wait_ms", [HORIZON_MS + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_a_wait_beyond_the_horizon_is_refused(child: Child, peer: Talker, verdict: m.Verdict, wait_ms: int) -> None:
    peer.subscribe("t", group="g")
    peer.publish("t", b"1")
    assert peer.take(1) == [(1, b"1")]
    for rid, arg in ((peer.next_rid(), wait_ms), (peer.next_rid(), (wait_ms, "why"))):
        peer.send(m.Settle(1, rid, ((verdict, 1, 1, arg),)))
        assert peer.refused(rid) == Code.BAD_META
    rid = peer.next_rid()
    peer.send(m.Settle(1, rid, ((verdict, 1, 1, HORIZON_MS),)))
    assert peer.until(m.Ok, rid).fields == {"applied": 1, "stale": []}
    peer.publish("t", b"2")
    assert child.process.poll() is None, child.errors()


def test_a_due_time_of_another_age_does_not_keep_a_journal_closed(child: Child, peer: Talker) -> None:
    """An older hub stored a failure that is due, and a schedule that fires, when no calendar counts any more."""
    peer.subscribe("t", group="g")
    peer.publish("t", b"1")
    child.kill()
    journal = Journal.open(child.journal, create=False)
    far_us = (1 << 64) - 1
    block = b.encode("t", [b"later"])
    journal.commit(
        [
            SaveGroup("g", GroupSettings(("t",)), 2, ((1, 1),)),
            SaveFailure("g", 1, 1, 1, far_us, "?"),
            SaveSchedule(1, 1 << 62, block, cron="0 0 * * *", name="far"),
            SaveSchedule(2, 1_000_000, block, cron="not a calendar", name="unreadable"),
            CountSchedules(2, (("t", 2),)),
        ]
    )
    journal.close()
    child.start()
    with zmq.Context() as context, talker(context, child.url) as other:
        other.subscribe(group="g")
        assert [body for _, body in other.take(1)] == [b"later"], "the unreadable one fires once more, and never again"
        rows: list[dict[str, Any]] = other.info("schedules")["schedules"]
        assert [(row["name"], row["due_us"]) for row in rows] == [("far", TIME_US_MAX)]
        rid = other.next_rid()
        other.send(m.Cancel(rid, {"name": "far"}))
        assert other.until(m.Ok, rid).fields["cancelled"] is True
        assert other.info("schedules")["count"] == 0
        other.send(m.Cancel(0, {"name": "far"}))
        rid = other.next_rid()
        other.send(m.Ping(rid))
        assert other.receive() == m.Pong(rid), "a command without a rid is not answered"
        other.publish("t", b"2")
        assert [body for _, body in other.take(1)] == [b"2"]


def test_a_calendar_of_rare_days_and_its_resend(child: Child) -> None:
    """The first Sunday that is a first of March may be twelve years away; the same publish again finds the schedule."""
    publish = m.Publish(7, 1, 0, b.encode("t", [b"1"]), {"cron": "0 0 */31 3 0"})
    with zmq.Context() as context, Talker(context, child.url) as peer:
        epoch = peer.hello(producer={"name": "p"}).fields["producer"]["epoch"]
        peer.send(publish)
        first = peer.until(m.Ok, 7).fields
    child.kill()
    child.start()
    with zmq.Context() as context, talker(context, child.url, producer={"name": "p", "epoch": epoch}) as other:
        other.send(publish)
        assert other.until(m.Ok, 7).fields == {**first, "dup": True}
        rid = other.next_rid()
        other.send(m.Publish(rid, 0, 0, b.encode("t", [b"1"]), {"cron": "0 0 * * *", "at_us": 1 << 62}))
        assert other.refused(rid) == Code.BAD_OPTION
        other.publish("t", b"2")


@pytest.mark.parametrize("verb", sorted({bound.verb for bound in TABLE}))
def test_every_number_at_its_edges(child: Child, peer: Talker, verb: str) -> None:
    """Answered as the table says, while another client is served; and the hub comes back after a kill."""
    peer.subscribe("t", group="g", chan=numbers.CHAN)
    peer.publish("t", b"1")
    peer.take(1)
    with zmq.Context() as context, Talker(context, child.url) as other:
        canary = Canary(other)
        for bound in (bound for bound in TABLE if bound.verb == verb):
            for value in numbers.values(bound):
                _try(context, child, peer, bound, value)
            canary.round_trip()
    assert child.process.poll() is None, child.errors()
    child.kill()
    child.start()
    with zmq.Context() as context, talker(context, child.url) as other:
        other.subscribe("t", group="new")
        assert [body for _, body in other.take(1)] == [b"1"]
    child.signal(signal.SIGTERM)
    assert child.wait() == 0, child.errors()


def _try(context: "zmq.Context[zmq.Socket[bytes]]", child: Child, peer: Talker, bound: Bound, value: Any) -> None:
    """What is said before the answer to a later PING is said because of the command, or answers an earlier one: some
    answers wait for the disk."""
    rid, barrier = peer.next_rid(), peer.next_rid()
    frames = numbers.command(bound, value, rid)
    if frames is None:
        return
    if bound.verb == "HELLO":
        with Talker(context, child.url) as new:
            new.send_raw(frames)
            heard = [new.receive()]
    else:
        peer.send_raw(frames)
        peer.send(m.Ping(barrier))
        heard = list(iter(peer.receive, m.Pong(barrier)))
    errors = [message for message in heard if isinstance(message, m.Err) and message.rid in (0, rid)]
    if numbers.is_within(bound, value):
        refused = [error for error in errors if error.code == bound.code]
        assert not refused or (bound.verb, bound.field) in numbers.REFUSED_ANYHOW, (bound, value, refused)
    else:
        nameless = bound.field == "rid" or bound.verb == "CREDIT"
        assert [(e.rid, e.code) for e in errors] == [(0 if nameless else rid, bound.code)], (bound, value, heard)
