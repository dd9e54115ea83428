"""Types of the client. mypy checks each `assert_type` with the project; here the same calls run."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import assert_type

import pytest

import fabric_client
from fabric.hub import Hub
from fabric_client import AsyncClient, Client, Message, Receipt, Scheduled
from tests.clients.real_hub import another, eventually
from tests.patience import PATIENCE_S


def test_a_publish_for_later_is_scheduled(hub: Hub) -> None:
    with another(hub) as fab:
        assert_type(fab.publish("t", b"now"), Receipt)
        assert_type(fab.publish("t", b"now", key="k", level="received", ttl=5), Receipt)
        later = fab.publish("t", b"later", delay=timedelta(hours=1), priority=7)
        assert_type(later, Scheduled)
        assert_type(fab.publish("t", b"later", at=datetime.now(UTC) + timedelta(hours=1), name="n"), Scheduled)
        assert_type(fab.publish("t", b"again", every=3600), Scheduled)
        assert_type(fab.publish("t", b"again", delay=60, every=3600), Scheduled)
        assert_type(fab.publish("t", b"again", cron="0 6 * * *"), Scheduled)
        assert fab.cancel(later.id) == later.due


def test_a_publish_for_later_is_scheduled_with_asyncio(hub: Hub) -> None:
    async def main() -> None:
        fab: AsyncClient
        async with fabric_client.aconnect("inproc://hub", context=hub.context) as fab:
            assert_type(await fab.publish("t", b"now", timeout=PATIENCE_S), Receipt)
            assert_type(await fab.publish("t", b"later", delay=3600), Scheduled)
            assert_type(await fab.publish("t", b"later", cron="0 6 * * *"), Scheduled)

    asyncio.run(main())


def words_that_a_checker_refuses(fab: Client) -> None:
    """Never called: each line must be an error for the type checker, or its comment would be one."""
    fab.publish("t", b"", level="jornaled")  # type: ignore[call-overload]
    fab.publish("t", b"", dealy=5)  # type: ignore[call-overload]
    fab.consume("t", group="g", order="keys")  # type: ignore[arg-type]
    fab.consume("t", group="g", start="frist")  # type: ignore[arg-type]
    fab.admin.topics.create("t", keep="for ever")  # type: ignore[arg-type]
    fab.admin.topics.create("t", dedupe="sliding")  # type: ignore[arg-type]
    fab.admin.queues.create("q", on_full="drop")  # type: ignore[arg-type]


# What is received is what was published.


@pytest.mark.parametrize(
    "data", ["text", "", "grüße ✓", b"bytes", b"\xff\x00", {"a": [1, None, True]}, [1.5], 7, None, True]
)
def test_data_comes_back_as_it_was_published(hub: Hub, data: object) -> None:
    with another(hub) as fab:
        fab.publish("t", data)
        fab.publish_many("t", [data, data])
        fab.publish_nowait("t", data)
        fab.flush(PATIENCE_S)
        found = list(fab.get("t", n=10))
    assert [(type(message.data), message.data) for message in found] == [(type(data), data)] * 4


def test_text_in_a_request_is_answered_with_text(hub: Hub) -> None:
    with another(hub) as fab, another(hub, "responder") as other:
        answer = {"count": 1, "timeout": PATIENCE_S}
        thread = threading.Thread(
            target=other.respond, args=("ask", lambda request: f"you said: {request.data}"), kwargs=answer
        )
        thread.start()
        eventually(lambda: fab.info("services")["services"])
        assert fab.request("ask", "hello", timeout=PATIENCE_S).data == "you said: hello"
        thread.join(PATIENCE_S)


def test_a_content_type_of_ones_own_stays(hub: Hub) -> None:
    with another(hub) as fab:
        fab.publish("t", "<p>", headers={"content-type": "text/html"})
        fab.publish("t", b'{"a": 1}', headers={"content-type": "application/json"})
        fab.publish("t", b"text", headers={"content-type": "text/plain"})
        data = [message.data for message in fab.get("t", n=3)]
    assert data == [b"<p>", {"a": 1}, "text"]


def test_a_message_has_its_id(hub: Hub) -> None:
    with another(hub) as fab:
        fab.publish("t", b"1", id="order-1")
        fab.publish("t", b"2")
        fab.publish_many("t", [b"3", b"4"], ids=["order-3", b"\xff"])
        found: list[Message] = list(fab.fetch("t", group="g", start="first", count=4, timeout=PATIENCE_S))
        while len(found) < 4:
            found += fab.fetch("t", group="g", count=4 - len(found), timeout=PATIENCE_S)
        assert [message.id for message in found] == ["order-1", None, "order-3", "\ufffd"]


def test_tracebacks_show_the_hint(hub: Hub) -> None:
    with another(hub) as fab, pytest.raises(fabric_client.BadMessage) as caught:
        fab.publish("bad topic", b"")
    assert caught.value.__notes__ == [f"hint: {caught.value.hint}"]
    with another(hub) as fab, pytest.raises(fabric_client.NotFound) as refused:
        fab.cancel(999)
    assert refused.value.__notes__ == [f"hint: {refused.value.hint}"]
