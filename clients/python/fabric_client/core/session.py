"""The core of the client: a conversation with one hub, without sockets, threads or clocks.

Messages go in (`receive`), messages come out (`out`), time is a number that the shell passes. The shell opens and
closes sockets when told; the session survives them:

      opened            WELCOME
    --------> OPENING ----------> LIVE
                 ^ |               | silence, disconnect, NO_SESSION, a gap in the ordinals
      wants_link | '----> LOST <---'
                 '----------'              FAILED: the hub will not have us        CLOSED: we left

The one idea to hold while reading: everything that matters outlives a connection in the `Publisher`, the
`Subscription`s and the open calls; a WELCOME tells how much of it must be said again.
"""

import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from fabric_client.core import begun, sayable
from fabric_client.core.calls import Call, Calls
from fabric_client.core.channels import Channels
from fabric_client.core.ending import retire
from fabric_client.core.liveness import DEFAULT_LIVENESS, Liveness
from fabric_client.core.publisher import Publisher
from fabric_client.core.requests import Responder
from fabric_client.core.state import State
from fabric_client.core.subscription import FOREVER, Subscription
from fabric_client.core.ticket import Ticket
from fabric_client.core.unsettled import Unsettled
from fabric_client.errors import BadMessage, Closed, NotFound, from_wire
from fabric_protocol import messages as m
from fabric_protocol.errors import BlockError, Code, FabricError
from fabric_protocol.messages import PROTOCOL_VERSION

log = logging.getLogger("fabric_client")

SILENCE_MAX: Final = 3  # heartbeats without a word from the hub
BACKOFF_S: Final = (0.05, 2.0)  # first and longest pause before a new socket; each is jittered


class Session:
    def __init__(
        self, name: str, producer: str | None, random: Callable[[], float], liveness: Liveness = DEFAULT_LIVENESS
    ) -> None:
        self.name = sayable.text(name, "name")
        if producer is not None and not sayable.text(producer, "producer"):
            raise BadMessage("producer is a name, not an empty text", "leave it out for a producer without a name")
        self.producer = producer or f"producer-{uuid.uuid4().hex}"
        self.state = State.LOST
        self.out: list[m.ToHub] = []
        self.reopen_at = 0.0
        self.error: FabricError | None = None  # why it FAILED
        self.trouble = ""  # why it was last LOST
        self.hub: Mapping[str, Any] = {}  # what WELCOME said
        self.subscriptions = Channels()
        self.unsettled = Unsettled()  # verdicts that the hub may never have seen
        self.publisher = Publisher(self._say, self._next_rid)
        self._random = random
        self._rid = 0
        self._attempt = 0
        self._token = b""  # the hub's name for this session; a secret
        # A name of one's own must be claimed from an earlier program; a random name has no earlier epoch.
        self._producer_epoch: int | None = None if producer else 1
        self._calls = Calls(self._say)
        self._hello_rid = 0
        self._heartbeat_s, self._ttl_s = liveness
        self._heard_at = 0.0
        self._said_at = 0.0
        self._pinged_at = 0.0

    @property
    def live(self) -> bool:
        return self.state is State.LIVE

    # The socket comes and goes.

    def wants_link(self, now: float) -> bool:
        return self.state is State.LOST and now >= self.reopen_at

    def opened(self, now: float) -> None:
        """There is a fresh socket: introduce ourselves."""
        self.state = State.OPENING
        self._heard_at = self._said_at = self._pinged_at = now
        fields: dict[str, Any] = {
            "proto": PROTOCOL_VERSION,
            "client": self.name,
            "hb_ms": round(self._heartbeat_s * 1000),
            "ttl_ms": round(self._ttl_s * 1000),
            "producer": {"name": self.producer},
        }
        if self._producer_epoch is not None:
            fields["producer"]["epoch"] = self._producer_epoch
        if self._token:
            fields["resume"] = {"session": self._token, "subs": self.subscriptions.seen()}
        self._hello_rid = self._next_rid()
        self.out = [m.Hello(self._hello_rid, fields)]

    def lost(self, now: float, why: str) -> None:
        """The socket is of no use any more. Everything unanswered stays until the next WELCOME."""
        if self.state not in (State.OPENING, State.LIVE):
            return
        if self.state is State.LIVE:
            log.warning("connection to the hub lost: %s", why)
            self._attempt = 0
        self.state = State.LOST
        self.trouble = why
        self.out = []
        self.publisher.disconnected()
        for sub in self.subscriptions.values():
            sub.careful = sub.settles
        pause = min(BACKOFF_S[1], BACKOFF_S[0] * 2.0 ** min(self._attempt, 10))
        self.reopen_at = now + pause * (0.5 + self._random())
        self._attempt += 1

    def postpone(self, now: float, why: str) -> None:
        """No socket could be opened."""
        self.trouble = why
        self.reopen_at = now + BACKOFF_S[1]

    def fail(self, error: FabricError) -> None:
        """It is over: everyone who waits hears why."""
        if self.state is State.CLOSED:
            return
        self.state = State.CLOSED if isinstance(error, Closed) else State.FAILED
        self.error = error
        self.out = []
        self.publisher.fail_all(error)
        self._calls.fail_all(error)
        self.subscriptions.fail(error)

    # Requests.

    def ask(self, make: Callable[[int], m.ToHub], ticket: Ticket) -> Call:
        """Say what `make` makes of a request id, and fill the ticket with the hub's answer."""
        rid = self._next_rid()
        return self._call(sayable.message(make(rid)), rid, ticket)

    def unsayable(self, message: m.ToHub, error: Exception) -> None:
        """A message could not be encoded: the call or the publish that it belongs to has failed, and nothing else."""
        rid = getattr(message, "rid", 0)
        log.error("a message cannot be sent: %s: %r", type(message).__name__, error)
        if isinstance(message, m.Publish | m.Transact):
            self.publisher.refused(m.Err(0, rid, Code.BAD_META, f"it cannot be encoded: {error}", {}), 0.0)
        elif (call := self._calls.pop(rid)) is not None:
            call.ticket.fail(BadMessage(f"it cannot be encoded: {error}", "look at the values that were passed"))

    def abandon(self, call: Call) -> None:
        """Nobody waits for this answer any more."""
        self._calls.pop(call.rid)

    def goodbye(self, ticket: Ticket) -> None:
        self.ask(m.Goodbye, ticket)

    def subscribe(self, make: Callable[[int], Subscription], ticket: Ticket) -> Subscription:
        """Open a subscription; `make` builds it for the channel that is given to it."""
        chan = self.subscriptions.free()
        sub = make(chan)
        sayable.message(sub.subscribe(0))
        self.subscriptions[chan] = sub
        sub.acks.unsettled = self.unsettled
        self._call_subscribe(sub, ticket)
        return sub

    def unsubscribe(self, sub: Subscription, ticket: Ticket) -> None:
        """Close a subscription. Verdicts given so far leave first; what is still held goes back to the group."""
        if sub.closed or self.subscriptions.get(sub.chan) is not sub:
            ticket.succeed({})
            return
        self._collect(sub)
        sub.close()
        self._calls.fail_channel(sub.chan, Closed("this subscription is closed", "subscribe again"))
        self.ask(lambda rid: m.Unsubscribe(sub.chan, rid), ticket)

    def drop(self, sub: Subscription) -> None:
        """The application takes nothing more from this subscription. It is closed, and what it holds goes back; but
        messages that fetch() has handed out may still be settled, and a subscription with such messages is closed when
        the last of them is settled."""
        if not sub.fetching:
            self.unsubscribe(sub, Ticket())
        elif not sub.closed and self.subscriptions.get(sub.chan) is sub:
            self._calls.fail_channel(sub.chan, Closed("this subscription is closed", "subscribe again"))
            self.halt(sub)

    def halt(self, sub: Subscription) -> None:
        """Nothing more is handed out of a subscription. What was not handed out goes back, and the subscription ends
        when the rest is settled. Requests stay: each is answered, or fails when the subscription is closed."""
        if not (sub.closed or sub.retired or isinstance(sub, Responder)) and self.subscriptions.get(sub.chan) is sub:
            retire(sub)
            self.flush(sub)
            if self.live and not sub.closed:
                self._say(sub.credit())

    def fetch(self, sub: Subscription, how: tuple[int, int, int], ticket: Ticket) -> None:
        """Ask for up to `how[0]` messages, within `how[1]` ms; `how[2]` of them are enough."""
        self.flush(sub)  # the hub hears first what is done
        self.ask(lambda rid: m.Fetch(sub.chan, rid, *how), ticket)

    def ready(self, sub: Subscription, refresh: int, ticket: Ticket) -> None:
        """The application is through with a refresh."""
        self.flush(sub)  # what it acked counts as well
        self.ask(lambda rid: m.Ready(sub.chan, rid, refresh), ticket)

    def flush(self, sub: Subscription, now: float | None = None) -> None:
        """Send a subscription's verdicts and credit now; without a connection they wait for a resume. With the time
        its credit follows its pace."""
        self._collect(sub, now)
        if sub.retired and not sub.holds and not sub.closed:
            self.unsubscribe(sub, Ticket())

    def _collect(self, sub: Subscription, now: float | None = None) -> None:
        if not self._touch(sub):
            return
        messages = sub.collect(self._next_rid, now)
        if self.state is State.LIVE:
            self.out.extend(messages)
        sub.torn = False
        for refresh in sub.readies():
            self.ask(lambda rid, number=refresh: m.Ready(sub.chan, rid, number), Ticket(_log_refusal))  # type: ignore[misc]

    def _touch(self, sub: Subscription) -> bool:
        """Before a subscription is changed. False when an earlier change was interrupted: then it begins anew."""
        if sub.torn:
            self.lost(self._heard_at, "interrupted")
            return False
        sub.torn = True
        return True

    @property
    def settled(self) -> bool:
        """The hub has confirmed every publish and every verdict."""
        return self.publisher.settled and self.subscriptions.settled

    # Time.

    def tick(self, now: float) -> None:
        """Do what is due."""
        if self.state is State.OPENING:
            if now - self._heard_at >= SILENCE_MAX * self._heartbeat_s:
                self.lost(now, "the hub does not answer")
            return
        if self.state is not State.LIVE:
            return
        if now - self._heard_at >= SILENCE_MAX * self._heartbeat_s:
            self.lost(now, f"nothing heard for {now - self._heard_at:.0f} s")
            return
        for sub in list(self.subscriptions.values()):
            if now >= sub.flush_at:
                self.flush(sub, now)
            if now >= sub.look_at:
                begun.look(self, sub, now)
            if now >= sub.touch_at:
                touches = sub.renew(now)
                if touches is not None:
                    self._say(touches)
        self._calls.tick(now)
        if now >= self._ping_at():
            self._pinged_at = now
            self._say(m.Ping(0))
        self.publisher.pump(now)
        if self.out:
            self._said_at = now

    def next_deadline(self) -> float:
        """When `tick` (or `wants_link`) has something to do, if nothing happens before."""
        if self.state is State.LOST:
            return self.reopen_at
        if self.state is State.OPENING:
            return self._heard_at + SILENCE_MAX * self._heartbeat_s
        if self.state is not State.LIVE:
            return FOREVER
        deadline = min(self._ping_at(), self._heard_at + SILENCE_MAX * self._heartbeat_s, self._calls.next_deadline())
        if self.publisher.hold_until and not self.publisher.settled:
            deadline = min(deadline, self.publisher.hold_until)
        return min(deadline, self.subscriptions.next_deadline())

    def _ping_at(self) -> float:
        return max(min(self._said_at, self._heard_at), self._pinged_at) + self._heartbeat_s

    # What the hub says.

    def receive(self, message: object, now: float) -> None:
        self._heard_at = now
        match message:
            case m.Deliver():
                self._deliver(message, now)
            case m.PubOk():
                self.publisher.confirmed(message)
            case m.Ok():
                self._ok(message)
            case m.Err():
                self._err(message, now)
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
                if self._calls.part(message):
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
                self._notice(message)

    def _welcome(self, message: m.Welcome, now: float) -> None:
        if self.state is not State.OPENING or message.rid != self._hello_rid:
            return
        fields, before = message.fields, self.hub
        same_journal = not before or before.get("journal") == fields.get("journal")
        if before:
            log.warning("connected to the hub again (%s)", "resumed" if fields.get("resumed") else "new session")
        self.hub, self._token, self.state, self._attempt = fields, fields["session"], State.LIVE, 0
        self._heartbeat_s = fields.get("hb_ms", self._heartbeat_s * 1000) / 1000
        producer = fields.get("producer") or {}
        self._producer_epoch = producer.get("epoch", self._producer_epoch)
        blocks, size = fields.get("flow", (1, 1 << 20))
        limit = fields.get("limits", {}).get("block_bytes", 1 << 20)
        known = set(fields.get("subs", ())) if fields.get("resumed") else set()
        self.publisher.welcomed(producer.get("last_pseq", 0), same_journal, (blocks, size), limit, known)
        self._resume(known, same_journal, bool(fields.get("resumed")))
        self.publisher.pump(now)

    def _resume(self, known: set[int], same_journal: bool, resumed: bool) -> None:
        """Say again what the hub may have missed. `known` are the channels that it still has."""
        opening, unanswered = self._calls.opening(), self._calls.all()
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
        for rid in self._calls.resume(unanswered, known, resumed):
            self._answer(rid, {})

    def _deliver(self, message: m.Deliver, now: float) -> None:
        sub = self.subscriptions.get(message.chan)
        if sub is None or not self._touch(sub):
            return
        in_order = True
        try:
            in_order = sub.deliver(message, now)
        except BlockError as error:
            sub.error = FabricError(f"a delivery arrived damaged: {error}", "check the hub's journal with 'fabric'")
        sub.torn = False
        if not in_order:
            self.lost(now, f"deliveries are missing on channel {message.chan}")

    def _ok(self, message: m.Ok) -> None:
        sub = self.subscriptions.get(message.chan)
        if sub is not None and sub.answered(message.rid, message.fields):
            self.subscriptions.remove_ended(sub)
            return
        if not self.publisher.answered(message):
            self._answer(message.rid, message.fields)

    def _notice(self, message: m.Notice) -> None:
        fields = message.fields
        sub = self.subscriptions.get(fields.get("chan", 0))
        if message.kind == "lease_lost" and sub is not None:
            sub.take_back(fields.get("ordinals", ()))
            log.info("%s: deliveries were taken back: %s", sub.group, fields.get("why", "no reason given"))
        elif message.kind == "unsubscribed" and sub is not None:
            sub.error = NotFound(str(fields.get("why", "unsubscribed")), "subscribe again to create it anew")
            del self.subscriptions[sub.chan]
            sub.acks.fail(sub.error)
            self._calls.fail_channel(sub.chan, sub.error)
        else:
            log.info("the hub says %s: %s", message.kind, dict(fields))

    def _err(self, message: m.Err, now: float) -> None:
        if message.code == Code.NO_SESSION:
            self.lost(now, "the hub does not know this session")
            return
        if self.publisher.refused(message, now):
            return
        retry_ms = message.fields.get("retry_ms", 0)
        if message.rid == self._hello_rid and self.state is State.OPENING:
            if retry_ms:
                self.lost(now, message.text)
            else:
                self.fail(from_wire(message))
            return
        sub = self.subscriptions.get(message.chan)
        if sub is not None and sub.refuse(message.rid, from_wire(message)):
            log.error("the hub refused verdicts on %s: %s", sub.group, message.text)
            self.subscriptions.remove_ended(sub)
            return
        call = self._calls.refused(message, now)
        if call is None or sub is None:
            return
        if isinstance(call.message, m.Subscribe):
            sub.error = call.ticket.error or from_wire(message)
            del self.subscriptions[sub.chan]
            self._calls.fail_channel(sub.chan, sub.error)
        elif isinstance(call.message, m.Unsubscribe):
            self.subscriptions.ended(sub)  # the hub does not have it

    # Helpers.

    def _call(self, message: m.ToHub, rid: int, ticket: Ticket) -> Call:
        if self.error is not None:
            ticket.fail(self.error)
            return Call(message, rid, ticket)
        return self._calls.add(message, rid, ticket, self.state is State.LIVE)

    def _call_subscribe(self, sub: Subscription, ticket: Ticket) -> None:
        rid = self._next_rid()
        self._call(sub.subscribe(rid), rid, ticket)

    def _answer(self, rid: int, value: Any) -> None:
        call = self._calls.pop(rid)
        if call is None:
            return
        sub = self.subscriptions.get(getattr(call.message, "chan", 0))
        if sub is not None and isinstance(call.message, m.Subscribe):
            sub.accepted(value)
            self._calls.opened(sub.chan)
        elif sub is not None and isinstance(call.message, m.Unsubscribe):
            self.subscriptions.ended(sub)
        call.ticket.succeed(value)

    def _next_rid(self) -> int:
        self._rid += 1
        return self._rid

    def _say(self, message: m.ToHub) -> None:
        self.out.append(message)


def _log_refusal(ticket: Ticket) -> None:
    if ticket.error is not None:
        log.error("the hub refused a READY: %s", ticket.error)
