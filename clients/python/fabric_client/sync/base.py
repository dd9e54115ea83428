"""The common base of all parts of the blocking client."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from fabric_client.core.calls import Call
from fabric_client.core.subscription import Subscription
from fabric_client.core.ticket import Ticket
from fabric_client.core.verdict_exceptions import Seconds, patience
from fabric_client.sync.driver import SyncDriver
from fabric_protocol import messages as m

S = TypeVar("S", bound=Subscription)


class Base:
    """A driver, and calls to the hub through it. Every method may be called from any thread."""

    _driver: SyncDriver

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client cannot be copied or pickled: its socket and threads stay here; call connect() there")

    def _ask(self, make: Callable[[int], m.ToHub], timeout: Seconds | None, what: str) -> Any:
        """Send the message that `make` builds for a request id, and wait for the answer."""
        return self._call(make, timeout, what)[1]

    def _call(self, make: Callable[[int], m.ToHub], timeout: Seconds | None, what: str) -> tuple[Call, Any]:
        """The same for an answer in parts: returns the call, which has the parts, and the end of the answer."""
        self._driver.check()
        ticket = Ticket()
        with self._driver.lock:
            call = self._driver.session.ask(make, ticket)
        try:
            return call, self._driver.result(ticket, patience(timeout), what)
        finally:
            self._forget(call)

    def _forget(self, call: Call) -> None:
        """Stop waiting for the answer to a call. Without the lock, because it may run in a finalizer."""
        if not call.ticket.done:
            self._driver.session.abandon(call)

    def _inform(self, fields: Mapping[str, Any], timeout: Seconds | None) -> dict[str, Any]:
        """The hub's answer to an INFO."""
        return dict(self._ask(lambda rid: m.Info(rid, fields), timeout, f"no answer to info({fields['what']!r})"))

    def _open(self, make: Callable[[int], S], timeout: float) -> S:
        """Open a subscription, and wait until the hub has accepted it."""
        self._driver.check()
        ticket = Ticket()
        with self._driver.lock:
            sub = self._driver.session.subscribe(make, ticket)
        try:
            self._driver.result(ticket, timeout, "the hub did not answer a subscription")
        except BaseException:
            self._driver.drop(sub)
            raise
        return sub
