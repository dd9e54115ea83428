"""The blocking client: how it connects and closes. The asyncio client in `aio` has the same methods.

The core decides (`core.session`), the driver sends and waits (`sync.driver`). The methods are in `sync.publish`,
`sync.consume` and `sync.ask`. Every method may be called from any thread.
"""

import logging
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import zmq

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
from fabric_client.sync.ask import Asking
from fabric_client.sync.consume import Consuming
from fabric_client.sync.driver import SyncDriver
from fabric_client.sync.publish import Publishing
from fabric_protocol import messages as m
from fabric_protocol.errors import FabricError

log = logging.getLogger("fabric_client")


def connect(
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
) -> "Client":
    """A connected client of the hub at `url` (default: FABRIC_URL, FABRIC_CREDENTIALS, FABRIC_CONTEXT, the current
    context, then tcp://127.0.0.1:7171). Several addresses with commas are tried in turn.

    `credentials` are the keys for an encrypted connection: a path of a file, or `Credentials`; `url` is then the
    address in place of theirs.

    `name` is the name of this client in the hub's lists. `producer` names the publisher across restarts of the program:
    the hub keeps its sequence numbers, and fences an older program with that name. `source` names a numbered source in
    its place, which publishes with `publish_numbered` and goes on above `position` after a crash. `context` is the
    ZeroMQ context; an inproc:// address needs the hub's.

    `session_ttl` (seconds, 1..600) is how long the hub keeps the session of a client that is silent or has lost its
    connection; `heartbeat` (0.2..60, by default a sixth of it, 5 s at most) is how often both send a heartbeat.
    """
    return Client(
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


class Client(Publishing, Consuming, Asking):
    """A connection to a hub, used from any number of threads. Close it, or use it in a `with` block."""

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
        waits = patience(seconds(timeout, "timeout")) or 0.0
        self._fetchers = Fetchers()
        self._runs = HandlerRuns()
        self._is_named = name is not None
        self._inbox: Inbox | None = None
        self._inbox_lock = threading.Lock()
        name = name or random_name("client")
        alive = liveness(session_ttl, heartbeat)
        self._driver = SyncDriver(destination(url, credentials), name, producer_name(producer, source), context, alive)
        self._session = self._driver.session
        self._publisher = self._session.publisher
        try:
            self._driver.start(waits)
        except BaseException:
            self._driver.stop()
            raise
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether there is a connection now. Calls wait for one in any case."""
        return self._session.live

    @property
    def hub(self) -> Mapping[str, Any]:
        """The fields of the hub's last WELCOME."""
        return self._session.handshake.hub

    def stop(self) -> None:
        """End all loops (`consume`, `serve`) and handlers (`work`, `respond`) of this client, from any thread or signal
        handler. No handler begins after it, running handlers finish, and messages that were not begun go back."""
        inbox = self._inbox
        for sub in self._driver.loops():
            if inbox is None or sub is not inbox.sub:
                self._driver.halt(sub)

    def close(self, timeout: Seconds | None = CLOSE_S) -> None:
        """Stop, wait for running handlers, flush, send GOODBYE and close; `timeout` is for each of the two waits.
        Raises what `flush` raises; the client is closed in any case. A call inside a handler does not wait for the
        handlers of the same `work` or `respond`: their messages without a verdict go back to the group."""
        if self._closed:
            return
        self._closed = True
        self.stop()
        me = threading.get_ident()
        if not self._driver.wait(lambda: not self._runs.others(me), patience(timeout)):
            log.warning(STILL_AT_WORK)
        try:
            self.flush(timeout)
        finally:
            if self.connected:
                goodbye = Ticket()
                with self._driver.lock:
                    self._session.ask(m.Goodbye, goodbye)
                self._driver.wait(lambda: goodbye.done, goodbye_s(timeout))
            self._driver.stop()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except FabricError:
            if kind is None:  # otherwise the error of the block is more important
                raise

    def __del__(self) -> None:
        if not self._closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)
            self._driver.abandon()
