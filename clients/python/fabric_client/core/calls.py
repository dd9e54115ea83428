"""Requests that wait for the hub's answer, and what happens to them when the connection is lost."""

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

from fabric_client.core.ticket import Ticket
from fabric_client.errors import ConnectionLost, from_wire
from fabric_protocol import messages as m
from fabric_protocol.errors import FabricError

NOT_DUE: Final = float("inf")


class OnResume(Enum):
    """What to do with an open call after a reconnect."""

    SEND = "send it again: the hub never received it, or a second time does no harm"
    WAIT = "the hub still has it"
    ANSWERED = "the WELCOME answers it"
    LOST = "it must not be repeated, and its answer is lost"


class Call:
    """An open request. `parts` are the frames of an answer in several frames; `ticket` is done when it is complete."""

    __slots__ = ("message", "parts", "reason", "retry_at", "rid", "ticket", "was_sent")

    def __init__(self, message: m.ToHub, rid: int, ticket: Ticket) -> None:
        self.message = message
        self.rid = rid
        self.ticket = ticket
        self.retry_at = NOT_DUE
        self.reason = ""  # why the hub wants it again later
        self.was_sent = False
        self.parts: deque[m.Got | m.Reply] = deque()

    @property
    def chan(self) -> int:
        """The channel of the request, or 0."""
        chan: int = getattr(self.message, "chan", 0)
        return chan

    def after_reconnect(self, known: set[int], resumed: bool) -> OnResume:
        """`known` are the channels that the hub still has."""
        self.retry_at = NOT_DUE
        kept = self.chan in known
        match self.message:
            case m.Subscribe() if kept:
                return OnResume.ANSWERED
            case m.Unsubscribe() | m.Ready() if not kept:
                return OnResume.ANSWERED
            case m.Fetch() if kept and self.was_sent:
                return OnResume.WAIT  # the hub would refuse a second FETCH
            case m.Request() if self.was_sent:
                return OnResume.WAIT if resumed else OnResume.LOST
        return OnResume.SEND


class Calls:
    """The open calls of a session, by request id. A call on a channel is not sent before the SUB of that channel is
    answered: the hub may refuse the SUB, or ask to repeat it later."""

    def __init__(self, send: Callable[[m.ToHub], None]) -> None:
        self._send = send
        self._open: dict[int, Call] = {}
        self._later: dict[int, Call] = {}  # open calls that are sent again at `retry_at`

    def add(self, message: m.ToHub, rid: int, ticket: Ticket, live: bool) -> Call:
        call = Call(message, rid, ticket)
        if live:
            self._send_call(call)
        self._open[rid] = call
        return call

    def _send_call(self, call: Call) -> None:
        call.was_sent = not call.chan or isinstance(call.message, m.Subscribe) or call.chan not in self.opening()
        if call.was_sent:
            self._send(call.message)

    def get(self, rid: int) -> Call | None:
        return self._open.get(rid)

    def pop(self, rid: int) -> Call | None:
        return self._open.pop(rid, None)

    def opening(self) -> set[int]:
        """The channels whose SUB has no answer yet."""
        return {call.message.chan for call in self._open.values() if isinstance(call.message, m.Subscribe)}

    def opened(self, chan: int) -> None:
        """The hub has accepted a subscription: send the calls that waited for it."""
        for call in [call for call in self._open.values() if call.chan == chan and not call.was_sent]:
            self._send_call(call)

    def fail_channel(self, chan: int, error: FabricError) -> None:
        """The subscription has ended: fail all calls on its channel."""
        for call in [call for call in self._open.values() if call.chan == chan]:
            del self._open[call.rid]
            call.ticket.fail(error)

    def all(self) -> list[Call]:
        return list(self._open.values())

    def resume(self, calls: Iterable[Call], known: set[int], resumed: bool) -> list[int]:
        """Send again the calls that the hub may have missed; returns the ids of the calls that the WELCOME answers."""
        answered = []
        self._later.clear()
        for call in calls:
            rid = call.rid
            match call.after_reconnect(known, resumed):
                case OnResume.ANSWERED:
                    answered.append(rid)
                case OnResume.SEND:
                    call.parts.clear()
                    self._send_call(call)
                case OnResume.LOST:
                    del self._open[rid]
                    call.ticket.fail(ConnectionLost("the connection was lost", "it may or may not have been answered"))
                case OnResume.WAIT:
                    pass
        return answered

    def part(self, message: m.Got | m.Reply) -> bool:
        """Add a part to its call. True if it is the last part; a GET ends with an OK instead."""
        call = self._open.get(message.rid)
        if call is not None:
            call.parts.append(message)
        return isinstance(message, m.Reply) and bool(message.fields.get("final", True))

    def refused(self, message: m.Err, now: float) -> Call | None:
        """The hub's ERR: the call that failed; None if no call has this id, or if the call is sent again later."""
        call = self._open.get(message.rid)
        if call is None:
            return None
        if retry_ms := message.fields.get("retry_ms", 0):
            call.retry_at = now + retry_ms / 1000
            call.reason = message.text
            self._later[call.rid] = call
            return None
        del self._open[message.rid]
        call.ticket.fail(from_wire(message))
        return call

    def tick(self, now: float) -> None:
        for rid, call in list(self._later.items()):
            if now >= call.retry_at:
                del self._later[rid]
                call.retry_at = NOT_DUE
                if rid in self._open:
                    self._send(call.message)

    @property
    def reason(self) -> str:
        """Why the hub wants a call again later; empty if there is no such call."""
        return next((call.reason for call in reversed(self._later.values())), "")

    def next_deadline(self) -> float:
        return min((call.retry_at for call in self._later.values()), default=NOT_DUE) if self._later else NOT_DUE

    def fail_all(self, error: FabricError) -> None:
        calls, self._open, self._later = self._open, {}, {}
        for call in calls.values():
            call.ticket.fail(error)
