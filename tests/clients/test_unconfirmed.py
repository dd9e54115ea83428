"""A publish that fails: what never left the client is withdrawn, and what left is called unconfirmed."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

import fabric_client
from fabric_client import ConnectionLost, Timeout, Unconfirmed
from fabric_client.core.outgoing import Options
from fabric_protocol.block import Block
from fabric_protocol.errors import Code
from tests.clients.real_hub import HubProcess, connect, eventually
from tests.clients.talk import Desk, bodies
from tests.patience import PATIENCE_S

WAIT_S = 0.2


@pytest.fixture
def stopped(hub_process: HubProcess) -> Iterator[HubProcess]:
    """A hub that hears everything later."""
    yield hub_process
    hub_process.process.send_signal(signal.SIGCONT)


def stored(hub: HubProcess) -> list[bytes]:
    """What is in the journal, after all that was sent before has arrived."""
    with fabric_client.connect(hub.url, timeout=PATIENCE_S) as fab:
        fab.publish("mark", b"", timeout=PATIENCE_S)
        return [message.body for message in fab.get("t", n=100, timeout=PATIENCE_S)]


# The buffer.


def test_a_message_in_the_open_block_is_taken_out() -> None:
    desk = Desk()
    desk.put("first")
    (first,) = desk.pump()
    before, one, after = desk.put("a", key="k"), desk.put("b", topic="u", id="i"), desk.put("c", headers={"h": "v"})
    assert desk.publisher.withdraw(one)
    desk.confirm(first)
    (rest,) = desk.pump()
    block = Block(rest.block)
    block.verify()
    assert (bodies(rest), block.topic_names(), list(block.keys())) == ([b"a", b"c"], ["t", "t"], [b"k", b""])
    assert block.headers()[1] == {"h": "v"}
    desk.confirm(rest, seq=10)
    assert (before.result().seq, after.result().seq, one.done) == (10, 11, False)
    assert desk.publisher.settled


def test_the_only_message_of_a_block_is_taken_out() -> None:
    desk = Desk(flow=(1, 1 << 20))
    desk.put("first")
    (first,) = desk.pump()
    alone = desk.put("alone", options=Options(priority=9))
    desk.put("other")
    assert desk.publisher.withdraw(alone)
    desk.confirm(first)
    (rest,) = desk.pump()
    assert bodies(rest) == [b"other"]
    assert desk.publisher.unconfirmed == 1


def test_a_message_in_a_closed_block_is_taken_out() -> None:
    desk = Desk(flow=(1, 1 << 20))
    desk.put("first")
    (first,) = desk.pump()
    tickets = [desk.put(body) for body in ("a", "b", "c")]
    desk.publisher.seal()
    assert desk.publisher.withdraw(tickets[1])
    assert (desk.publisher.sent, desk.publisher.unconfirmed) == (1, 3)
    desk.confirm(first)
    (rest,) = desk.pump()
    assert bodies(rest) == [b"a", b"c"]
    desk.confirm(rest, seq=5)
    assert [tickets[0].result().seq, tickets[2].result().seq] == [5, 6]
    assert desk.publisher.settled
    assert not desk.publisher.full


def test_what_left_stays_until_the_hub_says_that_it_has_it_not() -> None:
    desk = Desk()
    ticket = desk.put("a")
    (sent,) = desk.pump()
    assert not desk.publisher.withdraw(ticket)
    desk.publisher.disconnected()
    assert not desk.publisher.withdraw(ticket), "it may have arrived before the connection broke"
    desk.welcome(last_pseq=1)
    assert not desk.publisher.withdraw(ticket), "the hub has it"
    (sent,) = desk.pump()
    desk.refuse(sent, Code.BUSY, retry_ms=10)
    assert not desk.publisher.withdraw(ticket), "it was stored before"


@pytest.mark.parametrize("how", ["refused", "reconnected"])
def test_what_the_hub_did_not_store_can_be_withdrawn(how: str) -> None:
    desk = Desk()
    ticket = desk.put("a")
    (sent,) = desk.pump()
    if how == "refused":
        desk.refuse(sent, Code.DISK_FULL, retry_ms=10)
    else:
        desk.welcome(last_pseq=0)
    assert desk.publisher.withdraw(ticket)
    assert desk.pump(now=1.0) == []
    later = desk.put("b")
    (next_one,) = desk.pump(now=1.0)
    assert (next_one.pseq, bodies(next_one)) == (1, [b"b"])
    desk.confirm(next_one)
    assert later.result().seq == 1


# A real hub.


def test_what_was_sent_and_not_confirmed_says_so(stopped: HubProcess) -> None:
    with connect(stopped) as fab:
        stopped.process.send_signal(signal.SIGSTOP)
        with pytest.raises(Unconfirmed) as caught:
            fab.publish("t", b"sent", id="1", timeout=WAIT_S)
        error = caught.value
        assert isinstance(error, Timeout)
        assert isinstance(error, ConnectionLost)
        assert isinstance(error, TimeoutError)
        assert (error.stored, error.unconfirmed, error.withdrawn) == (0, 1, 0)
        assert "id=" in error.hint
        assert any("id=" in note for note in error.__notes__), "the traceback shows the way out"
        with pytest.raises(Timeout, match="never sent, and withdrawn") as withdrawn:
            fab.publish("t", b"gathered behind it", timeout=WAIT_S)
        assert not isinstance(withdrawn.value, Unconfirmed)
        stopped.process.send_signal(signal.SIGCONT)
        assert fab.publish("t", b"again", id="1", timeout=PATIENCE_S).duplicate, "with an id it is stored once"
    assert stored(stopped) == [b"sent"]


def test_what_never_left_is_not_stored_later(hub_process: HubProcess) -> None:
    with connect(hub_process) as fab:
        hub_process.kill()
        eventually(lambda: not fab.connected)
        with pytest.raises(ConnectionLost, match="never sent, and withdrawn"):
            fab.publish("t", b"one", timeout=WAIT_S)
        with pytest.raises(ConnectionLost, match="withdrawn"):
            fab.publish("t", b"later", delay=1, timeout=WAIT_S)
        with pytest.raises(ConnectionLost, match="3 messages never sent"):
            fab.publish_many("t", [b"1", b"2", b"3"], timeout=WAIT_S)
        hub_process.start()
        fab.publish("t", b"two", timeout=PATIENCE_S)
        assert not list(fab.schedules(timeout=PATIENCE_S))
    assert stored(hub_process) == [b"two"]


def test_many_that_left_in_part_are_counted(stopped: HubProcess) -> None:
    with connect(stopped) as fab:
        blocks = [bytes(300_000)] * 40  # more than the window takes at once
        stopped.process.send_signal(signal.SIGSTOP)
        with pytest.raises(Unconfirmed) as caught:
            fab.publish_many("big", blocks, timeout=WAIT_S)
        error = caught.value
        assert error.unconfirmed + error.withdrawn == 40
        assert min(error.unconfirmed, error.withdrawn) > 0
        stopped.process.send_signal(signal.SIGCONT)
        fab.flush(PATIENCE_S)
        assert len(list(fab.get("big", n=100, timeout=PATIENCE_S))) == error.unconfirmed


def test_flush_and_close_say_what_is_not_confirmed(stopped: HubProcess) -> None:
    fab = connect(stopped)
    stopped.process.send_signal(signal.SIGSTOP)
    fab.publish_nowait("t", b"sent")
    fab.publish_nowait("t", b"unsent")
    with pytest.raises(Unconfirmed, match="1 message sent and not confirmed, 1 message not sent") as caught:
        fab.flush(WAIT_S)
    assert caught.value.unconfirmed == 1
    with pytest.raises(Unconfirmed, match="1 message sent and not confirmed, 1 message not sent"):
        fab.close(WAIT_S)
    stopped.process.send_signal(signal.SIGCONT)
    assert stored(stopped) in ([], [b"sent"])


def test_a_client_that_is_closed_tells_its_waiting_callers(stopped: HubProcess) -> None:
    fab = connect(stopped)
    stopped.process.send_signal(signal.SIGSTOP)
    errors: list[BaseException] = []

    def publish() -> None:
        try:
            fab.publish("t", b"sent", timeout=PATIENCE_S)
        except fabric_client.FabricError as error:
            errors.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    eventually(lambda: fab.unconfirmed == 1 and fab._publisher.sent == 1)
    with pytest.raises(Unconfirmed):
        fab.close(0.0)
    thread.join(PATIENCE_S)
    assert [type(error) for error in errors] == [Unconfirmed]


def test_ctrl_c_withdraws_what_never_left(hub_process: HubProcess) -> None:
    with connect(hub_process) as fab:
        hub_process.kill()
        eventually(lambda: not fab.connected)
        timer = threading.Timer(WAIT_S, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt) as caught:
            fab.publish("t", b"one", timeout=PATIENCE_S)
        assert "never sent, and withdrawn" in caught.value.__notes__[0]
        hub_process.start()
        fab.publish("t", b"two", timeout=PATIENCE_S)
    assert stored(hub_process) == [b"two"]


def test_a_transaction_that_never_left_is_withdrawn_and_its_message_comes_again(
    hub_process: HubProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fabric_client.sync.driver.COMMIT_S", WAIT_S)
    with connect(hub_process) as fab:
        fab.publish("raw", b"1")
        consumer = fab.consume("raw", group="g")
        message = next(iter(consumer))
        hub_process.kill()
        eventually(lambda: not fab.connected)
        with pytest.raises(ConnectionLost, match="withdrawn"), message.transaction() as txn:
            txn.publish("t", b"first attempt")
        hub_process.start()
        again = next(iter(consumer))
        with again.transaction() as txn:
            txn.publish("t", b"second attempt")
    assert stored(hub_process) == [b"second attempt"]


# Asyncio.


async def aconnect(hub: HubProcess) -> fabric_client.AsyncClient:
    return await fabric_client.aconnect(hub.url, timeout=PATIENCE_S)


async def away(fab: fabric_client.AsyncClient) -> None:
    while fab.connected:
        await asyncio.sleep(0.01)


def test_a_cancelled_publish_is_withdrawn(hub_process: HubProcess) -> None:
    async def main() -> None:
        async with await aconnect(hub_process) as fab:
            hub_process.kill()
            await away(fab)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(fab.publish("t", b"one"), WAIT_S)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(fab.publish_many("t", [b"1", b"2"]), WAIT_S)
            with pytest.raises(ConnectionLost, match="never sent, and withdrawn"):
                await fab.publish("t", b"two", timeout=WAIT_S)
            hub_process.start()
            await fab.publish("t", b"three", timeout=PATIENCE_S)

    asyncio.run(main())
    assert stored(hub_process) == [b"three"]


def test_asyncio_says_what_is_not_confirmed(stopped: HubProcess) -> None:
    async def main() -> None:
        async with await aconnect(stopped) as fab:
            stopped.process.send_signal(signal.SIGSTOP)
            with pytest.raises(Unconfirmed):
                await fab.publish("t", b"sent", timeout=WAIT_S)
            with pytest.raises(TimeoutError) as caught:
                await asyncio.wait_for(fab.publish("t", b"unsent"), WAIT_S)
            assert "never sent, and withdrawn" in str(getattr(caught.value.__cause__, "__notes__", ""))
            with pytest.raises(Unconfirmed, match="1 message sent and not confirmed: "):
                await fab.flush(WAIT_S)
            stopped.process.send_signal(signal.SIGCONT)
            await fab.flush(PATIENCE_S)

    asyncio.run(main())
    assert stored(stopped) == [b"sent"]
