"""Closed connections at a real hub: which messages go to which consumer, and when. The ttl of sessions is minutes."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from fabric.hub import Hub, HubOptions
from fabric_protocol import messages as m
from tests.hub.kit import Talker, eventually, sockets, talker

# Takes what there is, says so, and is killed.
CONSUMER = """
import sys, time
import fabric_client
fab = fabric_client.connect(sys.argv[1], session_ttl=600)
for message in fab.consume("t", group="g", concurrency=2, lease=600, prefetch=100):
    print(message.text, flush=True)
    time.sleep(1000)
"""


@pytest.fixture(params=["tcp", "ipc"])
def hub(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hub]:
    with sockets() as folder:
        url = "tcp://127.0.0.1:*" if request.param == "tcp" else f"ipc://{folder}/hub"
        with Hub(tmp_path / "journal", HubOptions(binds=[url], drain_s=0)) as hub:
            yield hub


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


def suspects(watcher: Talker) -> list[bool]:
    return sorted(bool(session["suspect"]) for session in watcher.info("sessions")["sessions"])


def test_a_consumer_is_killed_and_another_takes_over(hub: Hub, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    watcher = talker(context, hub.binds[0])
    watcher.publish("t", *[b"%d" % n for n in range(50)])
    with subprocess.Popen([sys.executable, "-c", CONSUMER, hub.binds[0]], stdout=subprocess.PIPE) as consumer:
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == b"0\n"
        watcher.subscribe(group="g")
        consumer.kill()
    assert sorted(int(body) for _, body in watcher.take(48)) == list(range(2, 50))
    assert watcher.info("sessions")["sessions"][-1]["suspect"] is True, "the session itself lives on"
    assert sorted(int(body) for _, body in watcher.take(2)) == [0, 1], "what was begun comes after the grace"


def test_what_was_acked_before_the_end_is_settled(hub: Hub, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    watcher, short = talker(context, hub.binds[0]), talker(context, hub.binds[0])
    short.subscribe("t", group="g", attempts_max=1, concurrency=10)
    watcher.publish("t", *[b"%d" % n for n in range(10)])
    short.take(10)
    watcher.subscribe(group="g")
    for ordinal in range(1, 10):
        short.send(m.Settle(1, 0, ((m.Verdict.ACK, ordinal, ordinal, None),)))
    short._socket.close(linger=1000)  # all that it said arrives, and then the end
    watcher.subscribe("$dlq.g", chan=2)
    letter = watcher.until(m.Deliver)
    assert letter.chan == 2
    assert hub.counters["dead_letters"] == 1


def test_a_resume_within_the_grace_keeps_the_leases(hub: Hub, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    watcher, first = talker(context, hub.binds[0]), Talker(context, hub.binds[0])
    secret = first.hello(ttl_ms=600_000).fields["session"]
    first.subscribe("t", group="g")
    watcher.publish("t", b"1", b"2")
    first.take(2)
    first._socket.close(linger=0)
    eventually(lambda: suspects(watcher) == [False, True], "the hub sees that the connection was closed")
    second = Talker(context, hub.binds[0])
    welcome = second.hello(resume={"session": secret, "subs": [[1, 2]]}).fields
    assert (welcome["resumed"], welcome["subs"]) == (True, [1])
    assert second.ack(1, 2) == {"applied": 2, "stale": []}


def test_the_numbers_of_closed_descriptors_are_used_again(hub: Hub, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    watcher = talker(context, hub.binds[0])
    for n in range(100):
        passer = talker(context, hub.binds[0]) if n % 2 else Talker(context, hub.binds[0])
        watcher.still_served()
        passer._socket.close(linger=0)
    eventually(lambda: suspects(watcher) == [False] + [True] * 50, "all of them, and no other")
    assert hub._socket.connections.open == 1
