"""Request and reply: the hub passes a request to one responder and its replies back to the client. Nothing is
journaled.

A request is open until its final reply, its deadline, or the loss of its responder; the client is told of the first of
these, exactly once. NO_RESPONDERS and BUSY mean that no responder has received the request, so the client may send it
again. TIMED_OUT means that there is no reply, and its field `sent` says whether a responder may have worked on it.
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

OPEN_MAX: Final = 65_536  # open requests of the hub; each costs about half a kilobyte
OPEN_PER_SESSION_MAX: Final = 1_024
WAITING_BYTES_MAX: Final = 64 << 20  # of all requests that wait for busy services
ERROR_CHARS_MAX: Final = 1_000
RETRY_MS: Final = 50


class OpenRequest:
    """An open request."""

    __slots__ = (
        "block", "deadline", "is_open", "number", "principal", "replies_left", "responder", "rid", "service", "session",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        session: Session,
        request: m.Request,
        service: Service,
        deadline: float,
        replies_max: int,
    ) -> None:
        self.number = number  # the rid of the request for the responder
        self.session: Session | None = session  # of the client; None: the session has ended
        self.principal = session.principal
        self.rid = request.rid
        self.service = service
        self.deadline = deadline
        self.replies_left = replies_max
        self.block = request.block  # empty when it was passed on
        self.responder: Responder | None = None  # None: the request waits
        self.is_open = True


class Requests(Part):
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._change = shared.change
        self.services = Services()
        self._counters = shared.counters
        self._open: dict[int, OpenRequest] = {}
        self._asked: dict[Session, dict[int, OpenRequest]] = {}  # by session of the client, and its rid
        self._numbers = count(1)
        self._waiting_bytes = 0
        self._timers: Timers[OpenRequest] = Timers(lambda request: request.is_open)
        self._runnable: dict[Service, None] = {}  # services with a waiting request that may have a free responder
        self._gone: list[Session] = []

    def __len__(self) -> int:
        return len(self._open)

    # Responders.

    def serve(self, session: Session, message: m.Subscribe, turn: Turn) -> None:
        """Handle a SUB with `respond`: a new responder."""
        if message.fields["respond"] is not True:
            raise ProtocolError(Code.BAD_OPTION, f"respond is true or false, not {message.fields['respond']!r:.60}")
        self.services.require_right(session.principal, message.fields)
        self._change.begin()
        responder, created = self.services.join(session, message.chan, message.fields)
        self._mark_runnable(responder.service)
        answer = {"group": responder.service.name, "created": created, "concurrency": responder.concurrency}
        if message.rid:
            turn.send(session.peer, m.Ok(message.chan, message.rid, answer))

    def leave(self, responder: Responder, why: str, turn: Turn) -> None:
        """Remove a responder. Its open requests fail; requests that wait for the service fail when it was the last."""
        self.services.leave(responder)
        for request in list(responder.open.values()):
            self._fail(request, Code.TIMED_OUT, f"no reply: the responder {why}", turn)
        if not responder.service.members:
            for request in list(responder.service.waiting.values()):
                self._fail(
                    request,
                    Code.NO_RESPONDERS,
                    f"the last responder {why}; no responder has received the request",
                    turn,
                )

    def disconnect(self, session: Session) -> None:
        """A connection is closed. Its responders get requests again when they have subscribed again."""
        if self.services.of(session):
            self._gone.append(session)

    def drop_responders(self, session: Session, why: str, turn: Turn) -> None:
        """Remove all responders of a session."""
        for responder in list(self.services.of(session).values()):
            self.leave(responder, why, turn)

    def end(self, session: Session, why: str, turn: Turn) -> None:
        """A session has ended: remove its responders and close its open requests."""
        self.drop_responders(session, why, turn)
        for request in list(self._asked.pop(session, {}).values()):
            request.session = None  # a responder that has it is busy until its reply or the deadline
            if request.responder is None:
                self._close(request)

    # Requests and replies.

    def ask(self, session: Session, message: m.Request, now: float, turn: Turn) -> None:
        if self._shared.draining:
            raise ProtocolError(
                Code.SHUTTING_DOWN, "the hub is stopping; send the request again when it is back", retry_ms=500
            )
        asked = self._asked.get(session, {})
        if not message.rid or message.rid in asked:
            raise ProtocolError(
                Code.BAD_OPTION, f"rid {message.rid}: use a rid that is not 0, nor the rid of an open request"
            )
        if len(asked) >= OPEN_PER_SESSION_MAX or len(self._open) >= OPEN_MAX:
            raise ProtocolError(Code.BUSY, _too_many(len(asked)), retry_ms=RETRY_MS)
        timeout_s = bounded(message.fields, "timeout_ms", *REQUEST_MS) / 1000
        replies_max = bounded(message.fields, "replies_max", *REPLIES)
        topic = _topic_of(message.block)
        principal = session.principal
        principal.require_request(topic)
        service, responder = self._choose(topic)
        if responder is None and self._waiting_bytes + len(message.block) > WAITING_BYTES_MAX:
            raise ProtocolError(
                Code.BUSY,
                f"requests of {WAITING_BYTES_MAX} bytes wait for responders, which is the limit; send it again later",
                retry_ms=RETRY_MS,
            )
        if principal.usage.is_limited:
            principal.usage.publish(1, len(message.block), now)
        self._change.begin()
        request = OpenRequest(next(self._numbers), session, message, service, now + timeout_s, replies_max)
        self._open[request.number] = request
        self._asked.setdefault(session, {})[message.rid] = request
        self._timers.set(request.deadline, request)
        self._counters["requests"] += 1
        service.chosen = request.number
        if responder is not None:
            self._pass_on(request, responder, now, turn)
        else:
            service.waiting[request.number] = request
            self._count_waiting(request, len(request.block))

    def _choose(self, topic: str) -> tuple[Service, Responder | None]:
        """The service with the least load, and its free responder; None when the request has to wait."""
        services = sorted(self.services.match(topic), key=_load)
        if not services:
            raise ProtocolError(Code.NO_RESPONDERS, f"no responder answers requests to topic {topic!r}")
        for service in services:
            if not service.waiting and (responder := service.free()) is not None:
                return service, responder
        for service in services:
            if not service.is_full:
                return service, None
        raise ProtocolError(
            Code.BUSY,
            f"all responders of topic {topic!r} are busy and their queues are full; send the request again later",
            retry_ms=RETRY_MS,
        )

    def _pass_on(self, request: OpenRequest, responder: Responder, now: float, turn: Turn) -> None:
        asker = request.session
        assert asker is not None
        request.responder = responder
        responder.open[request.number] = request
        fields = {
            "timeout_ms": max(int((request.deadline - now) * 1000), 1),
            "from": asker.client,
            "principal": asker.principal.name,
        }
        turn.send(responder.session.peer, m.Request(responder.chan, request.number, fields, request.block))
        request.block = b""

    def reply(self, session: Session, reply: m.Reply, turn: Turn) -> None:
        """Pass a reply on. A reply to a request that is not open any more is dropped."""
        request = self._open.get(reply.rid)
        responder = request.responder if request is not None else None
        if request is None or responder is None or responder is not self.services.of(session).get(reply.chan):
            self._counters["late_replies"] += 1
            return
        final = reply.fields.get("final", True)
        if type(final) is not bool:
            raise ProtocolError(Code.BAD_OPTION, f"final is true or false, not {final!r}")
        error = text(reply.fields, "error", "", ERROR_CHARS_MAX)
        _check(reply.block)
        self._change.begin()
        asker = request.session
        if asker is None:
            self._counters["late_replies"] += 1
        elif asker.blocked:  # the client does not receive its replies, and the send queue has a bound
            self._fail(
                request,
                Code.BUSY,
                "the send queue of this connection is full, so the reply was dropped: receive replies faster",
                turn,
                sent=True,
            )
            return
        else:
            request.replies_left -= 1
            final = final or not request.replies_left
            fields: dict[str, Any] = {"final": final, "from": session.client, "principal": session.principal.name}
            if error:
                fields["error"] = error
            turn.send(asker.peer, m.Reply(0, request.rid, fields, reply.block))
            self._counters["replies"] += 1
        if final:
            self._close(request)

    # Time.

    def tick(self, now: float, turn: Turn) -> None:
        """Fail requests after their deadline, and pass waiting requests to responders that are free."""
        while self._gone:
            session = self._gone.pop()
            if session.suspect:  # the client has not resumed it
                self.drop_responders(session, "has lost its connection", turn)
        while (request := self._timers.pop_due(now)) is not None:
            if request.is_open:
                self._counters["requests_timed_out"] += 1
                self._fail(request, Code.TIMED_OUT, "no reply before the deadline of the request", turn)
        if self._runnable:
            runnable, self._runnable = self._runnable, {}
            for service in runnable:
                self._serve(service, now, turn)

    def next_deadline(self) -> float:
        return 0.0 if self._gone or self._runnable else self._timers.next()

    def mark_runnable(self, session: Session) -> None:
        """A session is reachable again, so its responders may be free."""
        for responder in self.services.of(session).values():
            self._mark_runnable(responder.service)

    def _mark_runnable(self, service: Service) -> None:
        if service.waiting:
            self._runnable[service] = None

    def _serve(self, service: Service, now: float, turn: Turn) -> None:
        while service.waiting and (responder := service.free()) is not None:
            request = service.waiting.pop(next(iter(service.waiting)))
            self._count_waiting(request, -len(request.block))
            self._pass_on(request, responder, now, turn)

    # The end of a request.

    def _fail(self, request: OpenRequest, code: Code, why: str, turn: Turn, *, sent: bool | None = None) -> None:
        """Close a request with an error, and notify the client if its session exists."""
        if request.session is not None:
            sent = request.responder is not None if sent is None else sent
            fields: dict[str, Any] = {"sent": sent} if code is Code.TIMED_OUT or sent else {}
            turn.notify(request.session, m.Err(0, request.rid, code, why, fields))
        self._close(request)

    def _close(self, request: OpenRequest) -> None:
        request.is_open = False
        del self._open[request.number]
        asked = self._asked.get(request.session) if request.session is not None else None
        if request.session is not None and asked is not None:
            del asked[request.rid]
            if not asked:
                del self._asked[request.session]
        if request.responder is not None:
            request.responder.open.pop(request.number, None)
        elif request.service.waiting.pop(request.number, None) is not None:
            self._count_waiting(request, -len(request.block))
        self._mark_runnable(request.service)

    def _count_waiting(self, request: OpenRequest, size: int) -> None:
        """Bytes begin to wait for a responder, or end to."""
        self._waiting_bytes += size
        request.principal.usage.inflight_bytes += size


def _load(service: Service) -> tuple[float, int]:
    """Sorts services by load, and services of equal load by the time since they were chosen."""
    return service.load, service.chosen


def _too_many(asked: int) -> str:
    if asked >= OPEN_PER_SESSION_MAX:
        return f"a session has at most {OPEN_PER_SESSION_MAX} open requests: wait for a reply"
    return f"a hub has at most {OPEN_MAX} open requests: send it again later"


def _check(raw: bytes) -> Block:
    block = Block(raw)
    block.verify()
    if block.flags & SPARSE:
        raise ProtocolError(
            Code.BAD_BLOCK, "the block of a request or a reply has consecutive seqs: clear the flag SPARSE"
        )
    return block


def _topic_of(raw: bytes) -> str:
    """The topic of a request, which is a block of one message."""
    block = _check(raw)
    if block.count != 1:
        raise ProtocolError(Code.BAD_OPTION, f"a request has one message, not {block.count}")
    (topic,) = block.topics
    check_topic(topic)
    if unaliased(topic).startswith("$"):
        raise ProtocolError(
            Code.FORBIDDEN,
            f"topic {topic!r} belongs to the hub: send requests to a topic that does not begin with $ or end with .DLQ",
        )
    return topic
