"""The observer's knowledge of requests: one responder gets a request, and the client that asked hears of its end once.

Q1  a request goes to one responder of its topic that can be reached and has a handler free, the least busy first
Q2  a client hears of the end of its request once, and of nothing after it
Q3  a request ends with its final reply, at its deadline, or when its responder is gone; not before, not later
Q4  an error says whether a responder may have seen the request
Q5  a request does not wait while a handler is free, and requests that wait go in their order
"""

from collections.abc import Iterable

from fabric.records import TopicSettings
from fabric.router.sessions.session import SILENT_BEATS
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from tests.router.plain_patterns import matches
from tests.simulation.blocks import IDENTS, idents_of
from tests.simulation.facts import Counts
from tests.simulation.ledgers import Asked, Service, Serving, Session
from tests.simulation.reads import Reads


class Asking(Reads):
    def __init__(self, counts: Counts, settings: Iterable[tuple[str, TopicSettings]]) -> None:
        super().__init__(counts, settings)
        self.services: dict[str, Service] = {}
        self.asked: list[Asked] = []  # that are open
        self._numbers: dict[int, Asked] = {}  # by the hub's number, those that were passed on
        self._ended: list[Asked] = []  # whose end is to be told
        self._left: list[Session] = []  # with responders, and their connection was closed
        self._reply: tuple[Asked, m.Reply] | None = None  # that must be passed back at once

    # What the hub is told.

    def serve(self, session: Session, message: m.Subscribe) -> int:
        """A SUB with `respond`."""
        fields = message.fields
        if message.chan in session.serving:
            return Code.BAD_OPTION
        service = self.services.get(fields["group"])
        if service is None:
            service = self.services[fields["group"]] = Service(fields["group"], tuple(fields["patterns"]))
        serving = session.serving[message.chan] = Serving(session, message.chan, service, fields["concurrency"])
        service.members.append(serving)
        self.counts["responders"] += 1
        return 0

    def ask(self, session: Session, message: m.Request, now: float) -> int:
        (ident,) = idents_of(message.block)
        service = self._service_of(IDENTS[ident].topic)
        if service is None:
            return Code.NO_RESPONDERS
        deadline = now + message.fields["timeout_ms"] / 1000
        asked = Asked(session, message, service, deadline)
        session.asked[message.rid] = asked
        self.asked.append(asked)
        service.waiting.append(asked)
        self.counts["requests"] += 1
        return 0

    def _service_of(self, topic: str) -> Service | None:
        found = [one for one in self.services.values() if any(matches(pattern, topic) for pattern in one.patterns)]
        return found[0] if found else None

    def reply(self, session: Session, message: m.Reply) -> int:
        asked = self._numbers.get(message.rid)
        if asked is None or asked.responder is not session.serving.get(message.chan):
            self.counts["late replies"] += 1
            return 0
        asker = asked.session
        if asker is None:
            if message.fields["final"]:
                self._close(asked)
        elif asker.blocked:
            self._end_asked(asked, Code.BUSY)
        else:
            self._reply = asked, message
        return 0

    def stop_serving(self, serving: Serving) -> None:
        """A responder goes: what it was asked ends, and so does what waits for the last one."""
        service = serving.service
        service.members.remove(serving)
        del serving.session.serving[serving.chan]
        for asked in list(serving.open.values()):
            self._end_asked(asked, Code.TIMED_OUT)
        if not service.members:
            del self.services[service.name]
            for asked in list(service.waiting):
                self._end_asked(asked, Code.NO_RESPONDERS)

    def stop_asking(self, session: Session) -> None:
        """A session is over: what it asked is of no interest, but a responder may be at it."""
        for serving in list(session.serving.values()):
            self.stop_serving(serving)
        self._ended = [asked for asked in self._ended if asked.session is not session]  # it asked itself
        for asked in list(session.asked.values()):
            asked.session = None
            if asked.responder is None:
                self._close(asked)
        session.asked = {}

    def disconnected(self, session: Session) -> None:
        if session.serving:
            self._left.append(session)

    # What the hub says.

    def passed_on(self, session: Session, message: m.Request, now: float) -> None:
        serving = session.serving[message.chan]
        assert serving.service.waiting, "Q1: a request is passed on that no client waits for"
        asked = serving.service.waiting.pop(0)
        assert message.block == asked.block, "Q5: requests go in their order, as they are"
        assert len(serving.open) < serving.concurrency, "Q1: a responder is asked more than it has handlers"
        assert session.is_reachable(now), "nothing for a peer that cannot take it"
        assert asked.deadline > now, "Q3: a request is passed on after its deadline"
        assert message.rid not in self._numbers, "Q1: a number is used once"
        load = len(serving.open) / serving.concurrency
        for other in serving.service.members:
            if other is not serving and is_free(other, now):
                assert load <= len(other.open) / other.concurrency, "Q1: the least busy responder is asked"
        asked.responder, asked.number = serving, message.rid
        serving.open[message.rid] = self._numbers[message.rid] = asked
        self.counts["requests passed on"] += 1

    def passed_back(self, session: Session, message: m.Reply) -> None:
        assert self._reply is not None, "Q2: a reply that no responder has sent"
        (asked, said), self._reply = self._reply, None
        assert (asked.session, asked.rid) == (session, message.rid), "Q2: a reply goes to the client that asked"
        assert message.block == said.block, "Q2: a reply is passed on as it is"
        asked.replies_left -= 1
        final = said.fields["final"] or not asked.replies_left
        assert message.fields["final"] is final, "Q3: the last reply is final"
        self.counts["replies"] += 1
        if final:
            session.closed.add(message.rid)
            self._close(asked)

    def is_told_end(self, session: Session, message: m.Err) -> bool:
        """An error that ends a request."""
        ended = next((one for one in self._ended if one.session is session and one.rid == message.rid), None)
        if ended is None:
            assert message.rid not in session.closed, "Q2: a request ends once"
            assert message.rid not in session.asked, f"Q3: a request is ended with {message}, and it is open"
            return False
        self._ended.remove(ended)
        session.closed.add(message.rid)
        assert message.code == ended.code, f"Q3: a request ended with {message.code}, not {ended.code}"
        sent = ended.responder is not None
        assert bool(message.fields.get("sent")) is sent, "Q4: whether a responder may have seen the request"
        self.counts[f"requests ended {Code(ended.code).name}"] += 1
        return True

    # Time.

    def look_at_requests(self, now: float) -> None:
        """The hub has looked at the clock."""
        left, self._left = self._left, []
        for session in left:
            if session.suspect:
                for serving in list(session.serving.values()):
                    self.stop_serving(serving)
        for asked in [one for one in self.asked if one.deadline <= now]:
            self._end_asked(asked, Code.TIMED_OUT)

    def check_requests(self, now: float) -> None:
        """All that follows from the time has been said."""
        assert not self._ended, f"Q3: the end of {len(self._ended)} requests is not told"
        assert self._reply is None, "Q2: a reply is not passed on"
        for service in self.services.values():
            if service.waiting:
                assert not any(is_free(one, now) for one in service.members), "Q5: a request waits for a free handler"

    def forget_requests(self) -> None:
        self.services, self.asked, self._numbers, self._ended, self._left, self._reply = {}, [], {}, [], [], None

    def _end_asked(self, asked: Asked, code: Code) -> None:
        if asked.session is not None:
            asked.code = code
            self._ended.append(asked)
        self._close(asked)

    def _close(self, asked: Asked) -> None:
        self.asked.remove(asked)
        if asked.session is not None:
            del asked.session.asked[asked.rid]
        if asked.responder is not None:
            del asked.responder.open[asked.number], self._numbers[asked.number]
        elif asked in asked.service.waiting:
            asked.service.waiting.remove(asked)


def is_free(serving: Serving, now: float) -> bool:
    """Whether a responder can surely be asked."""
    session = serving.session
    is_away = session.suspect or session.grace_until or now - session.last_seen > SILENT_BEATS * session.hb_s
    return not session.blocked and not is_away and len(serving.open) < serving.concurrency
