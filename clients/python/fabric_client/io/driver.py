"""The common part of both drivers: a session and its socket.

One `turn` receives all messages, does what is due and sends all messages, until nothing more arrives. It leaves the
socket drained; only then may a driver wait for its edge-triggered descriptor.
"""

import logging
import os
import random
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Final

import zmq

from fabric_client.core.ending import drop, halt
from fabric_client.core.liveness import Liveness
from fabric_client.core.outgoing import CLOSED_FAST_PATH
from fabric_client.core.receipt import Receipt
from fabric_client.core.session import Session
from fabric_client.core.state import State
from fabric_client.core.subscription import Subscription
from fabric_client.core.unconfirmed import Pending, error_of, give_up, unflushed
from fabric_client.destination import Destination
from fabric_client.errors import AuthFailed, Closed, ConnectionLost, Forked, TimedOut, Timeout, describe, refusal_error
from fabric_client.io.dealer import Dealer, Ending, check_url
from fabric_client.io.refused import Refused
from fabric_protocol import wire
from fabric_protocol.errors import Code, FabricError, ProtocolError

log = logging.getLogger("fabric_client")

COMMIT_S: Final = 30.0  # how long a transaction waits for the hub
LEARN_S: Final = 5.0  # how long a consumer waits to learn its group's order


class Driver:
    def __init__(
        self,
        to: Destination,
        name: str,
        producer: str | None,
        context: "zmq.Context[zmq.Socket[bytes]] | None",
        liveness: Liveness,
    ) -> None:
        self.to = to
        several = len(to.urls) > 1
        self.session = Session(name, producer, random.random, liveness, keyed=to.keys is not None, several=several)
        self._place = 0  # of the address in use
        self._refused = Refused()
        self._refusals: set[str] = set()  # addresses that have refused this client before it was connected
        self._rekeyed = False  # it has tried another key before it was connected
        self._context = context or zmq.Context.instance()
        self._dropped: deque[Subscription] = deque()  # subscriptions that the program has left
        self._halted: deque[Subscription] = deque()  # subscriptions whose loops end
        self._stopped = False
        self._forked = False
        for url in to.urls:
            check_url(url)
        self._dealer = self._new_dealer()
        self.session.opened(time.monotonic())
        self._check_monitor()
        _drivers.add(self)

    def check(self) -> None:
        """Raise if this client can no longer be used."""
        if self._forked:
            raise Forked("this client was made in the parent process", "call connect() again after the fork")
        if self._stopped:
            raise Closed("this client is closed", "call connect() again")
        if self.session.error is not None:
            raise self.session.error

    def no_hub(self, waited: float, unknown: str = "") -> ConnectionLost:
        """The error for a caller that waited for a connection. `unknown`: a name of a host without an address."""
        last, refusal = self.session.lost_reason, self.session.refusal
        if refusal is not None:
            if isinstance(refusal, AuthFailed) and refusal.fields.get("handshake") == "handshake":
                refusal = self._refused.again(self.to) or refusal  # the greeting may tell more by now
            other = "" if isinstance(last, FabricError) else f"; {last}"
            return ConnectionLost(f"no connection for {waited:g} s: {refusal}{other}", refusal.hint)
        why = f" ({last})" if last else ""
        if unknown:
            why = f": this machine finds no address of the name {unknown}"
        hint = "start one with 'fabric hub', check the address, or check why the hub there does not answer"
        if self.to.origin:
            hint += f"; the address is from {self.to.origin}"
        return ConnectionLost(f"no hub at {self.to.url} for {waited:g} s{why}", hint)

    def receipts(self, pending: Sequence[Pending], waited: float | None) -> list[Receipt]:
        """The receipts of publishes. Raises if some are missing: unsent messages are withdrawn, sent messages may be
        stored. The caller holds the lock of the blocking client."""
        if not all(ticket.done for ticket, _ in pending):
            raise self.unpublished(pending, waited)
        return [ticket.result() for ticket, _ in pending]

    def unpublished(self, pending: Sequence[Pending], waited: float | None) -> FabricError:
        """The error for publishes that were not all confirmed in time."""
        why = self._why(waited)
        return error_of(give_up(self.session.publisher, pending, why), why, self.session.live)

    def interrupted(self, pending: Sequence[Pending], error: BaseException) -> None:
        """The caller was interrupted while it waited: withdraw unsent messages, and add a note to the error that counts
        stored, sent and withdrawn messages."""
        tally = give_up(self.session.publisher, pending, "interrupted")
        if any(tally):
            error.add_note(f"publish interrupted: {tally}")

    def flushed(self, done: bool, waited: float | None) -> None:
        """Raise the error of a flush, if there is one. Missing confirmations come first: then refused publishes and
        lost verdicts are left for the next flush. The caller holds the lock of the blocking client."""
        self.check()
        session, publisher = self.session, self.session.publisher
        if not done:
            verdicts = session.subscriptions.unconfirmed(session.unsettled)
            error = unflushed(publisher, self._why(waited), session.live, verdicts)
            raise error from refusal_error(publisher.refusals) if publisher.refusals else None
        if publisher.refusals:
            raise refusal_error(publisher.take_refusals())
        session.subscriptions.raise_refusal()
        if (unsettled := session.unsettled.take()) is not None:
            raise unsettled

    def _why(self, waited: float | None) -> str:
        if not self.session.live:
            return str(self.no_hub(waited or 0.0))
        reason = self.session.publisher.last_reason
        return f"no answer within {waited or 0.0:g} s" + (f"; the hub says: {reason}" if reason else "")

    def too_late(self, what: str, waited: float | None) -> FabricError:
        """The error for a caller that got no answer in time."""
        if self.session.state is not State.LIVE:
            return self.no_hub(waited or 0.0)
        reason = self.session.calls.reason or self.session.publisher.last_reason
        hint = f"the hub says: {reason}" if reason else "the answer may still arrive; give it a longer timeout"
        return Timeout(f"{what} within {waited or 0.0:g} s", hint)

    def unanswered(self, waited: float) -> FabricError:
        """The error for a request without an answer, not even from the hub."""
        if self.session.state is not State.LIVE:
            return self.no_hub(waited)
        return TimedOut(f"no reply within {waited:g} s", describe(Code.TIMED_OUT), code=Code.TIMED_OUT)

    def turn(self) -> bool:
        """Receive and send as much as possible without waiting. True if waiting callers should look for their answers.

        An exception of a signal handler, such as KeyboardInterrupt, can end a turn between any two steps, with some
        frames not handled or not sent. A new connection that resumes the session sends all of them again.
        """
        try:
            return self._turn()
        except BaseException:
            self.session.lost(time.monotonic(), "interrupted")
            raise

    def _turn(self) -> bool:
        session, dealer = self.session, self._dealer
        heard = said = False
        while True:
            arrived = dealer.receive()
            if said and not arrived:
                return heard
            heard = heard or bool(arrived)
            now = time.monotonic()
            for frames in arrived:
                try:
                    session.receive(wire.decode(frames), now)
                except ProtocolError as error:
                    log.error("the hub sent a malformed message: %s", error)
            heard = self._end_subscriptions() or heard
            session.tick(now)
            if session.wants_socket(now):
                dealer = self._reopen(now)
                self._check_monitor()
            if not session.out:
                return heard
            self._send(now)
            said = True

    def _end_subscriptions(self) -> bool:
        """End subscriptions that the program has left or halted; True if there were any."""
        found = bool(self._dropped or self._halted)
        while self._halted:
            halt(self.session, self._halted.popleft())
        while self._dropped:
            drop(self.session, self._dropped.popleft())
        return found

    def loops(self) -> list[Subscription]:
        """The subscriptions of loops and handlers. Called from any thread."""
        return [sub for sub in list(self.session.subscriptions.values()) if not (sub.fetching or sub.closed)]

    def _send(self, now: float) -> None:
        out, self.session.out = self.session.out, []
        for message in out:
            try:
                frames = wire.encode(message)
            except Exception as error:  # other messages must be sent nevertheless
                self.session.encode_failed(message, error)
                continue
            if not self._dealer.send(frames):
                self.session.lost(now, "the hub is gone")
                return

    def _reopen(self, now: float) -> Dealer:
        """Open a new socket, to the next address if there are several."""
        self._close_socket()
        self._place += 1
        if isinstance(self.session.lost_reason, AuthFailed):
            self.to = self._reloaded()
        try:
            self._dealer = self._new_dealer()
        except FabricError as error:  # out of sockets, for example
            self.session.postpone(now, str(error))
        else:
            self.session.opened(now)
            self._socket_opened()
        return self._dealer

    def _new_dealer(self) -> Dealer:
        urls = self.to.urls
        return Dealer(self._context, urls[self._place % len(urls)], self.to.keys, one_of_several=len(urls) > 1)

    def _close_socket(self) -> None:
        self._dealer.close()

    def _socket_opened(self) -> None:
        """A new socket is open."""

    def _check_monitor(self) -> None:
        """The monitor has an event."""
        if self._stopped or (ending := self._dealer.ended()) is None:
            return
        self._dealer.rest()
        now = time.monotonic()
        if ending is Ending.DISCONNECTED:
            self.session.lost(now, "disconnected")
        elif ending is Ending.ABSENT:
            self.session.lost(now, f"no hub at {self._dealer.url}")
        else:
            self._handshake_failed(now, ending)

    def _handshake_failed(self, now: float, ending: Ending) -> None:
        url = self._dealer.url
        is_final = self._refused.is_final(ending, url, self.to)  # first: what it finds out is told by the error
        error = self._refused.error(ending, url, self.to)
        if not is_final:
            self.session.lost(now, error)
            return
        self._refusals.add(url)
        if self.session.handshake.hub or (self._refusals >= {*self.to.urls} and not self._has_another_key(ending)):
            self.session.refused(now, error)
        else:
            self.session.lost(now, error)  # another address may accept this client, or this one another key

    def _has_another_key(self, ending: Ending) -> bool:
        """Whether the next socket has a key that was not refused; True once."""
        if ending is not Ending.KEY_REFUSED or self._rekeyed:
            return False
        self._rekeyed = True
        self._refusals.clear()
        return self._reloaded().keys != self.to.keys

    def _reloaded(self) -> Destination:
        """With the keys that the file of the credentials has now: they may have been rotated."""
        try:
            return self.to.reloaded()
        except FabricError as error:
            log.warning("the credentials cannot be read again: %s", error)
            return self.to

    def _end(self) -> None:
        """Close the socket; waiting callers get Closed."""
        if not self._stopped:
            self._stopped = True
            self.session.fail(Closed("this client is closed", "call connect() again"))
            self._close_socket()
            _drivers.discard(self)

    def forked(self) -> None:
        """In a child process: the socket belongs to the parent."""
        self._forked = self._stopped = True
        self.session.publisher.fast_path = CLOSED_FAST_PATH


_drivers: "weakref.WeakSet[Driver]" = weakref.WeakSet()


def _after_fork() -> None:
    for driver in list(_drivers):
        driver.forked()


os.register_at_fork(after_in_child=_after_fork)
