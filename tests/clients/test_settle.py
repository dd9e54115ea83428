"""Verdicts with an answer, and verdicts that the hub never received: `settle`, `flush` and `close` report them."""

import asyncio
import signal
import threading
from typing import Any

import pytest

import fabric_client
from fabric.hub import Hub
from fabric_client import AsyncClient, Client, Message, Stale, VerdictsUnconfirmed
from fabric_client.core.session import Session
from fabric_client.core.settle import settle
from fabric_client.core.subscription import Subscription
from fabric_client.core.ticket import Ticket
from fabric_client.core.verdict_exceptions import Decision, VerdictName, verdict_of
from fabric_client.errors import HubError
from fabric_protocol import messages as m
from fabric_protocol.errors import Code, FabricError
from fabric_protocol.messages import Verdict
from tests.clients.real_hub import HubProcess, another, connect, eventually
from tests.clients.talk import deliver, live_session, said, take, welcome
from tests.patience import PATIENCE_S

ACK: Decision = (Verdict.ACK, None)


# With a real hub.


def settled_to(fab: Client) -> int:
    """The last seq up to which the group is done."""
    floor: int = fab.info("group", "g", timeout=PATIENCE_S)["floor"]
    return floor


VERDICTS: dict[VerdictName, dict[str, Any]] = {
    "ack": {},
    "retry": {"delay": 3600, "reason": "no"},
    "release": {},
    "reject": {"reason": "no"},
}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_verdict_is_on_disk_when_settle_returns(hub_process: HubProcess, verdict: VerdictName) -> None:
    with connect(hub_process) as fab:
        fab.publish("a", b"1")
        (message,) = fab.fetch("a", group="g", timeout=PATIENCE_S)
        message.settle(verdict, timeout=PATIENCE_S, **VERDICTS[verdict])
        hub_process.kill()
        hub_process.start()
        assert (settled_to(fab) >= 1) == (verdict in ("ack", "reject"))
        letters = list(fab.get("$dlq.g", timeout=PATIENCE_S))
        assert [letter.body for letter in letters] == ([b"1"] if verdict == "reject" else [])


def test_a_verdict_that_comes_too_late_is_stale(hub: Hub, fab: Client) -> None:
    fab.publish_many("a", [b"1", b"2"])
    consumer = fab.consume_batches("a", group="g", timeout=PATIENCE_S, prefetch=10)
    first = next(consumer)
    fab.admin.groups.seek("g", "first")
    with pytest.raises(Stale) as error:
        first.settle(timeout=PATIENCE_S)
    assert error.value.fields["seqs"] == [1, 2]
    with pytest.raises(Stale):
        next(iter(first)).settle(timeout=PATIENCE_S)
    consumer.close()
    (again,) = fab.fetch("a", group="g", timeout=PATIENCE_S)
    again.settle(timeout=PATIENCE_S)
    with pytest.raises(FabricError, match="already"):
        again.settle()


def test_settle_with_asyncio(hub: Hub, fab: Client) -> None:
    fab.publish_many("a", [b"1", b"2", b"3"])

    async def main() -> None:
        async with fabric_client.aconnect("inproc://hub", context=hub.context) as twin:
            one, two, three = await fetch_all(twin)
            await asyncio.gather(one.settle(timeout=PATIENCE_S), two.settle("reject", timeout=PATIENCE_S))
            await asyncio.to_thread(fab.admin.groups.seek, "g", "new")
            with pytest.raises(Stale):
                await three.settle(timeout=PATIENCE_S)

    async def fetch_all(twin: AsyncClient) -> list[Message]:
        return await twin.fetch("a", group="g", count=3, at_least=3, timeout=PATIENCE_S)

    asyncio.run(main())
    assert len(list(fab.get("$dlq.g"))) == 1


def test_messages_without_a_group_take_no_verdict(fab: Client) -> None:
    fab.publish("a", b"1")
    (read,) = fab.get("a")
    (fetched,) = fab.fetch("a", start="first", timeout=PATIENCE_S)
    for message in (read, fetched):
        with pytest.raises(FabricError, match="takes no verdict"):
            message.settle()


@pytest.mark.parametrize("way", ["message", "batch", "reject", "closed"])
def test_flush_names_verdicts_that_died_with_the_hub(hub_process: HubProcess, way: str) -> None:
    """The hub is stopped, so that it cannot see the verdicts, and then killed."""
    with connect(hub_process) as fab:
        fab.publish_many("a", [b"1", b"2", b"3"])
        consumer = fab.consume_batches("a", group="g", prefetch=10)
        batch = next(consumer)
        hub_process.process.send_signal(signal.SIGSTOP)
        if way == "batch":
            batch.ack()
        for message in batch:
            if way == "reject":
                message.reject("no")
            else:
                message.ack()
        if way == "closed":
            consumer.close()
        hub_process.kill()
        consumer.close()
        hub_process.start()
        with pytest.raises(VerdictsUnconfirmed) as error:
            fab.flush(PATIENCE_S)
        assert error.value.messages == (("a", 1), ("a", 2), ("a", 3))
        assert error.value.count == 3
        fab.flush(PATIENCE_S)  # told once


def test_flush_names_verdicts_of_handlers(hub_process: HubProcess) -> None:
    def handle(message: Message) -> None:
        hub_process.process.send_signal(signal.SIGSTOP)

    with connect(hub_process) as fab:
        fab.publish("a", b"1")
        fab.work("a", handle, group="g", count=1)
        hub_process.kill()
        hub_process.start()
        with pytest.raises(VerdictsUnconfirmed, match="a seq 1"):
            fab.flush(PATIENCE_S)


def test_close_names_verdicts_that_died_with_the_hub(hub_process: HubProcess) -> None:
    fab = connect(hub_process)
    fab.publish("a", b"1")
    (message,) = fab.fetch("a", group="g", timeout=PATIENCE_S)
    hub_process.process.send_signal(signal.SIGSTOP)
    message.ack()
    hub_process.kill()
    hub_process.start()
    with pytest.raises(VerdictsUnconfirmed, match="a seq 1"):
        fab.close(PATIENCE_S)


def test_settle_says_when_the_hub_died(hub_process: HubProcess) -> None:
    with connect(hub_process) as fab:
        fab.publish("a", b"1")
        (message,) = fab.fetch("a", group="g", timeout=PATIENCE_S)
        hub_process.process.send_signal(signal.SIGSTOP)

        def restart() -> None:
            eventually(lambda: fab._session.subscriptions and not fab._session.subscriptions.settled)
            hub_process.kill()
            hub_process.start()

        thread = threading.Thread(target=restart)
        thread.start()
        with pytest.raises(VerdictsUnconfirmed, match="a seq 1"):
            message.settle(timeout=PATIENCE_S)
        thread.join(PATIENCE_S)
        fab.flush(PATIENCE_S)  # the caller of settle has heard of it
        (again,) = fab.fetch("a", group="g", timeout=PATIENCE_S)
        again.settle(timeout=PATIENCE_S)


def test_what_came_again_and_was_settled_is_not_named(hub_process: HubProcess) -> None:
    with connect(hub_process) as fab:
        fab.publish_many("a", [b"1", b"2", b"3"])
        messages = fab.fetch("a", group="g", count=3, at_least=3, timeout=PATIENCE_S)
        hub_process.process.send_signal(signal.SIGSTOP)
        for message in messages:
            message.ack()
        hub_process.kill()
        hub_process.start()
        again = fab.fetch("a", group="g", count=3, at_least=3, timeout=PATIENCE_S)
        for message in again:
            message.ack()
        fab.flush(PATIENCE_S)
        assert settled_to(fab) == 3


def test_verdicts_survive_a_lost_connection(hub: Hub, fab: Client) -> None:
    fab.publish_many("a", [b"1", b"2"])
    with another(hub) as worker:
        one, two = worker.fetch("a", group="g", count=2, at_least=2, timeout=PATIENCE_S)
        with worker._driver.lock:
            worker._session.lost(0.0, "test")
        one.ack()
        two.settle(timeout=PATIENCE_S)
        worker.flush(PATIENCE_S)
    assert settled_to(fab) == 2


# The core: time is a number, the hub is a list of messages.


class Desk:
    """A session with one subscription."""

    def __init__(self) -> None:
        self.session: Session = live_session()
        ticket = Ticket()
        request = {"patterns": ["#"], "group": "g"}
        self.sub = self.session.subscribe(lambda chan: Subscription(chan, request), ticket)
        (asked,) = said(self.session)
        assert isinstance(asked, m.Subscribe)
        self.session.receive(m.Ok(asked.chan, asked.rid, {"group": "g", "order": "none"}), 0.0)

    def deliver(self, ordinal: int, *payloads: bytes) -> fabric_client.Batch:
        self.session.receive(deliver(self.sub.chan, ordinal, *payloads, seq=ordinal), 0.0)
        return take(self.sub)

    def settle(self, batch: fabric_client.Batch, index: int | None, decision: Decision = ACK) -> Ticket:
        ticket = Ticket()
        settle(batch, index, decision, self.session.flush, ticket)
        return ticket

    def acks(self) -> list[m.Settle]:
        return [message for message in said(self.session) if isinstance(message, m.Settle)]

    def answer(self, ack: m.Settle, stale: tuple[tuple[int, int], ...] = ()) -> None:
        self.session.receive(m.Ok(self.sub.chan, ack.rid, {"applied": 0, "stale": stale}), 0.0)

    def again(self, *, resumed: bool) -> None:
        self.session.lost(1.0, "test")
        self.session.opened(self.session.reopen_at)
        welcome(self.session, resumed=resumed, subs=[self.sub.chan] if resumed else [], now=self.session.reopen_at)


def test_each_settle_hears_of_its_own_messages() -> None:
    desk = Desk()
    batch = desk.deliver(1, *[b"x"] * 6)
    next(iter(batch)).ack()
    first, second = desk.settle(batch, 2), desk.settle(batch, 4, verdict_of("retry", 1, "no"))
    rest = desk.settle(batch, None)
    one, two, three = desk.acks()
    assert one.verdicts == ((Verdict.ACK, 1, 1, None), (Verdict.ACK, 3, 3, None))
    assert two.verdicts == ((Verdict.RETRY, 5, 5, [1000, "no"]),)
    assert three.verdicts == ((Verdict.ACK, 2, 2, None), (Verdict.ACK, 4, 4, None), (Verdict.ACK, 6, 6, None))
    desk.answer(one, ((1, 1),))
    assert first.done
    first.result()
    assert not second.done
    desk.answer(two, ((5, 5),))
    with pytest.raises(Stale):
        second.result()
    desk.answer(three, ((4, 4),))
    with pytest.raises(Stale) as error:
        rest.result()
    assert error.value.fields["seqs"] == [4]
    with pytest.raises(FabricError, match="already"):
        desk.settle(batch, 2).result()


def test_a_settle_is_sent_again_on_a_resumed_session() -> None:
    desk = Desk()
    ticket = desk.settle(desk.deliver(1, b"x"), 0)
    (ack,) = desk.acks()
    desk.again(resumed=True)
    assert desk.acks() == [ack]
    desk.answer(ack)
    ticket.result()


def test_the_answer_to_a_verdict_may_come_after_that_to_its_unsubscribe() -> None:
    desk = Desk()
    desk.deliver(1, b"x").ack()
    desk.session.unsubscribe(desk.sub, Ticket())
    ack, left = said(desk.session)
    assert isinstance(ack, m.Settle)
    assert isinstance(left, m.Unsubscribe)
    desk.session.receive(m.Ok(desk.sub.chan, left.rid, {}), 0.0)
    assert not desk.session.settled
    desk.answer(ack)
    assert desk.session.settled
    assert not desk.session.subscriptions


def test_verdicts_of_a_closed_subscription_are_named_too() -> None:
    desk = Desk()
    desk.deliver(1, b"x", b"y").ack()
    desk.session.unsubscribe(desk.sub, Ticket())
    desk.again(resumed=False)
    error = desk.session.unsettled.take()
    assert error is not None
    assert error.messages == (("t", 1), ("t", 2))


def test_a_verdict_on_a_message_of_a_lost_session_is_named() -> None:
    desk = Desk()
    one, two, three = desk.deliver(1, b"x", b"y", b"z")
    desk.again(resumed=False)
    one.ack()
    two.reject("no")
    three.release()  # it comes again anyway
    assert not desk.session.settled
    desk.session.flush(desk.sub)
    assert desk.acks() == []
    error = desk.session.unsettled.take()
    assert error is not None
    assert (error.messages, error.count) == ((("t", 1), ("t", 2)), 2)


def test_only_some_are_named_and_all_are_counted() -> None:
    desk = Desk()
    desk.deliver(1, *[b"x"] * 3000).ack()
    desk.again(resumed=False)
    error = desk.session.unsettled.take()
    assert error is not None
    assert (len(error.messages), error.count) == (1000, 3000)
    assert desk.session.unsettled.take() is None


def test_a_refused_verdict_is_told_by_settle_or_by_flush() -> None:
    desk = Desk()
    batch = desk.deliver(1, b"x", b"y")
    waited = desk.settle(batch, 0)
    (ack,) = desk.acks()
    desk.session.receive(m.Err(desk.sub.chan, ack.rid, Code.INTERNAL, "no", {}), 0.0)
    with pytest.raises(HubError):
        waited.result()
    desk.session.subscriptions.raise_refusal()
    batch.message(1).ack()
    desk.session.unsubscribe(desk.sub, Ticket())
    (ack,) = desk.acks()
    desk.session.receive(m.Err(desk.sub.chan, ack.rid, Code.INTERNAL, "no", {}), 0.0)
    with pytest.raises(HubError) as error:
        desk.session.subscriptions.raise_refusal()
    assert error.value.fields["messages"] == [("t", 2)]
    desk.session.subscriptions.raise_refusal()


@pytest.mark.parametrize(("name", "how"), [("ack", {"delay": 1}), ("release", {"reason": "x"}), ("done", {})])
def test_a_verdict_in_words_is_checked(name: str, how: dict[str, object]) -> None:
    with pytest.raises(FabricError):
        verdict_of(name, how.get("delay"), how.get("reason"))  # type: ignore[arg-type]
