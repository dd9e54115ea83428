"""The core of the client: the session with one hub, without sockets, threads or clocks.

Messages go in (`receive`), messages come out (`out`), time is a number that the driver passes. The driver opens and
closes sockets when told; the session outlives them:

      opened            WELCOME
    --------> OPENING ----------> LIVE
                 ^ |               | silence, disconnect, NO_SESSION, a gap in the ordinals
    wants_socket | '----> LOST <---'
                 '----------'              FAILED: the hub refused the client      CLOSED: the client was closed

The one idea to hold while reading: publishes, subscriptions and open calls outlive a connection in the `Publisher`, the
`Subscription`s and the `Calls`; a WELCOME tells which of them must be sent again.
"""

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from fabric_client.core import begun, notices, refusals, wire_values
from fabric_client.core.calls import Call, Calls
from fabric_client.core.channels import Channels
from fabric_client.core.handshake import Handshake
from fabric_client.core.heartbeat import Heartbeat
from fabric_client.core.liveness import DEFAULT_LIVENESS, Liveness
from fabric_client.core.publisher import Publisher
from fabric_client.core.reconnect import Reconnect
from fabric_client.core.refresh import log_refusal
from fabric_client.core.requests import Responder
from fabric_client.core.source import Source
from fabric_client.core.state import State
from fabric_client.core.subscription import FOREVER, Subscription
from fabric_client.core.ticket import Ticket
from fabric_client.core.unsettled import Unsettled
from fabric_client.errors import BadMessage, Closed
from fabric_protocol import messages as m
from fabric_protocol.errors import BlockError, Code, FabricError

log = logging.getLogger("fabric_client")

S = TypeVar("S", bound=Subscription)

ANOTHER_S: Final = 3.0  # how long a client with several addresses waits for a WELCOME before it tries the next one


class Session:
    def __init__(
        self,
        name: str,
        producer: str | None,
        random: Callable[[], float],
        liveness: Liveness = DEFAULT_LIVENESS,
        *,
        keyed: bool = False,
        several: bool = False,
    ) -> None:
        """`keyed`: the client has keys. `several`: it has several addresses to try."""
        self.handshake = Handshake(name, producer)
        self.state = State.LOST
        self.out: list[m.ToHub] = []
        self.error: FabricError | None = None  # why it FAILED
        self.lost_reason: str | FabricError = ""  # why it was last LOST
        self.refusal: FabricError | None = None  # the last one since the last WELCOME, of any address
        self.subscriptions = Channels()
        self.unsettled = Unsettled()  # verdicts that the hub may never have received
        self.publisher = (Source if self.handshake.jumps else Publisher)(self.send, self._next_rid)
        self._reconnect = Reconnect(random, keyed)
        self.several = several
        self._logged: set[str] = set()  # refusals since the last WELCOME; each address has a few
        self._rid = 0
        self.calls = Calls(self.send)
        self._ttl_s = liveness.ttl_s
        self._heartbeat = Heartbeat(liveness.heartbeat_s)

    @property
    def live(self) -> bool:
        return self.state is State.LIVE

    # The connection.

    @property
    def reopen_at(self) -> float:
        """When a LOST session wants a socket."""
        return self._reconnect.due_at

    def wants_socket(self, now: float) -> bool:
        return self.state is State.LOST and now >= self.reopen_at

    def opened(self, now: float) -> None:
        """The driver has opened a socket: send HELLO."""
        self.state = State.OPENING
        self._heartbeat.start(now)
        seen = self.subscriptions.seen()
        self.out = [self.handshake.hello(self._next_rid(), self._heartbeat.interval_s, self._ttl_s, seen)]

    def lost(self, now: float, why: str | FabricError, *, refused: bool = False) -> None:
        """The connection is lost, or the hub refused it. Everything unanswered is kept until the next WELCOME."""
        if self.state not in (State.OPENING, State.LIVE):
            return
        if self.state is State.LIVE:
            log.warning("connection to the hub lost: %s", why)
            self._reconnect.reset()
            refused = False  # its file may have the next key already
        elif self.handshake.hub and isinstance(why, FabricError) and str(why) not in self._logged:
            self._logged.add(str(why))  # once, not for each attempt
            log.error("no connection to the hub: %s (%s)", why, why.hint)
        self.state = State.LOST
        self.lost_reason = why
        if isinstance(why, FabricError):
            self.refusal = why
        self.out = []
        self.publisher.disconnected()
        for sub in self.subscriptions.values():
            sub.careful = sub.settles
        (self._reconnect.after_refusal if refused else self._reconnect.after_loss)(now)

    def refused(self, now: float, why: FabricError) -> None:
        """The hub refused the key of the client. A client that was never connected ends; another one tries again, since
        its key may be enrolled, and keeps its unsent messages."""
        if self.handshake.hub:
            self.lost(now, why, refused=True)
        else:
            self.fail(why)

    def postpone(self, now: float, why: str) -> None:
        """The driver could not open a socket."""
        self.lost_reason = why
        self._reconnect.after_failure(now)

    def fail(self, error: FabricError) -> None:
        """End the session: every waiting call gets the error."""
        if self.state is State.CLOSED:
            return
        self.state = State.CLOSED if isinstance(error, Closed) else State.FAILED
        self.error = error
        self.out = []
        self.publisher.fail_all(error)
        self.calls.fail_all(error)
        self.subscriptions.fail(error)

    # Requests.

    def ask(self, make: Callable[[int], m.ToHub], ticket: Ticket) -> Call:
        """Send the message that `make` builds for a request id; the ticket gets the hub's answer."""
        rid = self._next_rid()
        return self._call(wire_values.message(make(rid)), rid, ticket)

    def encode_failed(self, message: m.ToHub, error: Exception) -> None:
        """A message could not be encoded: fail its call or its publish, and nothing else."""
        rid = getattr(message, "rid", 0)
        log.error("a message cannot be sent: %s: %r", type(message).__name__, error)
        if isinstance(message, m.Publish | m.Transact):
            self.publisher.refused(m.Err(0, rid, Code.BAD_META, f"it cannot be encoded: {error}", {}), 0.0)
        elif (call := self.calls.pop(rid)) is not None:
            call.ticket.fail(BadMessage(f"it cannot be encoded: {error}", "look at the values that were passed"))

    def abandon(self, call: Call) -> None:
        """Ignore the answer to a call: its caller has stopped waiting."""
        self.calls.pop(call.rid)

    def subscribe(self, make: Callable[[int], S], ticket: Ticket) -> S:
        """Open a subscription; `make` builds it for a free channel."""
        sub = make(self.subscriptions.free())
        wire_values.message(sub.subscribe(0))
        self.subscriptions[sub.chan] = sub
        sub.acks.unsettled = self.unsettled
        self._call_subscribe(sub, ticket)
        return sub

    def unsubscribe(self, sub: Subscription, ticket: Ticket) -> None:
        """Close a subscription. Verdicts given so far are sent first; messages still held go back to the group."""
        if sub.closed or self.subscriptions.get(sub.chan) is not sub:
            ticket.succeed({})
            return
        self._collect(sub)
        sub.close()
        self.calls.fail_channel(sub.chan, Closed("this subscription is closed", "subscribe again"))
        self.ask(lambda rid: m.Unsubscribe(sub.chan, rid), ticket)

    def fetch(self, sub: Subscription, how: tuple[int, int, int], ticket: Ticket) -> None:
        """Send a FETCH of up to `how[0]` messages within `how[1]` ms; `how[2]` of them are enough."""
        self.flush(sub)  # verdicts first: they free credit
        self.ask(lambda rid: m.Fetch(sub.chan, rid, *how), ticket)

    def ready(self, sub: Subscription, refresh: int, ticket: Ticket) -> None:
        """Tell the hub that the program has finished a refresh."""
        self.flush(sub)  # acks first: they count for the refresh
        self.ask(lambda rid: m.Ready(sub.chan, rid, refresh), ticket)

    def flush(self, sub: Subscription, now: float | None = None) -> None:
        """Send a subscription's verdicts and credit now; without a connection they wait for a resume. With `now` the
        credit follows the pace of the consumer."""
        self._collect(sub, now)
        if sub.retired and not sub.deliveries.held and not sub.closed:
            self.unsubscribe(sub, Ticket())

    def _collect(self, sub: Subscription, now: float | None = None) -> None:
        if not self._touch(sub):
            return
        messages = sub.collect(self._next_rid, now)
        if self.state is State.LIVE:
            self.out.extend(messages)
        sub.changing = False
        for refresh in sub.readies():
            self.ask(lambda rid, number=refresh: m.Ready(sub.chan, rid, number), Ticket(log_refusal))  # type: ignore[misc]

    def _touch(self, sub: Subscription) -> bool:
        """Mark a subscription before a change. False if an earlier change was interrupted: then the session reconnects
        and the subscription starts again."""
        if sub.changing:
            self.lost(self._heartbeat.received_at, "interrupted")
            return False
        sub.changing = True
        return True

    @property
    def settled(self) -> bool:
        """The hub has confirmed every publish and every verdict."""
        return self.publisher.settled and self.subscriptions.settled

    # Time.

    def tick(self, now: float) -> None:
        """Do what is due."""
        if self.state is State.OPENING:
            if now >= self._welcome_until:
                self.lost(now, "the hub does not answer")
            return
        if self.state is not State.LIVE:
            return
        if now >= self._heartbeat.gone_at:
            self.lost(now, f"nothing received for {now - self._heartbeat.received_at:.0f} s")
            return
        for sub in list(self.subscriptions.values()):
            if now >= sub.flush_at:
                self.flush(sub, now)
            if now >= sub.review_at:
                begun.review(self, sub, now)
            if now >= sub.touch_at:
                touches = sub.renew(now)
                if touches is not None:
                    self.send(touches)
        self.calls.tick(now)
        if now >= self._heartbeat.ping_at:
            self._heartbeat.pinged_at = now
            self.send(m.Ping(0))
        self.publisher.send_blocks(now)
        if self.out:
            self._heartbeat.sent_at = now

    @property
    def _welcome_until(self) -> float:
        """When a session that is OPENING has waited long enough."""
        return min(self._heartbeat.gone_at, self._heartbeat.sent_at + ANOTHER_S if self.several else FOREVER)

    def next_deadline(self) -> float:
        """When `tick` (or `wants_socket`) has something to do, if nothing happens before."""
        if self.state is State.LOST:
            return self.reopen_at
        if self.state is State.OPENING:
            return self._welcome_until
        if self.state is not State.LIVE:
            return FOREVER
        deadline = min(self._heartbeat.ping_at, self._heartbeat.gone_at, self.calls.next_deadline())
        if self.publisher.hold_until and not self.publisher.settled:
            deadline = min(deadline, self.publisher.hold_until)
        return min(deadline, self.subscriptions.next_deadline())

    # Messages of the hub.

    def receive(self, message: object, now: float) -> None:
        self._heartbeat.received_at = now
        match message:
            case m.Deliver():
                self._deliver(message, now)
            case m.PubOk():
                self.publisher.confirmed(message)
            case m.Ok():
                self._ok(message)
            case m.Err():
                refusals.heed(self, message, now)
            case m.Flow():
                self.publisher.flow(message)
            case m.Welcome():
                self._welcome(message, now)
            case m.Pong():
                self._answer(message.rid, None)
            case m.End():
                self._answer(message.rid, message.sent)
            case m.Gap():
                self.subscriptions.gap(message)
            case m.Got() | m.Reply():
                if self.calls.part(message):
                    self._answer(message.rid, message.fields)  # type: ignore[union-attr]
            case m.Request():
                sub = self.subscriptions.get(message.chan)
                if isinstance(sub, Responder):
                    sub.asked(message)
            case m.Reset():
                sub = self.subscriptions.get(message.chan)
                if sub is not None:
                    sub.reset(message.fields)
            case m.Notice():
                notices.heed(self, message)

    def _welcome(self, message: m.Welcome, now: float) -> None:
        if self.state is not State.OPENING or message.rid != self.handshake.hello_rid:
            return
        fields = message.fields
        if (unfit := self.handshake.unfit(fields)) is not None:
            self.fail(unfit)
            return
        if (outdated := self.handshake.outdated(fields)) is not None:
            self.lost(now, outdated)
            return
        if self.handshake.hub:
            log.warning("connected to the hub again (%s)", "resumed" if fields.get("resumed") else "new session")
        same_journal = self.handshake.welcomed(fields)
        self.state = State.LIVE
        self._reconnect.reset()
        self._logged.clear()
        self.refusal = None
        self._heartbeat.interval_s = fields.get("hb_ms", self._heartbeat.interval_s * 1000) / 1000
        known = set(fields.get("subs", ())) if fields.get("resumed") else set()
        self.publisher.welcomed(*self.handshake.terms(same_journal), known)
        self._resume(known, same_journal, bool(fields.get("resumed")))
        self.publisher.send_blocks(now)

    def _resume(self, known: set[int], same_journal: bool, resumed: bool) -> None:
        """Send again what the hub may have missed. `known` are the channels that the hub still has."""
        opening, unanswered = self.calls.opening(), self.calls.all()
        for sub in list(self.subscriptions.values()):
            if sub.chan in known:
                self.out.extend(sub.resumed())
                continue
            sub.restart(same_journal)
            if sub.closed or sub.retired:
                sub.close()
                del self.subscriptions[sub.chan]
            elif sub.chan not in opening:
                self._call_subscribe(sub, Ticket())
        for rid in self.calls.resume(unanswered, known, resumed):
            self._answer(rid, {})

    def _deliver(self, message: m.Deliver, now: float) -> None:
        sub = self.subscriptions.get(message.chan)
        if sub is None or not self._touch(sub):
            return
        in_order = True
        try:
            in_order = sub.deliver(message, now)
        except BlockError as error:
            sub.error = FabricError(
                f"a delivery arrived damaged: {error}", "run 'fabric journal verify' on the hub's journal"
            )
        sub.changing = False
        if not in_order:
            self.lost(now, f"deliveries are missing on channel {message.chan}")

    def _ok(self, message: m.Ok) -> None:
        sub = self.subscriptions.get(message.chan)
        if sub is not None and sub.answered(message.rid, message.fields):
            self.subscriptions.remove_ended(sub)
            return
        if not self.publisher.answered(message):
            self._answer(message.rid, message.fields)

    # Helpers.

    def _call(self, message: m.ToHub, rid: int, ticket: Ticket) -> Call:
        if self.error is not None:
            ticket.fail(self.error)
            return Call(message, rid, ticket)
        return self.calls.add(message, rid, ticket, self.state is State.LIVE)

    def _call_subscribe(self, sub: Subscription, ticket: Ticket) -> None:
        rid = self._next_rid()
        self._call(sub.subscribe(rid), rid, ticket)

    def _answer(self, rid: int, value: Any) -> None:
        call = self.calls.pop(rid)
        if call is None:
            return
        sub = self.subscriptions.get(getattr(call.message, "chan", 0))
        if sub is not None and isinstance(call.message, m.Subscribe):
            sub.accepted(value)
            self.calls.opened(sub.chan)
        elif sub is not None and isinstance(call.message, m.Unsubscribe):
            self.subscriptions.ended(sub)
        call.ticket.succeed(value)

    def _next_rid(self) -> int:
        self._rid += 1
        return self._rid

    def send(self, message: m.ToHub) -> None:
        self.out.append(message)
