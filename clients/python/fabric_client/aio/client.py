"""The asyncio client, with the same methods as the blocking client.

It is used from the thread of its event loop. `publish_nowait` is a plain method here too: without room in the buffer it
raises BufferFull, and `await fab.drain()` waits for room.
"""

import asyncio
import logging
import warnings
from collections.abc import Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import zmq

from fabric_client.aio.ask import AsyncAsking
from fabric_client.aio.consume import AsyncConsuming
from fabric_client.aio.driver import AsyncDriver
from fabric_client.aio.publish import AsyncPublishing
from fabric_client.core.fetchers import Fetchers
from fabric_client.core.inbox import Inbox
from fabric_client.core.liveness import SESSION_TTL_S, liveness
from fabric_client.core.source_names import producer_name
from fabric_client.core.ticket import Ticket
from fabric_client.core.verdict_exceptions import Seconds, patience, seconds
from fabric_client.credentials import Credentials
from fabric_client.destination import destination
from fabric_client.io.handler_runs import STILL_AT_WORK, HandlerRuns
from fabric_client.options import ANSWER_S, CLOSE_S, goodbye_s, random_name
from fabric_protocol import messages as m
from fabric_protocol.errors import FabricError

log = logging.getLogger("fabric_client")


def aconnect(
    url: str | None = None,
    *,
    credentials: str | Path | Credentials | None = None,
    name: str | None = None,
    producer: str | None = None,
    source: str | None = None,
    context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
    timeout: Seconds = ANSWER_S,
    session_ttl: Seconds = SESSION_TTL_S,
    heartbeat: Seconds | None = None,
) -> "Connecting":
    """An asyncio client of the hub at `url`: `fab = await aconnect()`, or `async with aconnect() as fab`."""
    return Connecting(
        AsyncClient(
            url,
            credentials=credentials,
            name=name,
            producer=producer,
            source=source,
            context=context,
            timeout=timeout,
            session_ttl=session_ttl,
            heartbeat=heartbeat,
        )
    )


class Connecting:
    """A client that connects when it is awaited or entered."""

    def __init__(self, client: "AsyncClient") -> None:
        self._client = client

    def __await__(self) -> Generator[Any, None, "AsyncClient"]:
        return self._client.__aenter__().__await__()

    async def __aenter__(self) -> "AsyncClient":
        return await self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)


class AsyncClient(AsyncPublishing, AsyncConsuming, AsyncAsking):
    """A connection to a hub, used from the tasks of one event loop. Made by `aconnect`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        credentials: str | Path | Credentials | None = None,
        name: str | None = None,
        producer: str | None = None,
        source: str | None = None,
        context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
        timeout: Seconds = ANSWER_S,
        session_ttl: Seconds = SESSION_TTL_S,
        heartbeat: Seconds | None = None,
    ) -> None:
        self._closed = True
        self._started = False
        self._asked = (
            destination(url, credentials),
            name or random_name("client"),
            producer_name(producer, source),
            context,
            liveness(session_ttl, heartbeat),
        )
        self._timeout = patience(seconds(timeout, "timeout")) or 0.0
        self._is_named = name is not None
        self._inbox: Inbox | None = None
        self._inbox_lock = asyncio.Lock()
        self._fetchers = Fetchers()
        self._runs = HandlerRuns()

    async def _start(self) -> None:
        self._driver = AsyncDriver(*self._asked)
        self._session = self._driver.session
        self._publisher = self._session.publisher
        try:
            await self._driver.start(self._timeout)
        except BaseException:
            self._driver.stop()
            raise
        self._started, self._closed = True, False

    @property
    def connected(self) -> bool:
        """Whether there is a connection now. Calls wait for one in any case."""
        return self._session.live

    @property
    def hub(self) -> Mapping[str, Any]:
        """The fields of the hub's last WELCOME."""
        return self._session.handshake.hub

    def stop(self) -> None:
        """End all loops (`consume`, `serve`) and handlers (`work`, `respond`) of this client, from any task, thread or
        signal handler. No handler begins after it, running handlers finish, and messages that were not begun go
        back."""
        inbox = self._inbox
        for sub in self._driver.loops():
            if inbox is None or sub is not inbox.sub:
                self._driver.halt(sub)

    async def close(self, timeout: Seconds | None = CLOSE_S) -> None:
        """Stop, wait for running handlers, flush, send GOODBYE and close; `timeout` is for each of the two waits.
        Raises what `flush` raises; the client is closed in any case. A call inside a handler does not wait for the
        handlers of the same `work` or `respond`: their messages without a verdict go back to the group."""
        if self._closed:
            return
        self._closed = True
        self.stop()
        me = asyncio.current_task()
        if not await self._driver.wait(lambda: not self._runs.others(me), patience(timeout)):
            log.warning(STILL_AT_WORK)
        try:
            await self.flush(timeout)
        finally:
            if self.connected:
                goodbye = Ticket()
                self._session.ask(m.Goodbye, goodbye)
                self._driver.run_turn()
                await self._driver.answer(goodbye, goodbye_s(timeout))
            self._driver.stop()

    async def __aenter__(self) -> "AsyncClient":
        """Connect, the first time."""
        if not self._started:
            await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except FabricError:
            if kind is None:  # otherwise the error of the block is more important
                raise

    def __del__(self) -> None:
        if not self._closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)
            self._driver.stop()
