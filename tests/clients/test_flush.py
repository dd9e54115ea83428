"""flush() and close() name all messages that are not confirmed, in whichever way they were published."""

import asyncio
import signal

import pytest

import fabric_client
from fabric_client import Client, PublishRefused, Timeout, VerdictsUnconfirmed
from fabric_client.core.ticket import Ticket
from fabric_client.errors import ConnectionLost
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from tests.clients.real_hub import HubProcess, connect, eventually
from tests.clients.test_settle import Desk
from tests.patience import PATIENCE_S

WAIT_S = 0.2


def with_a_lost_verdict_and_one_on_its_way(hub: HubProcess) -> Client:
    """A client whose verdict on message 1 died with a hub; the next hub is stopped, and the verdict on 2 with it."""
    fab = connect(hub)
    fab.publish_many("a", [b"1", b"2"])
    (one,) = fab.fetch("a", group="g", timeout=PATIENCE_S)
    hub.process.send_signal(signal.SIGSTOP)
    one.ack()
    hub.kill()
    hub.start()
    eventually(lambda: bool(fab._session.unsettled) and fab.connected)
    messages = fab.fetch("a", group="g", count=2, at_least=2, timeout=PATIENCE_S)
    hub.process.send_signal(signal.SIGSTOP)
    next(message for message in messages if message.seq == 2).ack()
    return fab


def test_a_flush_that_is_not_through_names_all_verdicts(hub_process: HubProcess) -> None:
    fab = with_a_lost_verdict_and_one_on_its_way(hub_process)
    with pytest.raises(Timeout, match="2 verdicts not confirmed") as error:
        fab.flush(WAIT_S)
    assert error.value.verdicts == (("a", 1), ("a", 2))
    hub_process.process.send_signal(signal.SIGCONT)
    with pytest.raises(VerdictsUnconfirmed) as lost:
        fab.flush(PATIENCE_S)
    assert lost.value.messages == (("a", 1),)
    fab.close(PATIENCE_S)


def test_a_close_that_is_not_through_names_all_verdicts(hub_process: HubProcess) -> None:
    fab = with_a_lost_verdict_and_one_on_its_way(hub_process)
    with pytest.raises(Timeout) as error:
        fab.close(WAIT_S)
    assert error.value.verdicts == (("a", 1), ("a", 2))
    hub_process.process.send_signal(signal.SIGCONT)


def test_asyncio_names_verdicts_that_are_on_their_way(hub_process: HubProcess) -> None:
    async def main() -> None:
        async with fabric_client.aconnect(hub_process.url, timeout=PATIENCE_S) as fab:
            await fab.publish("a", b"1")
            (one,) = await fab.fetch("a", group="g", timeout=PATIENCE_S)
            hub_process.process.send_signal(signal.SIGSTOP)
            one.ack()
            with pytest.raises(Timeout, match="1 verdict not confirmed") as error:
                await fab.flush(WAIT_S)
            assert error.value.verdicts == (("a", 1),)
            hub_process.process.send_signal(signal.SIGCONT)
            await fab.flush(PATIENCE_S)

    asyncio.run(main())


def test_a_flush_that_is_not_through_leaves_refusals_for_the_next(hub_process: HubProcess) -> None:
    with connect(hub_process) as fab:
        fab.admin.topics.create("full", max_msgs=1)
        fab.publish("full", b"1")
        hub_process.process.send_signal(signal.SIGSTOP)  # otherwise this very call may hear of the refusal
        fab.publish_nowait("full", b"refused")
        hub_process.process.send_signal(signal.SIGCONT)
        eventually(lambda: fab._publisher.settled)
        hub_process.process.send_signal(signal.SIGSTOP)
        with pytest.raises(PublishRefused):
            fab.publish_nowait("a", b"sent")
        fab._publisher.refusals.append(fabric_client.errors.Refusal(("full",), (b"x",), Code.TOPIC_FULL, "full"))
        with pytest.raises(ConnectionLost) as error:
            fab.flush(WAIT_S)
        assert isinstance(error.value.__cause__, PublishRefused)
        hub_process.process.send_signal(signal.SIGCONT)
        with pytest.raises(PublishRefused):
            fab.flush(PATIENCE_S)
        fab.flush(PATIENCE_S)


# The core.


def test_a_later_verdict_that_was_stale_strikes_nothing_off() -> None:
    desk = Desk()
    desk.deliver(1, b"x", b"y").ack()
    desk.again(resumed=False)
    desk.session.receive(m.Ok(desk.sub.chan, desk.session._rid, {"group": "g", "order": "none"}), 2.0)
    desk.acks()
    desk.deliver(1, b"x", b"y").ack()
    desk.session.flush(desk.sub)
    (ack,) = desk.acks()
    desk.answer(ack, ((2, 2),))
    error = desk.session.unsettled.take()
    assert error is not None
    assert error.messages == (("t", 2),)


def test_a_settle_that_was_sent_twice_does_not_claim_to_know() -> None:
    """The first ACK may have been applied, and its answer lost: then the second one is stale."""
    desk = Desk()
    ticket = desk.settle(desk.deliver(1, b"x"), 0)
    (ack,) = desk.acks()
    desk.again(resumed=True)
    desk.answer(ack, ((1, 1),))
    with pytest.raises(VerdictsUnconfirmed, match="the answer was lost"):
        ticket.result()


def test_a_verdict_given_while_the_session_is_found_to_be_lost_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread gives a verdict between two steps of the restart."""
    desk = Desk()
    one, two = desk.deliver(1, b"x", b"y")
    lost = desk.sub.acks.lost

    def meanwhile() -> None:
        one.ack()
        lost()

    monkeypatch.setattr(desk.sub.acks, "lost", meanwhile)
    desk.again(resumed=False)
    two.ack()
    assert not desk.session.settled
    desk.session.flush(desk.sub)
    error = desk.session.unsettled.take()
    assert error is not None
    assert error.messages == (("t", 1), ("t", 2))


def test_a_verdict_given_while_the_subscription_is_closed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    (one,) = desk.deliver(1, b"x")
    collect = desk.sub.collect

    def meanwhile(*how: object) -> list[m.ToHub]:
        collected = collect(*how)  # type: ignore[arg-type]
        one.ack()
        return collected

    monkeypatch.setattr(desk.sub, "collect", meanwhile)
    desk.session.unsubscribe(desk.sub, Ticket())
    error = desk.session.unsettled.take()
    assert error is not None
    assert error.messages == (("t", 1),)
