"""Spans in memory, and both clients with one face: what a test does with one client, it does with the other.

A call of the asyncio client runs in an event loop of the test's own thread, in a copy of the test's context, so that
the test's current span is the caller's.
"""

import asyncio
import contextvars
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

import fabric_client
from fabric.hub.hub import Hub
from tests.patience import PATIENCE_S

BIND = "inproc://spans"


class Traces:
    """The finished spans of a test, and a tracer for spans of its own."""

    def __init__(self, provider: Any, memory: Any) -> None:
        self.provider = provider
        self.tracer = provider.get_tracer("test")
        self._memory = memory

    def all(self) -> list[Any]:
        return list(self._memory.get_finished_spans())

    def named(self, name: str) -> list[Any]:
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> Any:
        found = self.named(name)
        assert len(found) == 1, f"{name}: {[span.name for span in self.all()]}"
        return found[0]

    def span(self, name: str) -> Any:
        return self.tracer.start_as_current_span(name)


def linked(span: Any) -> list[int]:
    """The ids of the spans that a span is linked to."""
    return [link.context.span_id for link in span.links]


def traceparent(span: Any) -> str:
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


def is_child(span: Any, parent: Any) -> bool:
    same_trace: bool = span.context.trace_id == parent.context.trace_id
    return same_trace and span.parent is not None and span.parent.span_id == parent.context.span_id


class Blocking:
    """The blocking client."""

    def __init__(self, hub: Hub, **settings: Any) -> None:
        self.fab: Any = fabric_client.connect(BIND, context=hub.context, **settings)

    def close(self) -> None:
        self.fab.close()

    def do(self, call: Callable[[Any], Any]) -> Any:
        result = call(self.fab)
        return list(result) if inspect.isgenerator(result) else result

    def loop(self, each: Callable[[Any], None], *patterns: str, batches: bool = False, **settings: Any) -> None:
        """Consume, and call `each` in the loop, in the block of the message and outside of spans."""
        consume = self.fab.consume_batches if batches else self.fab.consume
        for item in consume(*patterns, start="first", timeout=PATIENCE_S, **settings):
            with item:
                each(item)

    def work(self, handler: Callable[..., Any], *patterns: str, **settings: Any) -> int:
        done: int = self.fab.work(patterns, handler, start="first", timeout=PATIENCE_S, **settings)
        return done

    def ask(self, handler: Callable[[Any], Any], call: Callable[[Any], Any]) -> Any:
        """Make a call while a responder answers one request to the topic `ask`."""
        outside = contextvars.Context()  # as in another process
        responder = threading.Thread(
            target=outside.run, args=(self.fab.respond, "ask", handler), kwargs={"count": 1, "timeout": PATIENCE_S}
        )
        responder.start()
        try:
            while not self.fab.info("services")["services"]:
                time.sleep(0.01)
            result = call(self.fab)
            return result if isinstance(result, fabric_client.Message) else list(result)
        finally:
            responder.join()


class Asyncio:
    """The asyncio client."""

    def __init__(self, hub: Hub, **settings: Any) -> None:
        self._runner = asyncio.Runner()
        self.fab: Any = self._run(self._connected(hub, settings))

    @staticmethod
    async def _connected(hub: Hub, settings: dict[str, Any]) -> Any:
        return await fabric_client.aconnect(BIND, context=hub.context, **settings).__aenter__()

    def _run(self, coroutine: Any) -> Any:
        return self._runner.run(coroutine, context=contextvars.copy_context())

    def close(self) -> None:
        self._run(self.fab.close())
        self._runner.close()

    def do(self, call: Callable[[Any], Any]) -> Any:
        async def awaited() -> Any:
            result = call(self.fab)
            if hasattr(result, "__aiter__"):
                return [item async for item in result]
            return await result if inspect.isawaitable(result) else result

        return self._run(awaited())

    def loop(self, each: Callable[[Any], None], *patterns: str, batches: bool = False, **settings: Any) -> None:
        async def consumed() -> None:
            consume = self.fab.consume_batches if batches else self.fab.consume
            async for item in consume(*patterns, start="first", timeout=PATIENCE_S, **settings):
                async with item:
                    each(item)

        self._run(consumed())

    def work(self, handler: Callable[..., Any], *patterns: str, **settings: Any) -> int:
        done: int = self._run(self.fab.work(patterns, handler, start="first", timeout=PATIENCE_S, **settings))
        return done

    def ask(self, handler: Callable[[Any], Any], call: Callable[[Any], Any]) -> Any:
        async def asked() -> Any:
            responding = self.fab.respond("ask", handler, count=1, timeout=PATIENCE_S)
            responder = asyncio.create_task(responding, context=contextvars.Context())
            try:
                while not (await self.fab.info("services"))["services"]:
                    await asyncio.sleep(0.01)
                result = await call(self.fab)
                return [item async for item in result] if hasattr(result, "__aiter__") else result
            finally:
                await responder

        return self._run(asked())


Face = Blocking | Asyncio
