"""Commands of a peer: which part of the router handles each, and which answers leave at once."""

from typing import TYPE_CHECKING, Any, Final

from fabric.router import enforcement
from fabric.router.access.identity import Identity
from fabric.router.admin import operations
from fabric.router.fields import bounded, group_settings, is_number
from fabric.router.groups.group import Group
from fabric.router.groups.subscription import Subscription
from fabric.router.read.info import info
from fabric.router.sessions.session import CHANNELS_MAX, Session
from fabric.router.turn import Turn
from fabric_protocol import messages as m
from fabric_protocol.bounds import CHANNEL_MAX, CONCURRENCY
from fabric_protocol.errors import Code, ProtocolError

if TYPE_CHECKING:
    from fabric.router.router import Router

AGAIN_BYTES: Final = 16 << 20  # deliveries that are sent again to a resumed session, at once


def no_session(router: "Router", peer: m.PeerId, identity: Identity) -> Session:
    """Raise, for a connection without a session, what is wrong with it."""
    if router.principals.find(identity.name) is None:
        raise ProtocolError(Code.AUTH_FAILED, "the key of this connection is not known to the hub")
    return router.session_table.session_of(peer)


def is_back(router: "Router", session: Session, turn: Turn) -> None:
    """A suspect session has sent a command."""
    session.suspect = False
    router.members.reattach(session, turn)
    router.requests.mark_runnable(session)


def require_known(session: Session, message: m.ToHub | m.ToClient) -> None:
    """Raise when the principal of a session was revoked, or is a guest that may not send this command."""
    if session.principal.is_revoked:
        raise ProtocolError(
            Code.AUTH_FAILED, f"principal {session.principal.name!r} was revoked: this key is not known to the hub"
        )
    if not isinstance(message, (m.Ping, m.Goodbye)) and not (
        isinstance(message, m.Admin) and message.fields.get("op") == "keys.enrol"
    ):
        raise ProtocolError(
            Code.FORBIDDEN,
            f"this key is not known to the hub, so {type(message).__name__.upper()} is refused: it allows HELLO, PING, "
            "GOODBYE and ADMIN keys.enrol, which makes the key known",
        )


def handle(router: "Router", message: m.ToHub | m.ToClient, session: Session, now: float, turn: Turn) -> None:
    """Handle a command. A wrong command raises and has changed nothing."""
    match message:
        case m.Publish():
            router.counters["publishes"] += 1
            if message.options:
                taken = router.schedules.publish(session, message, router.session_table.window, now, turn)
            else:
                taken = router.publishing.accept(session, message, router.session_table.window, turn)
            if taken is None:
                router.counters["duplicates"] += 1
        case m.Settle():
            sub = _channel(session, message.chan)
            answer = router.dispatcher.settle(sub, message, now, turn)
            if message.rid:
                router.dispatcher.answer(sub.group, session.peer, m.Ok(message.chan, message.rid, answer), turn)
        case m.Credit(chan, ordinal_max, bytes_max, unsure):
            sub = _channel(session, chan)
            router.shared.change.begin()
            sub.grant(ordinal_max, bytes_max, unsure)
            router.dispatcher.mark_runnable(sub.group)
        case m.Ping(rid):
            turn.send(session.peer, m.Pong(rid))
        case m.Fetch():
            router.dispatcher.fetch(_channel(session, message.chan), message, now)
        case m.Subscribe():
            _subscribe(router, message, session, turn)
        case m.Request():
            router.requests.ask(session, message, now, turn)
        case m.Reply():
            router.requests.reply(session, message, turn)
        case m.Cancel():
            router.schedules.cancel(session, message, turn)
        case m.Ready():
            router.refreshes.ready(_channel(session, message.chan), message, turn)
        case m.Transact():
            router.transactions.transact(session, message, router.session_table.window, now, turn)
        case _:
            _handle_other(router, message, session, now, turn)


def _handle_other(router: "Router", message: m.ToHub | m.ToClient, session: Session, now: float, turn: Turn) -> None:
    """Handle ends of subscriptions and sessions, INFO, GET and ADMIN."""
    match message:
        case m.Unsubscribe(chan, rid) if chan in router.requests.services.of(session):
            router.shared.change.begin()
            router.requests.leave(router.requests.services.of(session)[chan], "has unsubscribed", turn)
            _answer(session, m.Ok(chan, rid, {}), turn)
        case m.Unsubscribe(chan, rid):
            sub = _channel(session, chan)
            router.shared.change.begin()
            router.leave(sub, turn, lost=False)
            _answer(session, m.Ok(chan, rid, {}), turn)
        case m.Goodbye(rid):
            router.shared.change.begin()
            router.end(session, turn, lost=False)
            _answer(session, m.Ok(0, rid, {}), turn)
        case m.Info(rid, fields):
            turn.send(session.peer, m.Ok(0, rid, info(router, session, fields)))
        case m.Get(rid, fields):
            if session.blocked:
                raise ProtocolError(
                    Code.BUSY,
                    "the send queue of this connection is full: receive what was sent, then ask again",
                    retry_ms=50,
                )
            session.principal.require_subscribe(router.reading.view(fields).patterns)
            frames, found = router.reading.get(rid, fields, router.shared.clock.wall_us(now))
            for frame in frames:
                turn.send(session.peer, frame)
            turn.send(session.peer, m.Ok(0, rid, found))
        case m.Admin():
            operations.handle(router, message, session, now, turn)
        case _:
            raise ProtocolError(
                Code.UNKNOWN_VERB, f"{type(message).__name__} is a frame for clients; the hub does not accept it"
            )


def hello(router: "Router", message: m.Hello, peer: m.PeerId, identity: Identity, now: float, turn: Turn) -> None:
    """Open or resume a session. Deliveries that the client of a resumed session has not seen are sent again."""
    welcome, session, last_seen, is_claim = router.session_table.greet(message, peer, identity, now, turn)
    if last_seen is None:
        router.counters["sessions_opened"] += 1
        turn.advise("$sys.session.opened", **session.identity)
        if is_claim:
            turn.answer(peer, welcome)
        else:
            turn.send(peer, welcome)
        return
    router.counters["sessions_resumed"] += 1
    turn.advise("$sys.session.resumed", **session.identity)
    seen = {chan: ordinal for chan, ordinal in last_seen if chan in session.channels}
    router.requests.drop_responders(session, "has lost its connection", turn)
    for sub in list(session.channels.values()):
        if sub.chan not in seen or not sub.group.durable:
            router.leave(sub, turn, lost=True)
    fields = {**welcome.fields, "subs": sorted(session.channels)}
    turn.send(peer, m.Welcome(welcome.rid, fields))
    room = AGAIN_BYTES
    for sub in session.channels.values():
        room = router.members.send_again(sub, seen[sub.chan], room, turn)
    # After `send_again`, because some of these deliveries may have been returned.
    router.members.reattach(session, turn)


def _subscribe(router: "Router", message: m.Subscribe, session: Session, turn: Turn) -> None:
    chan, fields = message.chan, message.fields
    taken = session.channels.keys() | router.requests.services.of(session).keys()
    if not 1 <= chan <= CHANNEL_MAX or chan in taken or len(taken) >= CHANNELS_MAX:
        raise ProtocolError(
            Code.BAD_OPTION, f"channel {chan}: use a free channel in 1..{CHANNEL_MAX}, at most {CHANNELS_MAX} at once"
        )
    if fields.get("respond", False) is not False:
        router.requests.serve(session, message, turn)
        return
    name = fields.get("group")
    existing = router.groups.get(name) if isinstance(name, str) else None
    _require_rights(session, name, existing)
    settings = group_settings(fields, existing.settings if existing else None, durable=name is not None)
    if existing is None:
        session.principal.require_subscribe(settings.patterns)
    if name is None and not session.principal.is_free:
        session.principal.usage.require_subscription()
    credit = fields.get("credit", [0, 0])
    if not (isinstance(credit, list) and len(credit) == 2 and all(map(is_number, credit))):
        raise ProtocolError(Code.BAD_OPTION, f"credit is [messages, bytes], not {credit!r:.60}")
    concurrency = bounded(fields, "concurrency", *CONCURRENCY)
    unsure, batches = fields.get("unsure", 0), fields.get("batches", False)
    if not is_number(unsure) or type(batches) is not bool:
        raise ProtocolError(
            Code.BAD_OPTION, f"unsure is a number, not {unsure!r:.60}; batches is true or false, not {batches!r:.60}"
        )
    if existing is not None:
        router.refreshes.require_start(existing)
    router.shared.change.begin()
    group = existing or router.dispatcher.create(name, settings, fields.get("start"))
    if existing is None and group.durable:
        turn.advise("$sys.group.created", group=group.name, **session.identity)
        enforcement.group_changed(router, group, turn)
    sub = Subscription(session, chan, group, credit[0], credit[1], concurrency, unsure, batches=batches)
    session.channels[chan] = sub
    router.members.join(sub, turn)
    answer = {
        "group": group.name,
        "cursor": group.position(),
        "floor": group.floor,
        "created": existing is None,
        "lease_ms": group.settings.lease_ms,
        "order": group.settings.order,
        "ack": group.settings.ack,
    }
    _answer(session, m.Ok(chan, message.rid, answer), turn)
    router.refreshes.joined(sub, turn)


def _require_rights(session: Session, name: Any, existing: Group | None) -> None:
    """Raise unless a session may use a group. Before its settings are compared, because that error names them."""
    principal = session.principal
    if isinstance(name, str) and not principal.is_free:
        principal.require_group(name)
        if existing is not None:
            principal.require_stored(existing)
        else:
            principal.require_new_group()


def _answer(session: Session, answer: m.Ok, turn: Turn) -> None:
    """Answer a command at once. A command without a rid gets no answer."""
    if answer.rid:
        turn.send(session.peer, answer)


def _channel(session: Session, chan: int) -> Subscription:
    try:
        return session.channels[chan]
    except KeyError:
        raise ProtocolError(Code.NOT_FOUND, f"no subscription on channel {chan}") from None
