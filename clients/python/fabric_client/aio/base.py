"""The common base of all parts of the asyncio client."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from fabric_client.aio.driver import AsyncDriver
from fabric_client.core.calls import Call
from fabric_client.core.subscription import Subscription
from fabric_client.core.ticket import Ticket
from fabric_client.core.verdict_exceptions import Seconds, patience
from fabric_protocol import messages as m

S = TypeVar("S", bound=Subscription)


class AsyncBase:
    """A driver, and calls to the hub through it."""

    _driver: AsyncDriver

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client cannot be copied or pickled: its socket and threads stay here; call connect() there")

    async def _ask(self, make: Callable[[int], m.ToHub], timeout: Seconds | None, what: str) -> Any:
        """Send the message that `make` builds for a request id, and wait for the answer."""
        return (await self._call(make, timeout, what))[1]

    async def _call(self, make: Callable[[int], m.ToHub], timeout: Seconds | None, what: str) -> tuple[Call, Any]:
        """The same for an answer in parts: returns the call, which has the parts, and the end of the answer."""
        self._driver.check()
        ticket = Ticket()
        call = self._driver.session.ask(make, ticket)
        self._driver.run_turn()
        try:
            return call, await self._driver.result(ticket, patience(timeout), what)
        finally:
            self._forget(call)

    def _forget(self, call: Call) -> None:
        """Stop waiting for the answer to a call."""
        if not call.ticket.done:
            self._driver.session.abandon(call)

    async def _inform(self, fields: Mapping[str, Any], timeout: Seconds | None) -> dict[str, Any]:
        """The hub's answer to an INFO."""
        return dict(await self._ask(lambda rid: m.Info(rid, fields), timeout, f"no answer to info({fields['what']!r})"))

    def _begin(self, make: Callable[[int], S], ticket: Ticket) -> S:
        """Open a subscription; the ticket is done when the hub has accepted it."""
        self._driver.check()
        sub = self._driver.session.subscribe(make, ticket)
        self._driver.run_turn()
        return sub

    async def _open(self, make: Callable[[int], S], timeout: float) -> S:
        """Open a subscription, and wait until the hub has accepted it."""
        ticket = Ticket()
        sub = self._begin(make, ticket)
        try:
            await self._driver.result(ticket, timeout, "the hub did not answer a subscription")
        except BaseException:
            self._driver.drop(sub)
            raise
        return sub
