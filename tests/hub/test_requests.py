"""Requests and replies over real sockets: the choice of the responder, the end of requests, killed responders."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from fabric_protocol import block as b
from fabric_protocol import messages as m
from fabric_protocol.block import Block
from fabric_protocol.errors import Code
from tests.hub.hostile import ROOT
from tests.hub.kit import Child, Talker, sockets, talker


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Child]:
    with sockets() as folder, Child(tmp_path, folder) as child:
        yield child.start()


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


def respond(peer: Talker, *patterns: str, chan: int = 1, **fields: Any) -> None:
    rid = peer.next_rid()
    peer.send(m.Subscribe(chan, rid, {"respond": True, "patterns": list(patterns), **fields}))
    peer.until(m.Ok, rid)


def ask(peer: Talker, topic: str, body: bytes = b"?", **fields: Any) -> int:
    rid = peer.next_rid()
    peer.send(m.Request(0, rid, fields, b.encode(topic, [body])))
    return rid


def answer(peer: Talker, request: m.Request, body: bytes, **fields: Any) -> None:
    peer.send(m.Reply(request.chan, request.rid, fields, b.encode("reply", [body])))


def test_a_question_and_its_answers(hub: Child, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    with talker(context, hub.url, client="asker") as asker, talker(context, hub.url, client="oracle") as oracle:
        nobody = ask(asker, "oracle.sum")
        assert asker.refused(nobody) is Code.NO_RESPONDERS
        respond(oracle, "oracle.*", concurrency=8)
        rid = ask(asker, "oracle.sum", b"1+1", replies_max=3, timeout_ms=30_000)
        request = oracle.until(m.Request)
        assert Block(request.block).payloads() == [b"1+1"]
        assert 0 < request.fields["timeout_ms"] <= 30_000
        answer(oracle, request, b"thinking", final=False)
        answer(oracle, request, b"2")
        replies = [asker.until(m.Reply, rid), asker.until(m.Reply, rid)]
        assert [Block(reply.block).payloads() for reply in replies] == [[b"thinking"], [b"2"]]
        assert [reply.fields["final"] for reply in replies] == [False, True]
        assert replies[0].fields["from"] == "oracle"
        hub_info = asker.info("hub")
        assert hub_info["last_seq"] == 0, "nothing was journaled"


def test_the_deadline_is_kept_by_the_hub(hub: Child, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    with talker(context, hub.url) as asker, talker(context, hub.url) as oracle:
        respond(oracle, "oracle")
        rid = ask(asker, "oracle", timeout_ms=50)
        error = asker.until(m.Err, rid)
        assert (error.code, error.fields) == (Code.TIMED_OUT, {"sent": True})
        answer(oracle, oracle.until(m.Request), b"too late")
        rid = ask(asker, "oracle")
        answer(oracle, oracle.until(m.Request), b"in time")
        assert Block(asker.until(m.Reply, rid).block).payloads() == [b"in time"]
        assert asker.info("counters")["late_replies"] == 1


def test_requests_are_shared_and_bounded_by_concurrency(hub: Child, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    with (
        talker(context, hub.url) as asker,
        talker(context, hub.url) as one,
        talker(context, hub.url) as two,
    ):
        for oracle in (one, two):
            respond(oracle, "oracle", group="oracles", concurrency=3)
        rids = {ask(asker, "oracle", b"%d" % i) for i in range(20)}
        answered = 0
        while answered < 20:
            for oracle in (one, two):
                held = []
                while (message := oracle.receive(0.05)) is not None:
                    assert isinstance(message, m.Request)
                    held.append(message)
                assert len(held) <= 3
                for request in held:
                    answer(oracle, request, b"done")
                answered += len(held)
        for rid in rids:
            asker.until(m.Reply, rid)


RESPONDER = """
import sys, zmq
from tests.hub.kit import talker
from fabric_protocol import messages as m
peer = talker(zmq.Context(), sys.argv[1], client="mortal")
peer.send(m.Subscribe(1, 7, {"respond": True, "patterns": ["oracle"], "concurrency": 2}))
peer.until(m.Ok, 7)
print("here", flush=True)
peer.until(m.Request)
print("asked", flush=True)
sys.stdin.read()
"""


def test_a_killed_responder_is_noticed_with_the_next_request(
    hub: Child, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    """A connection that is gone is found when a frame is sent to it; then all requests that wait for it fail."""
    process = subprocess.Popen(
        [sys.executable, "-c", RESPONDER, hub.url],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "clients/python")])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        with talker(context, hub.url) as asker:
            assert process.stdout.readline() == b"here\n"
            first = ask(asker, "oracle", timeout_ms=600_000)
            assert process.stdout.readline() == b"asked\n"
            process.kill()
            process.wait()
            rids = [first]
            while (error := asker.receive(0.2)) is None:
                rids.append(ask(asker, "oracle", timeout_ms=600_000))
            assert isinstance(error, m.Err)
            assert error.rid == first
            assert (error.code, error.fields) == (Code.TIMED_OUT, {"sent": True})
            for rid in rids[1:]:
                assert asker.refused(rid) in (Code.TIMED_OUT, Code.NO_RESPONDERS)
            assert asker.refused(ask(asker, "oracle")) is Code.NO_RESPONDERS
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
