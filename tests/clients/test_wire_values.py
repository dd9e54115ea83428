"""Values that the wire cannot encode are refused at the call, and the client goes on."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import fabric_client
from fabric.hub import Hub
from fabric_client import BadMessage, Client, FabricError, PublishRefused
from fabric_client.core import wire_values
from fabric_client.core.outgoing import Prepared
from fabric_client.core.ticket import Ticket
from fabric_protocol import messages as m
from tests.clients.real_hub import another, eventually
from tests.clients.talk import Desk, bodies, live_session
from tests.patience import PATIENCE_S

ODD = "caf\udce9"  # what os.listdir gives for a name that is not UTF-8
HUGE = 1 << 70
DEEP: Any = []
for _ in range(100):
    DEEP = [DEEP]
NAN = float("nan")

CALLS: dict[str, Callable[[Client], Any]] = {
    "data as text": lambda fab: fab.publish("t", ODD),
    "data as JSON": lambda fab: fab.publish("t", {"a": ODD}),
    "data that is no JSON": lambda fab: fab.publish("t", {1, 2}),
    "NaN": lambda fab: fab.publish("t", {"a": NAN}),
    "infinity": lambda fab: fab.publish("t", [float("-inf")]),
    "nested data": lambda fab: fab.publish("t", _nested(100_000)),
    "topic": lambda fab: fab.publish(f"t.{ODD}", b""),
    "topic as bytes": lambda fab: fab.publish(b"t", b""),  # type: ignore[call-overload]
    "key": lambda fab: fab.publish("t", b"", key=ODD),
    "key as number": lambda fab: fab.publish("t", b"", key=7),  # type: ignore[call-overload]
    "id": lambda fab: fab.publish("t", b"", id=ODD),
    "id as number": lambda fab: fab.publish("t", b"", id=7),  # type: ignore[call-overload]
    "header": lambda fab: fab.publish("t", b"", headers={"h": ODD}),
    "header name": lambda fab: fab.publish("t", b"", headers={ODD: "h"}),
    "header as number": lambda fab: fab.publish("t", b"", headers={"h": 7}),  # type: ignore[dict-item]
    "headers of many": lambda fab: fab.publish_many("t", [b""], headers={"h": ODD}),
    "too many headers": lambda fab: fab.publish("t", b"", headers={str(n): "" for n in range(40_000)}),
    "nowait": lambda fab: fab.publish_nowait("t", b"", headers={"h": ODD}),
    "keys": lambda fab: fab.publish_many("t", [b""], keys=[ODD]),
    "ids": lambda fab: fab.publish_many("t", [b""], ids=[7]),  # type: ignore[list-item]
    "delay": lambda fab: fab.publish("t", b"", delay=HUGE),
    "at": lambda fab: fab.publish("t", b"", at=1e300),
    "every": lambda fab: fab.publish("t", b"", every=HUGE),
    "ttl": lambda fab: fab.publish("t", b"", ttl=NAN),
    "expiry": lambda fab: fab.publish("t", b"", expires_at=float(HUGE)),
    "expiry before 1970": lambda fab: fab.publish("t", b"", expires_at=-5.0),
    "cron": lambda fab: fab.publish("t", b"", cron=ODD),
    "cron as a set": lambda fab: fab.publish("t", b"", cron={1}),  # type: ignore[call-overload]
    "schedule": lambda fab: fab.publish("t", b"", delay=5, name=ODD),
    "level": lambda fab: fab.publish("t", b"", level=7),  # type: ignore[call-overload]
    "cancel": lambda fab: fab.cancel(HUGE),
    "cancel by name": lambda fab: fab.cancel(name=ODD),
    "schedules": lambda fab: list(fab.schedules(page=HUGE)),
    "pattern": lambda fab: fab.consume(f"t.{ODD}", group="g"),
    "group": lambda fab: fab.consume("t", group=ODD),
    "group as number": lambda fab: fab.consume("t", group={7}),  # type: ignore[arg-type]
    "order": lambda fab: fab.consume("t", group="g", order={1}),  # type: ignore[arg-type]
    "attempts": lambda fab: fab.consume("t", group="g", attempts=HUGE),
    "start": lambda fab: fab.consume("t", group="g", start={"seq": HUGE}),
    "start as a map of numbers": lambda fab: fab.consume("t", group="g", start={7: 7}),  # type: ignore[dict-item]
    "fetch": lambda fab: fab.fetch("t", group="g", count=HUGE),
    "get by name": lambda fab: list(fab.get(ODD)),
    "info": lambda fab: fab.info("group", name=ODD),
    "info of a set": lambda fab: fab.info("group", name={1}),  # type: ignore[arg-type]
    "info nested": lambda fab: fab.info("group", name=DEEP),
    "admin": lambda fab: fab.admin.groups.create("g", ODD),
    "admin of numbers": lambda fab: fab.admin.topics.create("t", max_msgs=HUGE),
    "admin of a set": lambda fab: fab.admin.groups.delete({1}),  # type: ignore[arg-type]
    "request": lambda fab: fab.request("t", ODD),
    "request headers": lambda fab: fab.request("t", b"", headers={"h": ODD}),
    "request timeout": lambda fab: fab.request("t", b"", timeout=float("inf")),
    "respond": lambda fab: fab.respond(ODD, lambda request: None, timeout=0.1),
    "respond as group": lambda fab: fab.respond("t", lambda request: None, group=ODD, timeout=0.1),
}


def _nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("what", CALLS)
def test_each_call_refuses_what_cannot_be_sent(hub: Hub, what: str) -> None:
    with another(hub) as fab:
        with pytest.raises((FabricError, TypeError)) as caught:
            CALLS[what](fab)
        assert not isinstance(caught.value, fabric_client.HubError | fabric_client.ConnectionLost), caught.value
        assert fab.publish("t", b"the client lives").seq
        assert any(thread.name == "fabric-client" and thread.is_alive() for thread in threading.enumerate())


def test_asyncio_refuses_it_too(hub: Hub) -> None:
    async def main() -> None:
        async with fabric_client.aconnect("inproc://hub", context=hub.context) as fab:
            for call in (
                lambda: fab.publish("t", ODD),
                lambda: fab.publish("t", [NAN]),
                lambda: fab.info("group", name=ODD),
                lambda: fab.cancel(HUGE),
                lambda: fab.admin.topics.create("t", max_msgs=HUGE),
            ):
                with pytest.raises(BadMessage):
                    await call()
            with pytest.raises(BadMessage):
                await fab.fetch("t", group=ODD)
            assert (await fab.publish("t", b"the client lives", timeout=PATIENCE_S)).seq

    asyncio.run(main())


@pytest.mark.parametrize("how", [{"name": ODD}, {"producer": ODD}, {"name": 7}])
def test_names_of_clients_are_checked(hub: Hub, how: dict[str, Any]) -> None:
    with pytest.raises(BadMessage):
        fabric_client.connect("inproc://hub", context=hub.context, **how)


def test_a_reason_may_have_any_character(hub: Hub) -> None:
    with another(hub) as fab:
        fab.publish_many("t", [b"1", b"2"])
        messages = fab.consume("t", group="g", attempts=1)
        first, second = next(iter(messages)), next(iter(messages))
        first.reject(f"no {ODD}")
        with pytest.raises(ValueError, match="caf"), second:
            raise ValueError(ODD)
        with pytest.raises(BadMessage):
            second.reject(7)  # type: ignore[arg-type]
        fab.flush(PATIENCE_S)
        assert fab.publish("t", b"the client lives").seq


def test_a_reply_that_cannot_be_sent_is_an_error_at_the_call(hub: Hub) -> None:
    with another(hub) as fab, another(hub, "responder") as other:
        thread = threading.Thread(
            target=other.respond, args=("ask", lambda request: {"bad": ODD}), kwargs={"count": 1, "timeout": PATIENCE_S}
        )
        thread.start()
        eventually(lambda: fab.info("services")["services"])
        with pytest.raises(fabric_client.RemoteError):
            fab.request("ask", b"", timeout=PATIENCE_S)
        thread.join(PATIENCE_S)


# The last line of defence: a value that no check has found.


def test_a_message_that_cannot_be_encoded_fails_alone() -> None:
    desk = Desk()
    desk.put("first")
    (first,) = desk.pump()
    good, also_good = desk.put("good"), None
    bad = Ticket()
    desk.publisher.put(Prepared("t", b"bad", b"", b"", {"h": ODD}, 100), desk.publisher.open_block.options, bad)
    desk.publisher.put(Prepared("t", b"bad and unattended", b"", b"", {"h": 7}, 100), desk.publisher.open_block.options)  # type: ignore[dict-item]
    also_good = desk.put("also good")
    desk.confirm(first)
    sent = desk.pump()
    assert [bodies(one) for one in sent] == [[b"good"], [b"also good"]]
    desk.confirm(*sent, seq=5)
    assert (good.result().seq, also_good.result().seq) == (5, 6)
    with pytest.raises(PublishRefused, match="encoded"):
        bad.result()
    (refusal,) = desk.publisher.take_refusals()
    assert refusal.payloads == (b"bad and unattended",)
    assert desk.publisher.settled


def test_a_call_that_cannot_be_encoded_fails_alone(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_values, "message", lambda said: said)
    with another(hub) as fab:
        with pytest.raises(BadMessage, match="encoded"):
            fab.info("group", name=ODD)
        assert fab.publish("t", b"the client lives").seq


def test_a_publish_that_cannot_be_encoded_fails_alone() -> None:
    session = live_session()
    ticket = Ticket()
    session.publisher.put(Prepared("t", b"x", b"", b"", None, 100), session.publisher.open_block.options, ticket)
    session.tick(0.0)
    (publish,) = session.out
    session.encode_failed(publish, ValueError("odd"))
    with pytest.raises(PublishRefused, match="odd"):
        ticket.result()
    session.encode_failed(m.Ping(0), ValueError("odd"))
    assert session.live


@pytest.mark.parametrize("topic", [["t"], {"t": 1}, 5, None, b"t"])
def test_a_topic_that_is_no_text_is_refused(hub: Hub, topic: Any) -> None:
    with another(hub) as fab:
        with pytest.raises(BadMessage, match="topic is"):
            fab.publish(topic, b"x")
        assert fab.publish("t", b"the client lives").seq


@pytest.mark.parametrize("headers", [5, "h", ["h"], {"h"}, 0.5])
def test_headers_that_are_no_dict_are_refused(hub: Hub, headers: Any) -> None:
    with another(hub) as fab:
        with pytest.raises(BadMessage, match="headers is"):
            fab.publish("t", b"x", headers=headers)
        assert fab.publish("t", b"the client lives").seq
