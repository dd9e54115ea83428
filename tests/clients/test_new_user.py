"""The first attempts of a new user: durations in words, handlers of the wrong shape, work without patterns, a fetch
that returns when a message is there."""

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import fabric_client
from fabric.hub import Hub
from fabric_client import AsyncClient, Client, HubError, Message, Request, Transaction
from fabric_client.core.handlers import caller, check_handler, is_async
from fabric_client.core.verdict_exceptions import patience, seconds
from fabric_protocol.errors import FabricError
from tests.clients.real_hub import another, eventually, running
from tests.patience import PATIENCE_S


@pytest.mark.parametrize(
    ("given", "length"),
    [(30, 30), (0.5, 0.5), (timedelta(minutes=2), 120), ("30s", 30), ("500ms", 0.5), ("1h30m", 5400), ("2d", 172_800)],
)
def test_a_duration_may_be_written_in_three_ways(given: Any, length: float) -> None:
    assert seconds(given) == length


@pytest.mark.parametrize("wrong", ["30", "s", "soon", "1h and more", "-3s", True, None, b"30s", [1]])
def test_what_is_no_duration_is_refused_with_a_hint(wrong: Any) -> None:
    with pytest.raises(FabricError, match=r"lease .* is not a duration") as error:
        seconds(wrong, "lease")
    assert "'30s'" in error.value.hint


def test_a_timeout_is_not_negative() -> None:
    assert patience(None) is None
    for wrong in (-1, float("nan"), timedelta(days=-1)):
        with pytest.raises(FabricError, match="timeout"):
            patience(wrong)


def test_every_duration_of_consuming_may_be_a_text(hub: Hub, fab: Client) -> None:
    fab.publish_many("a", [b"1", b"2", b"3", b"4"])
    settings: Any = {"lease": "20s", "lease_max": "1h", "backoff_first": "10ms", "backoff_max": "1m"}
    (message,) = fab.fetch("a", group="g", timeout="1m", **settings)
    message.touch("40s")
    message.settle("retry", delay="1h", timeout="1m")
    for message in fab.consume("a", group="g", count=1, timeout="1m"):
        message.retry("1h")
    with fab.consume_batches("a", group="g", count=1, timeout="1m") as batches:
        next(batches).settle(timeout="1m")
    assert fab.work("a", lambda message: None, group="g", count=1, timeout="1m") == 1
    assert fab.info("group", "g", timeout="1m")["settings"]["lease_ms"] == 20_000
    assert [message.body for message in fab.get("a", timeout="1m")] == [b"1"]
    fab.publish("b", b"1", timeout="1m", ttl="1h")
    fab.drain("1s")
    fab.flush("1m")
    with fabric_client.connect("inproc://hub", context=hub.context, timeout="1m") as other:
        other.close("1m")


def test_a_wrong_duration_leaves_no_subscription(hub: Hub, fab: Client) -> None:
    for call in (fab.consume, fab.consume_batches, fab.fetch):
        with pytest.raises(FabricError, match="timeout"):
            call("a", group="g", timeout="soon")
    with pytest.raises(FabricError, match="timeout"):
        fab.work("a", print, group="g", timeout="soon")
    with pytest.raises(FabricError, match="lease"):
        fab.consume("a", group="g", lease="soon")
    assert not fab._session.subscriptions


# Handlers.


def plain(message: Message) -> None: ...
def transacting(message: Message, ctx: Transaction) -> None: ...
async def coroutine(message: Message) -> None: ...
async def transacting_coroutine(message: Message, ctx: Transaction) -> None: ...
def defaulted(message: Message, retries: int = 3) -> None: ...
def anything(*messages: Message) -> None: ...
def nothing() -> None: ...
def three(message: Message, ctx: Transaction, more: int) -> None: ...
def named(message: Message, *, more: int) -> None: ...


class Handler:
    def method(self, message: Message) -> None: ...
    async def __call__(self, message: Message) -> None: ...


@pytest.mark.parametrize(
    "handler",
    [plain, transacting, coroutine, transacting_coroutine, defaulted, anything, Handler().method, Handler(), print,
     functools.partial(three, more=1), lambda message: None],
)  # fmt: skip
def test_handlers_that_fit(handler: Callable[..., Any]) -> None:
    assert callable(caller(handler))


@pytest.mark.parametrize("handler", [nothing, three, named, "plain", None, lambda: None])
def test_a_handler_that_does_not_fit_is_refused_at_the_call(handler: Any, hub: Hub, fab: Client) -> None:
    fab.publish("a", b"1")
    with pytest.raises(FabricError, match="handler") as error:
        fab.work("a", handler, group="g", attempts=1)
    assert "handler(message)" in error.value.hint
    with pytest.raises(FabricError, match="handler"):
        fab.respond("a", handler)
    assert not fab._session.subscriptions

    async def main() -> None:
        async with fabric_client.aconnect("inproc://hub", context=hub.context) as twin:
            with pytest.raises(FabricError, match="handler"):
                await twin.work("a", handler, group="g", attempts=1)
            assert not twin._session.subscriptions

    asyncio.run(main())
    (message,) = fab.fetch("a", group="g", timeout=PATIENCE_S)
    assert message.attempt == 1


def generator(message: Message) -> Iterator[int]:
    yield 1


async def async_generator(message: Message) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    "handler",
    [coroutine, transacting_coroutine, async_generator, generator, Handler(), functools.partial(coroutine)],
)
def test_a_handler_whose_call_runs_nothing_is_refused(handler: Any, hub: Hub, fab: Client) -> None:
    fab.publish("a", b"1")
    with pytest.raises(FabricError, match=r"coroutine function|is a generator") as error:
        fab.work("a", handler, group="g", timeout=0)
    assert "handler(message)" in error.value.hint
    assert not fab._session.subscriptions
    (message,) = fab.fetch("a", group="g", timeout=PATIENCE_S)
    assert message.attempt == 1


@pytest.mark.parametrize("handler", [coroutine, async_generator, Handler()])
def test_the_blocking_client_answers_no_requests_with_coroutines(handler: Any, fab: Client) -> None:
    with pytest.raises(FabricError, match="coroutine function"):
        fab.respond("a", handler)
    assert not fab._session.subscriptions


def test_asyncio_refuses_generators_as_handlers(hub: Hub, fab: Client) -> None:
    async def main() -> None:
        async with fabric_client.aconnect("inproc://hub", context=hub.context) as twin:
            for handler in (generator, async_generator):
                with pytest.raises(FabricError, match="is a generator"):
                    await twin.work("a", handler, group="g", timeout=0)

    asyncio.run(main())


@pytest.mark.parametrize("handler", [lambda message: coroutine(message), lambda message: generator(message)])
def test_a_message_whose_handling_never_ran_is_not_acked(handler: Any, hub: Hub, fab: Client) -> None:
    """A handler may hide that it only makes a coroutine."""
    fab.publish("a", b"1")
    assert fab.work("a", handler, group="g", count=1, timeout=PATIENCE_S, backoff_first=0) == 1
    (message,) = fab.fetch("a", group="g", timeout=PATIENCE_S)
    assert message.attempt == 2
    message.settle()


def test_asyncio_awaits_a_coroutine_that_a_plain_function_returns(hub: Hub, fab: Client) -> None:
    done: list[bytes] = []

    async def handle(message: Message) -> None:
        done.append(message.body)

    async def main() -> None:
        async with fabric_client.aconnect("inproc://hub", context=hub.context) as twin:
            how: Any = {"group": "g", "count": 1, "timeout": PATIENCE_S, "backoff_first": 0}
            await twin.work("a", lambda message: generator(message), **how)
            await twin.work("a", lambda message: handle(message), group="g", count=1, timeout=PATIENCE_S)

    fab.publish("a", b"1")
    asyncio.run(main())
    assert done == [b"1"]


@pytest.mark.parametrize("hook", [5, lambda: None, generator, coroutine])
def test_a_hook_of_refreshes_that_does_not_fit_is_refused(hook: Any, fab: Client) -> None:
    for call in (fab.consume, fab.consume_batches):
        with pytest.raises(FabricError, match="on_refresh"):
            call("a", group="g", on_refresh=hook)
    with pytest.raises(FabricError, match="on_refresh"):
        fab.work("a", plain, group="g", on_refresh=hook)
    assert not fab._session.subscriptions


def test_handlers_that_run_in_the_event_loop_are_known() -> None:
    async def parts(request: Request) -> AsyncIterator[bytes]:
        yield b"1"

    for handler in (coroutine, functools.partial(coroutine), Handler(), parts, caller(transacting_coroutine)):
        assert is_async(handler)
    for other in (plain, Handler().method, print, caller(transacting)):
        assert not is_async(other)
    assert check_handler(parts, "handler(request)", 1) == 1


def test_a_group_that_exists_needs_no_patterns(hub: Hub, fab: Client) -> None:
    fab.admin.groups.create("g", "a.*")
    fab.publish_many("a.b", [b"1", b"2"])
    found: list[bytes] = []
    assert fab.work(handler=lambda message: found.append(message.body), group="g", count=1, timeout=PATIENCE_S) == 1

    async def handle(message: Message) -> None:
        found.append(message.body)

    async def main() -> None:
        async with fabric_client.aconnect("inproc://hub", context=hub.context) as twin:
            await twin.work(handler=handle, group="g", count=1, timeout=PATIENCE_S)

    asyncio.run(main())
    assert sorted(found) == [b"1", b"2"]
    with pytest.raises(HubError, match=r"there is no group .*, and a new group needs at least one"):
        fab.work(handler=plain, group="new")


# Plain functions in an event loop.


def run(hub: Hub, scenario: Callable[[AsyncClient], Any]) -> None:
    async def main() -> None:
        async with fabric_client.aconnect("inproc://hub", context=hub.context) as fab:
            await scenario(fab)

    asyncio.run(main())


def test_plain_handlers_do_not_hold_up_the_event_loop(hub: Hub, fab: Client) -> None:
    fab.publish_many("a", [b"%d" % number for number in range(8)])
    all_at_work, released = threading.Barrier(5), threading.Event()
    threads: set[int] = set()

    def handle(message: Message, ctx: Transaction) -> None:
        threads.add(threading.get_ident())
        if int(message.body) < 4:
            all_at_work.wait(PATIENCE_S)  # four at once, and the event loop is the fifth
        ctx.publish("out", message.body)

    async def scenario(twin: AsyncClient) -> None:
        work = asyncio.create_task(twin.work("a", handle, group="g", concurrency=4, count=8))
        await asyncio.to_thread(all_at_work.wait, PATIENCE_S)
        assert await work == 8

    run(hub, scenario)
    released.set()
    assert len(threads) <= 4
    assert sorted(message.body for message in fab.get("out", n=100)) == [b"%d" % number for number in range(8)]


def test_verdicts_of_a_plain_handler_are_those_of_a_coroutine(hub: Hub, fab: Client) -> None:
    fab.publish_many("a", [b"ack", b"retry", b"reject", b"fail"])

    def handle(message: Message) -> None:
        if message.attempt == 1:
            match message.body:
                case b"ack":
                    message.ack()  # from another thread than the loop's
                case b"retry":
                    raise fabric_client.Retry(0)
                case b"reject":
                    raise fabric_client.Reject("no")
                case b"fail":
                    raise ValueError("no")

    async def scenario(twin: AsyncClient) -> None:
        await twin.work("a", handle, group="g", count=6, timeout=PATIENCE_S, backoff_first=0)
        await twin.flush(PATIENCE_S)

    run(hub, scenario)
    (letter,) = fab.get("$dlq.g", n=10)
    assert letter.body == b"reject"
    assert fab.info("group", "g")["floor"] >= 4


def test_a_plain_handler_that_runs_when_work_is_cancelled_may_end(hub: Hub, fab: Client) -> None:
    fab.publish("a", b"1")
    begun, goes_on = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        begun.set()
        goes_on.wait(PATIENCE_S)

    async def scenario(twin: AsyncClient) -> None:
        work = asyncio.create_task(twin.work("a", handle, group="g"))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        work.cancel()
        await asyncio.sleep(0)
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await work
        await twin.flush(PATIENCE_S)

    run(hub, scenario)
    assert fab.info("group", "g")["floor"] == 1, "what it did counts"


def test_plain_functions_answer_requests_in_threads(hub: Hub, fab: Client) -> None:
    both = threading.Barrier(3)

    def one(request: Request) -> bytes:
        both.wait(PATIENCE_S)
        return request.body + b"!"

    def several(request: Request) -> Iterator[bytes]:
        yield b"1"
        yield b"2"

    def ask(body: bytes) -> bytes:
        with another(hub, body.decode()) as client:
            return client.request("q.one", body, timeout=PATIENCE_S).body

    async def scenario(twin: AsyncClient) -> None:
        answering = asyncio.create_task(twin.respond("q.one", one, count=2))
        more = asyncio.create_task(twin.respond("q.several", several, count=1))
        await until(lambda: len(hub._router.requests.services._by_name) == 2)
        asking = [asyncio.to_thread(ask, body) for body in (b"a", b"b")]
        waiting = asyncio.gather(*asking)
        await asyncio.to_thread(both.wait, PATIENCE_S)  # two at work, and the loop goes on
        assert sorted(await waiting) == [b"a!", b"b!"]
        replies = await twin.request("q.several", b"", replies_max=10, timeout=PATIENCE_S)
        assert [reply.body async for reply in replies] == [b"1", b"2"]
        assert (await answering, await more) == (2, 1)

    async def until(condition: Callable[[], object]) -> None:
        await asyncio.to_thread(eventually, condition)

    run(hub, scenario)


# Fetching.


def test_a_fetch_returns_when_something_is_there(hub: Hub, fab: Client) -> None:
    fab.publish_many("a", [b"1", b"2"])
    assert len(fab.fetch("a", group="g", count=10, timeout=3600)) == 2


def test_a_fetch_returns_when_something_comes(hub: Hub, fab: Client) -> None:
    fab.admin.groups.create("g", "a")
    with another(hub) as other, running(lambda: other.publish_many("a", [b"1", b"2"])):
        assert fab.fetch("a", group="g", count=10, timeout=3600)


def test_a_fetch_may_wait_for_more(hub: Hub, fab: Client) -> None:
    fab.publish("a", b"1")

    def publish() -> None:
        eventually(lambda: fab.info("group", "g")["consumers"])
        fab.publish("a", b"2")

    with another(hub) as other:
        fab.admin.groups.create("g", "a")
        with running(publish):
            messages = other.fetch("a", group="g", count=10, at_least=2, timeout=3600)
        assert [message.body for message in messages] == [b"1", b"2"]
        began = time.monotonic()
        assert other.fetch("a", group="g", count=10, timeout="50ms") == []
        assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize("how", [{"count": 0}, {"count": 2, "at_least": 3}, {"at_least": 0}, {"count": True}])
def test_the_numbers_of_a_fetch_are_checked(fab: Client, how: dict[str, Any]) -> None:
    with pytest.raises(FabricError, match="is 1"):
        fab.fetch("a", group="g", **how)
