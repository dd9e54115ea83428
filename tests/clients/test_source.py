"""A numbered source: what the client sends, resends and drops. With a real hub at the end."""

import asyncio
from typing import Any

import pytest

from fabric.hub import Hub
from fabric_client import BadMessage, Conflict, Fenced, PublishRefused, aconnect, connect
from fabric_client.core.outgoing import PLAIN, prepare
from fabric_client.core.session import Session
from fabric_client.core.source import Source
from fabric_client.core.source_names import SourceName
from fabric_client.core.state import State
from fabric_client.core.ticket import Ticket
from fabric_protocol import messages as m
from fabric_protocol.block import BLOCK_BYTES_MAX, Block
from fabric_protocol.bounds import NUMBER_MAX
from fabric_protocol.errors import Code, FabricError


class Talk:
    """A source and the hub's side of its conversation, without sockets."""

    def __init__(self, cursor: int = 0) -> None:
        self.sent: list[m.Publish] = []
        self._rids = iter(range(1, 1 << 30))
        self.source = Source(self._send, lambda: next(self._rids))
        self.welcome(cursor)

    def _send(self, message: m.ToHub) -> None:
        assert isinstance(message, m.Publish)
        self.sent.append(message)

    def welcome(self, cursor: int, *, same_journal: bool = True, window: int = 64) -> None:
        self.source.disconnected()
        self.source.welcomed(cursor, same_journal, (window, 1 << 24), BLOCK_BYTES_MAX)

    def put(self, *positions: int) -> list[Ticket]:
        tickets = [Ticket() for _ in positions]
        for position, ticket in zip(positions, tickets, strict=True):
            self.source.put_numbered(position, prepare("a", str(position).encode(), None, None, None), PLAIN, ticket)
        return tickets

    def block(self, *positions: int) -> list[Ticket]:
        """The same as one block."""
        tickets = self.put(*positions)
        self.source.seal()
        return tickets

    def sends(self) -> list[tuple[int, int, int, list[bytes]]]:
        """(pseq, last, after, bodies) of what is sent now."""
        self.sent = []
        self.source.send_blocks(0.0)
        self.source.send_blocks(1e9)
        rows = [(message, message.options) for message in self.sent]
        return [(p.pseq, o["last"], o["after"], list(Block(p.block).payloads())) for p, o in rows]

    def confirm(self, at: int, first_seq: int, dups: int = 0) -> None:
        sent = self.sent[at]
        count = Block(sent.block).count
        self.source.confirmed(m.PubOk(0, ((sent.rid, first_seq, count - dups, dups),)))

    def refuse(self, at: int, code: Code, **fields: Any) -> None:
        self.source.refused(m.Err(0, self.sent[at].rid, code, "no", fields), 0.0)


def test_a_block_has_the_positions_of_its_first_and_last_message_and_of_the_one_before() -> None:
    talk = Talk(cursor=10)
    tickets = talk.block(20, 25, 90) + talk.block(91)
    assert talk.sends() == [(20, 90, 10, [b"20", b"25", b"90"]), (91, 91, 90, [b"91"])]
    talk.confirm(0, 7)
    assert (talk.source.cursor, [ticket.done for ticket in tickets]) == (90, [True, True, True, False])
    assert tickets[1].value.seq == 8
    talk.confirm(1, 10)
    assert talk.source.cursor == 91


def test_a_position_that_the_hub_has_is_a_duplicate_and_is_not_sent() -> None:
    talk = Talk(cursor=10)
    (known, new) = talk.put(10, 11)
    assert known.done
    assert known.value.duplicate
    assert not new.done
    assert talk.sends() == [(11, 11, 10, [b"11"])]


def test_positions_rise() -> None:
    talk = Talk()
    talk.put(5)
    for wrong in (5, 4):
        with pytest.raises(BadMessage, match="not above 5"):
            talk.put(wrong)
    for junk in (0, -1, 1.0, "7", True, None, NUMBER_MAX + 1):
        with pytest.raises(BadMessage, match="whole number"):
            talk.put(junk)  # type: ignore[arg-type]
    talk.put(NUMBER_MAX)


def test_blocks_behind_one_that_is_refused_for_now_follow_it_again() -> None:
    talk = Talk()
    talk.block(10)
    talk.block(20, 30)
    talk.block(40)
    assert [row[:3] for row in talk.sends()] == [(10, 10, 0), (20, 30, 10), (40, 40, 30)]
    talk.confirm(0, 1)
    talk.refuse(1, Code.BUSY, retry_ms=1)
    talk.refuse(2, Code.SEQUENCE_GAP, retry_ms=1, expected=11)
    assert [row[:3] for row in talk.sends()] == [(20, 30, 10)], "one block tries first"
    talk.confirm(0, 2)
    assert [row[:3] for row in talk.sends()] == [(40, 40, 30)]


def test_blocks_behind_a_gap_are_sent_again_from_the_cursor_on() -> None:
    talk = Talk()
    talk.block(10)
    talk.block(20)
    talk.sends()
    talk.refuse(1, Code.SEQUENCE_GAP, retry_ms=1, expected=11)  # the first is still unanswered
    assert [row[:3] for row in talk.sends()] == [(20, 20, 10)]


def test_the_cursor_does_not_pass_a_message_that_is_refused_for_good() -> None:
    talk = Talk()
    first, second, third = talk.block(10) + talk.block(20) + talk.block(30)
    talk.sends()
    talk.confirm(0, 1)
    talk.refuse(1, Code.TOPIC_FULL)
    assert first.value.seq == 1
    for ticket in (second, third):
        with pytest.raises(PublishRefused):
            ticket.result()
    assert talk.source.cursor == 10
    talk.refuse(2, Code.SEQUENCE_GAP, retry_ms=1, expected=11)  # the answer to the third comes too late
    assert talk.sends() == []
    talk.put(20)
    assert talk.sends() == [(20, 20, 10, [b"20"])]


def test_after_a_reconnect_stored_blocks_learn_their_seqs_and_the_others_follow_the_cursor() -> None:
    talk = Talk()
    talk.block(10, 15)
    talk.block(20, 25)
    talk.sends()
    talk.put(30)
    talk.welcome(15)
    assert [row[:3] for row in talk.sends()] == [(10, 15, 0), (20, 25, 15), (30, 30, 25)]
    talk.confirm(0, 1, dups=2)
    assert talk.source.cursor == 15


def test_what_the_cursor_of_another_journal_covers_is_dropped_from_the_buffer() -> None:
    talk = Talk()
    tickets = talk.block(10, 15, 20) + talk.block(30) + talk.block(40)
    talk.sends()
    talk.welcome(15, same_journal=False)
    assert [ticket.done for ticket in tickets] == [True, True, False, False, False]
    assert talk.sends() == [(20, 20, 15, [b"20"]), (30, 30, 20, [b"30"]), (40, 40, 30, [b"40"])]
    talk.welcome(99, same_journal=False)
    assert all(ticket.value.duplicate for ticket in tickets)
    assert talk.sends() == []
    assert talk.source.settled


def test_a_position_that_was_withdrawn_may_be_published_again() -> None:
    talk = Talk()
    talk.welcome(0, window=0)
    first, second = talk.put(5, 6)
    assert talk.source.withdraw(second)
    talk.put(6)
    talk.source.seal()
    assert talk.source.withdraw(first)
    talk.welcome(0)
    assert talk.sends() == [(6, 6, 0, [b"6"])]


def test_an_older_hub_is_told_from_one_that_knows_sources() -> None:
    session = Session("me", SourceName("s"), lambda: 0.5)
    session.opened(0.0)
    (hello,) = session.out
    assert isinstance(hello, m.Hello)
    assert hello.fields["producer"] == {"name": "s", "jumps": True}
    fields = {"session": b"s" * 16, "producer": {"epoch": 1, "last_pseq": 0, "last_seq": 0}}
    session.receive(m.Welcome(hello.rid, fields), 0.0)
    assert session.state is State.FAILED
    with pytest.raises(FabricError, match="does not know numbered sources"):
        raise session.error or AssertionError


# With a hub.


def test_a_source_goes_on_above_its_position(hub: Hub) -> None:
    with connect(hub.binds[1], source="s") as fab:
        assert fab.position == 0
        assert fab.publish_numbered(100, "a", b"1").seq == 1
        for position in range(200, 3000, 2):
            fab.publish_numbered_nowait(position, "a", b"%d" % position)
        fab.flush()
        assert fab.position == 2998
    with connect(hub.binds[1], source="s") as fab:
        assert fab.position == 2998
        assert fab.publish_numbered(2998, "a", b"again").duplicate
        fab.publish_numbered_nowait(150, "a", b"again")
        receipt = fab.publish_numbered(5000, "a", {"last": True}, key="k", priority=7, ttl=60)
        assert (receipt.seq, receipt.duplicates) == (1402, 0)
        assert fab.info("hub")["last_seq"] == 1402


def test_two_processes_of_one_source_fence_each_other(hub: Hub) -> None:
    with connect(hub.binds[1], source="s") as newer:
        older, newer = newer, connect(hub.binds[1], source="s")
        with newer:
            newer.publish_numbered(1, "a", b"1")
            with pytest.raises(Fenced):
                older.publish_numbered(2, "a", b"2")


def test_a_source_publishes_with_positions_only(hub: Hub) -> None:
    with connect(hub.binds[1], source="s") as fab:
        for publish in (fab.publish, fab.publish_nowait):
            with pytest.raises(BadMessage, match="numbered source"):
                publish("a", b"x")
        with pytest.raises(BadMessage, match="numbered source"):
            fab.publish_many("a", [b"x"])
        with pytest.raises(TypeError, match="level"):
            fab.publish_numbered(1, "a", b"x", level="received")  # type: ignore[call-arg]
    with connect(hub.binds[1]) as fab:
        with pytest.raises(BadMessage, match="no numbered source"):
            fab.publish_numbered(1, "a", b"x")
        with pytest.raises(BadMessage, match="no numbered source"):
            _ = fab.position


def test_names_of_sources(hub: Hub) -> None:
    with connect(hub.binds[1], producer="dense") as fab:
        fab.publish("a", b"x")
    with pytest.raises(Conflict, match="keeps its kind"):
        connect(hub.binds[1], source="dense")
    for wrong in ("", "x" * 301, 7):
        with pytest.raises(BadMessage, match="source is a name"):
            connect(hub.binds[1], source=wrong)  # type: ignore[arg-type]
    with pytest.raises(BadMessage, match="exclude"):
        connect(hub.binds[1], source="s", producer="p")
    connect(hub.binds[1], source="x" * 300).close()


def test_the_asyncio_client_has_the_same(hub: Hub) -> None:
    async def run() -> None:
        async with aconnect(hub.binds[1], source="s") as fab:
            assert fab.position == 0
            assert (await fab.publish_numbered(7, "a", b"1")).seq == 1
            fab.publish_numbered_nowait(8, "a", b"2")
            fab.publish_numbered_nowait(19, "a", b"3")
            await fab.flush()
            assert fab.position == 19
            assert (await fab.publish_numbered(8, "a", b"2")).duplicate
            with pytest.raises(BadMessage, match="numbered source"):
                await fab.publish("a", b"x")

    asyncio.run(run())
