"""Values of the wrong type are refused at the call by both clients, with an error that names the value."""

import asyncio
import copy
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import fabric_client
from fabric.hub import Hub
from fabric_client import Client, Message
from fabric_protocol.errors import FabricError


def plain(message: Message) -> None: ...


@pytest.mark.parametrize("wrong", [["a"], ("a", "b"), 5, None, b"a"])
def test_patterns_are_texts(wrong: Any, fab: Client) -> None:
    calls: list[Callable[..., Any]] = [fab.consume, fab.consume_batches, fab.fetch, fab.serve]
    for call in calls:
        with pytest.raises(FabricError, match="not text") as error:
            call(wrong, group="g")
        assert "*patterns" in error.value.hint
    assert not fab._session.subscriptions


@pytest.mark.parametrize("wrong", [5, None, b"a", [5], [b"a"]])
def test_patterns_of_handlers_are_texts(wrong: Any, fab: Client) -> None:
    with pytest.raises(FabricError, match="not text"):
        fab.work(wrong, plain, group="g")
    with pytest.raises(FabricError, match="not text"):
        fab.respond(wrong, plain)


@pytest.mark.parametrize(
    "how",
    [{"prefetch": "10"}, {"prefetch": 1.5}, {"prefetch": 0}, {"prefetch": True}, {"count": "3"}, {"count": -1},
     {"count": 1.5}, {"jitter": "x"}, {"jitter": 5}, {"jitter": -0.1}, {"start": "1h"}, {"start": timedelta(hours=1)}],
)  # fmt: skip
def test_settings_of_the_wrong_kind_are_refused(how: dict[str, Any], fab: Client) -> None:
    with pytest.raises(FabricError, match=next(iter(how))) as error:
        fab.consume("a", group="g", **how)
    assert error.value.hint
    assert not fab._session.subscriptions


@pytest.mark.parametrize(
    "how",
    [{"at": "tomorrow"}, {"at": timedelta(hours=1)}, {"at": True}, {"expires_at": "x"}, {"headers": "x"},
     {"headers": [("a", "b")]}, {"key": ""}, {"id": ""}],
)  # fmt: skip
def test_options_of_the_wrong_kind_are_refused(how: dict[str, Any], fab: Client) -> None:
    for data in (b"bytes", "text"):
        with pytest.raises(fabric_client.BadMessage) as error:
            fab.publish("a", data, **how)
        assert error.value.hint
        assert "longer" not in error.value.hint


def test_an_unknown_option_is_named(fab: Client) -> None:
    calls: list[Callable[..., Any]] = [fab.publish, fab.publish_nowait, fab.publish_many]
    for call in calls:
        with pytest.raises(TypeError, match=r"'dealy' is not an option of a publish; the options are: .*delay"):
            call("a", ["1"], dealy=5)


@pytest.mark.parametrize("how", [{"n": "5"}, {"n": 0}, {"n": 1.5}, {"time": "1h"}])
def test_numbers_of_a_get_are_checked(how: dict[str, Any], fab: Client) -> None:
    with pytest.raises(FabricError, match=r"a whole number|is not a time"):
        next(fab.get("a", **how))


@pytest.mark.parametrize("wrong", [["a"], 5, b"a"])
def test_a_get_reads_one_topic_or_pattern(wrong: Any, fab: Client) -> None:
    with pytest.raises(fabric_client.BadMessage, match="not text"):
        next(fab.get(wrong))


def test_a_text_is_one_pattern_and_not_its_letters(fab: Client) -> None:
    fab.admin.groups.create("g", "a")
    fab.admin.groups.update("g", patterns="abc")
    assert fab.info("group", "g")["patterns"] == ["abc"]
    for wrong in (["a"], 5, None):
        with pytest.raises(FabricError, match="not text"):
            fab.admin.groups.create("h", wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["abc", b"abc", {"a": 1}, 5, None, bytearray(b"abc")])
def test_many_payloads_are_a_list(wrong: Any, hub: Hub, fab: Client) -> None:
    with pytest.raises(fabric_client.BadMessage, match="not a list of payloads"):
        fab.publish_many("a", wrong)

    async def main() -> None:
        async with fabric_client.aconnect("inproc://hub", context=hub.context) as twin:
            with pytest.raises(fabric_client.BadMessage, match="not a list of payloads"):
                await twin.publish_many("a", wrong)

    asyncio.run(main())


def test_many_payloads_may_come_one_by_one(fab: Client) -> None:
    receipt = fab.publish_many("a", (b"%d" % number for number in range(3)), keys=["x", "y", "z"])
    assert receipt.count == 3
    assert [message.body for message in fab.get("a", n=5)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("url", "how", "says"),
    [
        (5, {}, "not an address"),
        ("tcp://127.0.0.1:99999", {}, "a port is 1..65535"),
        ("tcp://127.0.0.1:0", {}, "a port is 1..65535"),
        (None, {"timeout": -1}, "timeout is 0 seconds or more"),
        (None, {"session_ttl": "x"}, "session_ttl 'x' is not a duration"),
        (None, {"session_ttl": 10**400}, r"session_ttl 1000+\.\.\.0+ is not a duration"),
        (None, {"session_ttl": 0.999}, r"session_ttl is 1\.\.600 seconds, not 0.999"),
        (None, {"session_ttl": float("nan")}, r"session_ttl is 1\.\.600 seconds, not nan"),
        (None, {"heartbeat": 60.5, "session_ttl": 600}, r"heartbeat is 0\.2\.\.60 seconds"),
        (None, {"heartbeat": 0.51, "session_ttl": 1}, "more than half of session_ttl"),
        (None, {"producer": ""}, "producer is a name"),
    ],
)
def test_what_cannot_be_connected_with_is_refused_at_once(url: Any, how: dict[str, Any], says: str, hub: Hub) -> None:
    with pytest.raises(FabricError, match=says):
        fabric_client.connect(url, **how)

    async def main() -> None:
        async with fabric_client.aconnect(url, **how):
            pass

    with pytest.raises(FabricError, match=says):
        asyncio.run(main())


def test_a_client_is_neither_copied_nor_pickled(fab: Client, hub: Hub) -> None:
    """A copy that is collected would end the connection of the original."""

    async def main() -> None:
        async with fabric_client.aconnect("inproc://hub", context=hub.context) as other:
            for client in (fab, other):
                for call in (copy.copy, copy.deepcopy, pickle.dumps):
                    with pytest.raises(TypeError, match=r"call connect\(\) there"):
                        call(client)

    asyncio.run(main())
    assert fab.publish("t", b"x").seq == 1
