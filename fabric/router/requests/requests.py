"""Request and reply: a question for whoever answers a topic, and the answers on their way back. Nothing is journaled.

A request is open until its final reply, its deadline, or the loss of its responder; whichever comes first, the one
who asked hears of it exactly once. NO_RESPONDERS and BUSY mean that nobody has seen the request, so it may be sent
again; TIMED_OUT means that there is no answer, and its field `sent` says whether somebody may have worked on it.
"""

from itertools import count
from typing import Any, Final

from fabric.router.fields import bounded, text
from fabric.router.part import Part
from fabric.router.requests.services import Responder, Service, Services
from fabric.router.sessions.session import Session
from fabric.router.shared import Shared
from fabric.router.timers import Timers
from fabric.router.turn import Turn
from fabric_protocol import messages as m
from fabric_protocol.block import SPARSE, Block
from fabric_protocol.bounds import REPLIES, REQUEST_MS
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.names import check_topic, unaliased

OPEN_MAX: Final = 65_536  # requests in the hub; each costs about half a kilobyte
OPEN_PER_SESSION_MAX: Final = 1_024
WAITING_BYTES_MAX: Final = 64 << 20  # of requests that wait for busy services, together
ERROR_CHARS_MAX: Final = 1_000
RETRY_MS: Final = 50


class Inquiry:
    """An open request."""

    __slots__ = ("block", "deadline", "is_open", "number", "replies_left", "responder", "rid", "service", "session")

    def __init__(
        self,
        number: int,
        session: Session,
        request: m.Request,
        service: Service,
        deadline: float,
        replies_max: int,
    ) -> None:
        self.number = number  # the rid under which the responder knows it
        self.session: Session | None = session  # who asked; None: gone since
        self.rid = request.rid
        self.service = service
        self.deadline = deadline
        self.replies_left = replies_max
        self.block = request.block  # empty once it was passed on
        self.responder: Responder | None = None  # None: it waits
        self.is_open = True


class Requests(Part):
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._change = shared.change
        self.services = Services()
        self._counters = shared.counters
        self._open: dict[int, Inquiry] = {}
        self._asked: dict[Session, dict[int, Inquiry]] = {}  # by who asked, and its rid
        self._numbers = count(1)
        self._waiting_bytes = 0
        self._timers: Timers[Inquiry] = Timers(lambda inquiry: inquiry.is_open)
        self._stirred: dict[Service, None] = {}  # something waits there, and someone may have become free
        self._gone: list[Session] = []

    def __len__(self) -> int:
        return len(self._open)

    # Responders.

    def serve(self, session: Session, message: m.Subscribe, turn: Turn) -> None:
        """A SUB with `respond`."""
        if message.fields["respond"] is not True:
            raise ProtocolError(Code.BAD_OPTION, f"respond is true or false, not {message.fields['respond']!r}")
        self._change.begin()
        responder, created = self.services.join(session, message.chan, message.fields)
        self._stir(responder.service)
        answer = {"group": responder.service.name, "created": created, "concurrency": responder.concurrency}
        if message.rid:
            turn.send(session.peer, m.Ok(message.chan, message.rid, answer))

    def leave(self, responder: Responder, why: str, turn: Turn) -> None:
        """A responder goes. Who waits for its answer is told; who waits for any answer goes on waiting, or is told."""
        self.services.leave(responder)
        for inquiry in list(responder.open.values()):
            self._fail(inquiry, Code.TIMED_OUT, f"no answer: the responder {why}", turn)
        if not responder.service.members:
            for inquiry in list(responder.service.waiting.values()):
                self._fail(inquiry, Code.NO_RESPONDERS, f"the last responder {why}; nobody has seen the request", turn)

    def disconnect(self, session: Session) -> None:
        """The connection is gone. Its responders may be chosen again when they have subscribed again."""
        if self.services.of(session):
            self._gone.append(session)

    def drop_responders(self, session: Session, why: str, turn: Turn) -> None:
        """Nobody of a session answers any more."""
        for responder in list(self.services.of(session).values()):
            self.leave(responder, why, turn)

    def end(self, session: Session, why: str, turn: Turn) -> None:
        """A session is over: nobody is left to answer, and nobody to be answered."""
        self.drop_responders(session, why, turn)
        for inquiry in list(self._asked.pop(session, {}).values()):
            inquiry.session = None  # if someone is at work on it, that one is busy until it answers, or the deadline
            if inquiry.responder is None:
                self._close(inquiry)

    # Requests and replies.

    def ask(self, session: Session, request: m.Request, now: float, turn: Turn) -> None:
        if self._shared.draining:
            raise ProtocolError(Code.SHUTTING_DOWN, "the hub is stopping", retry_ms=500)
        asked = self._asked.get(session, {})
        if not request.rid or request.rid in asked:
            raise ProtocolError(Code.BAD_OPTION, f"rid {request.rid}: use one that is not 0, nor of an open request")
        if len(asked) >= OPEN_PER_SESSION_MAX or len(self._open) >= OPEN_MAX:
            raise ProtocolError(Code.BUSY, _too_many(len(asked)), retry_ms=RETRY_MS)
        timeout_s = bounded(request.fields, "timeout_ms", *REQUEST_MS) / 1000
        replies_max = bounded(request.fields, "replies_max", *REPLIES)
        topic = _topic_of(request.block)
        service, responder = self._choose(topic)
        if responder is None and self._waiting_bytes + len(request.block) > WAITING_BYTES_MAX:
            raise ProtocolError(Code.BUSY, "too many bytes of requests wait", retry_ms=RETRY_MS)
        self._change.begin()
        inquiry = Inquiry(next(self._numbers), session, request, service, now + timeout_s, replies_max)
        self._open[inquiry.number] = inquiry
        self._asked.setdefault(session, {})[request.rid] = inquiry
        self._timers.set(inquiry.deadline, inquiry)
        self._counters["requests"] += 1
        service.chosen = inquiry.number
        if responder is not None:
            self._pass_on(inquiry, responder, now, turn)
        else:
            service.waiting[inquiry.number] = inquiry
            self._waiting_bytes += len(inquiry.block)

    def _choose(self, topic: str) -> tuple[Service, Responder | None]:
        """The service with the least to do, and its free responder; None when the request has to wait there."""
        services = sorted(self.services.match(topic), key=_load)
        if not services:
            raise ProtocolError(Code.NO_RESPONDERS, f"nobody answers requests to topic {topic!r}")
        for service in services:
            if not service.waiting and (responder := service.free()) is not None:
                return service, responder
        for service in services:
            if not service.is_full:
                return service, None
        raise ProtocolError(Code.BUSY, f"all who answer topic {topic!r} are busy, and enough wait", retry_ms=RETRY_MS)

    def _pass_on(self, inquiry: Inquiry, responder: Responder, now: float, turn: Turn) -> None:
        asker = inquiry.session
        assert asker is not None
        inquiry.responder = responder
        responder.open[inquiry.number] = inquiry
        fields = {"timeout_ms": max(int((inquiry.deadline - now) * 1000), 1), "from": asker.client}
        turn.send(responder.session.peer, m.Request(responder.chan, inquiry.number, fields, inquiry.block))
        inquiry.block = b""

    def reply(self, session: Session, reply: m.Reply, turn: Turn) -> None:
        """An answer. One that nobody waits for any more is dropped."""
        inquiry = self._open.get(reply.rid)
        responder = inquiry.responder if inquiry is not None else None
        if inquiry is None or responder is None or responder is not self.services.of(session).get(reply.chan):
            self._counters["late_replies"] += 1
            return
        final = reply.fields.get("final", True)
        if type(final) is not bool:
            raise ProtocolError(Code.BAD_OPTION, f"final is true or false, not {final!r}")
        error = text(reply.fields, "error", "", ERROR_CHARS_MAX)
        _check(reply.block)
        self._change.begin()
        asker = inquiry.session
        if asker is None:
            self._counters["late_replies"] += 1
        elif asker.blocked:  # it asks faster than it reads; what is kept for it has a bound
            self._fail(inquiry, Code.BUSY, "replies are not being read; this one was dropped", turn, sent=True)
            return
        else:
            inquiry.replies_left -= 1
            final = final or not inquiry.replies_left
            fields: dict[str, Any] = {"final": final, "from": session.client}
            if error:
                fields["error"] = error
            turn.send(asker.peer, m.Reply(0, inquiry.rid, fields, reply.block))
            self._counters["replies"] += 1
        if final:
            self._close(inquiry)

    # Time.

    def tick(self, now: float, turn: Turn) -> None:
        """Let deadlines pass, and give what waits to who has become free."""
        while self._gone:
            session = self._gone.pop()
            if session.suspect:  # it has not come back since
                self.drop_responders(session, "has lost its connection", turn)
        while (inquiry := self._timers.ring(now)) is not None:
            if inquiry.is_open:
                self._counters["requests_timed_out"] += 1
                self._fail(inquiry, Code.TIMED_OUT, "no answer within the time", turn)
        if self._stirred:
            stirred, self._stirred = self._stirred, {}
            for service in stirred:
                self._serve(service, now, turn)

    def next_deadline(self) -> float:
        return 0.0 if self._gone or self._stirred else self._timers.next()

    def mark_runnable(self, session: Session) -> None:
        """A session can be reached again."""
        for responder in self.services.of(session).values():
            self._stir(responder.service)

    def _stir(self, service: Service) -> None:
        if service.waiting:
            self._stirred[service] = None

    def _serve(self, service: Service, now: float, turn: Turn) -> None:
        while service.waiting and (responder := service.free()) is not None:
            inquiry = service.waiting.pop(next(iter(service.waiting)))
            self._waiting_bytes -= len(inquiry.block)
            self._pass_on(inquiry, responder, now, turn)

    # The end of a request.

    def _fail(self, inquiry: Inquiry, code: Code, why: str, turn: Turn, *, sent: bool | None = None) -> None:
        """Tell the one who asked, if it is still there."""
        if inquiry.session is not None:
            sent = inquiry.responder is not None if sent is None else sent
            fields: dict[str, Any] = {"sent": sent} if code is Code.TIMED_OUT or sent else {}
            turn.notify(inquiry.session, m.Err(0, inquiry.rid, code, why, fields))
        self._close(inquiry)

    def _close(self, inquiry: Inquiry) -> None:
        inquiry.is_open = False
        del self._open[inquiry.number]
        asked = self._asked.get(inquiry.session) if inquiry.session is not None else None
        if inquiry.session is not None and asked is not None:
            del asked[inquiry.rid]
            if not asked:
                del self._asked[inquiry.session]
        if inquiry.responder is not None:
            inquiry.responder.open.pop(inquiry.number, None)
        elif inquiry.service.waiting.pop(inquiry.number, None) is not None:
            self._waiting_bytes -= len(inquiry.block)
        self._stir(inquiry.service)


def _load(service: Service) -> tuple[float, int]:
    """The least to do first, and among equals the one that was not chosen for longest."""
    return service.load, service.chosen


def _too_many(asked: int) -> str:
    if asked >= OPEN_PER_SESSION_MAX:
        return f"a session has at most {OPEN_PER_SESSION_MAX} open requests"
    return f"a hub has at most {OPEN_MAX} open requests"


def _check(raw: bytes) -> Block:
    block = Block(raw)
    block.verify()
    if block.flags & SPARSE:
        raise ProtocolError(Code.BAD_BLOCK, "a block on its way through the hub is not sparse")
    return block


def _topic_of(raw: bytes) -> str:
    """The topic of a request, which is a block of one message."""
    block = _check(raw)
    if block.count != 1:
        raise ProtocolError(Code.BAD_OPTION, f"a request is one message, not {block.count}")
    (topic,) = block.topics
    check_topic(topic)
    if unaliased(topic).startswith("$"):
        raise ProtocolError(Code.FORBIDDEN, f"topic {topic!r} is the hub's own")
    return topic
