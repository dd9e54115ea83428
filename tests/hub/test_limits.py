"""Limits of the whole hub, message by message: messages beyond them are not delivered, whatever block they are in."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from fabric.hub.serve import EXIT_STORAGE
from fabric_protocol import block as b
from fabric_protocol import messages as m
from tests.hub.kit import Child, Talker, eventually, sockets, talker


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    with sockets() as folder, Child(tmp_path, folder) as child:
        yield child


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


def first_seq(peer: Talker) -> int:
    return int(peer.info("hub")["first_seq"])


@pytest.mark.parametrize("tracked", [False, True])
def test_a_new_group_gets_exactly_as_many_messages_as_the_limit_says(
    child: Child, context: "zmq.Context[zmq.Socket[bytes]]", tracked: bool
) -> None:
    child.start(limits={"max_messages": 100})
    with talker(context, child.url) as peer:
        if tracked:  # a topic with counted messages is trimmed first
            peer.admin("topic.create", topic="t", max_msgs=1_000)
        peer.publish("t", *[b"%d" % i for i in range(1, 61)])
        peer.publish("t", *[b"%d" % i for i in range(61, 181)])
        eventually(lambda: first_seq(peer) == 81, "100 of 180 are left")
        peer.subscribe("t", group="g", start="first")
        assert [body for _, body in peer.take(100)] == [b"%d" % i for i in range(81, 181)]
        if tracked:
            eventually(lambda: peer.info("topic", name="t")["msgs"] == 100, "the topic counts what is left")


@pytest.mark.parametrize("tracked", [False, True])
def test_messages_that_are_too_old_are_not_delivered_on_an_idle_hub(
    child: Child, context: "zmq.Context[zmq.Socket[bytes]]", tracked: bool
) -> None:
    child.start(limits={"max_age_s": 0.5})
    with talker(context, child.url) as peer:
        if tracked:
            peer.admin("topic.create", topic="t", max_msgs=1_000)
        peer.publish("t", *[b"old"] * 500)
        eventually(lambda: first_seq(peer) == 501, "all are too old")
        peer.subscribe("t", group="g", start="first")
        peer.publish("t", b"new")
        assert [body for _, body in peer.take(1)] == [b"new"]
    child.kill()
    child.start(limits={"max_age_s": 0.5})
    with talker(context, child.url) as peer:
        eventually(lambda: first_seq(peer) == 502, "and still are after a restart")
        assert peer.publish("t", b"newer") == 502


def test_a_group_that_was_overtaken_within_a_block_hears_of_its_gap(
    child: Child, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    child.start(limits={"max_messages": 10})
    with talker(context, child.url) as peer:
        peer.subscribe("t", group="g", start="first", credit=5)
        peer.publish("t", *[b"%d" % i for i in range(1, 31)])
        gap = peer.until(m.Gap)
        assert (gap.first_seq, gap.last_seq) == (1, 20)


def test_a_hub_whose_journal_is_removed_confirms_nothing_more_and_ends(
    child: Child, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    child.start()
    with talker(context, child.url) as peer:
        peer.publish("t", b"1")
        shutil.rmtree(child.journal)
        peer.send(m.Publish(77, 0, 0, b.encode("t", [b"lost"])))
        assert child.wait() == EXIT_STORAGE
        while (message := peer.receive(0)) is not None:
            assert not (isinstance(message, m.PubOk) and message.confirms[0][0] == 77), "confirmed into nowhere"
    assert "removed" in child.errors() or "cannot read" in child.errors()


def test_an_idle_hub_whose_journal_is_removed_ends(child: Child, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    child.start()
    with talker(context, child.url) as peer:
        peer.publish("t", b"1")
        shutil.rmtree(child.journal)
        assert child.wait() == EXIT_STORAGE


def test_a_second_hub_is_refused_though_the_lock_file_was_removed(
    child: Child, context: "zmq.Context[zmq.Socket[bytes]]", tmp_path: Path
) -> None:
    child.start()
    with talker(context, child.url) as peer, sockets() as folder:
        peer.publish("t", b"1")
        (child.journal / "hub.lock").unlink()
        with Child(tmp_path, folder) as second:
            assert second.start().wait() != 0
            assert "is in use" in second.errors()
        assert peer.publish("t", b"2") == 2
