"""Services: a service is a set of responders that share its requests; a free responder gets the next request.

A service is no group: it is not on disk, and it ends with its last responder.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from fabric.router.access.globs import matches_any
from fabric.router.access.principal import Principal
from fabric.router.fields import GROUP_CHARS_MAX, bounded, patterns_of, text
from fabric.router.patterns.trie import Trie
from fabric.router.sessions.session import Session
from fabric_protocol.bounds import CONCURRENCY
from fabric_protocol.errors import Code, ProtocolError

if TYPE_CHECKING:
    from fabric.router.requests.requests import OpenRequest

QUEUE_PER_HANDLER: Final = 64  # waiting requests of a busy service, for each of its handlers
QUEUE_MAX: Final = 4_096  # waiting requests of a service, at most


class Responder:
    """A subscription that answers requests. It has at most as many open requests as handlers."""

    __slots__ = ("chan", "concurrency", "open", "service", "session")

    def __init__(self, session: Session, chan: int, service: "Service", concurrency: int) -> None:
        self.session = session
        self.chan = chan
        self.service = service
        self.concurrency = concurrency
        self.open: dict[int, OpenRequest] = {}  # open requests, by number

    @property
    def load(self) -> float:
        return len(self.open) / self.concurrency

    @property
    def is_free(self) -> bool:
        return len(self.open) < self.concurrency and self.session.reachable


class Service:
    __slots__ = ("_turn", "chosen", "members", "name", "patterns", "waiting")

    def __init__(self, name: str, patterns: tuple[str, ...]) -> None:
        self.name = name
        self.patterns = patterns
        self.members: list[Responder] = []
        self.chosen = 0  # the number of the latest request of this service
        self.waiting: dict[int, OpenRequest] = {}  # by number, in order of arrival; all members are busy
        self._turn = 0

    @property
    def handlers(self) -> int:
        return sum(member.concurrency for member in self.members)

    @property
    def load(self) -> float:
        """Open and waiting requests for each handler: below 1 when a handler is idle."""
        return (sum(len(member.open) for member in self.members) + len(self.waiting)) / self.handlers

    @property
    def is_full(self) -> bool:
        return len(self.waiting) >= min(QUEUE_PER_HANDLER * self.handlers, QUEUE_MAX)

    def free(self) -> Responder | None:
        """The free responder with the least load; among equals, the next in turn."""
        best, n = -1, len(self.members)
        for i in range(self._turn, self._turn + n):
            member = self.members[i % n]
            if member.is_free and (best < 0 or member.load < self.members[best].load):
                best = i % n
        if best < 0:
            return None
        self._turn = (best + 1) % n
        return self.members[best]

    def leave(self, responder: Responder) -> None:
        self.members.remove(responder)
        self._turn = 0

    def describe(self) -> dict[str, Any]:
        """For INFO."""
        return {
            "service": self.name,
            "patterns": list(self.patterns),
            "members": len(self.members),
            "handlers": self.handlers,
            "busy": sum(len(member.open) for member in self.members),
            "waiting": len(self.waiting),
        }


class Services:
    """All services, by name and by topic; all responders, by session and channel."""

    def __init__(self) -> None:
        self._by_name: dict[str, Service] = {}
        self._by_session: dict[Session, dict[int, Responder]] = {}
        self._trie: Trie[Service] = Trie()
        self._made = 0

    def __iter__(self) -> Iterator[Service]:
        return iter(self._by_name.values())

    def of(self, session: Session) -> dict[int, Responder]:
        """The responders of a session, by channel."""
        return self._by_session.get(session, {})

    def match(self, topic: str) -> dict[Service, None]:
        return self._trie.match(topic)

    def require_right(self, principal: Principal, fields: Mapping[str, Any]) -> None:
        """Raise unless a principal may answer the requests of the service that SUB names. The name of a service is the
        name of a group, so that no principal takes a name that belongs to others."""
        name = fields.get("group")
        if isinstance(name, str) and not matches_any(principal.role.groups, name):
            raise ProtocolError(
                Code.FORBIDDEN,
                f"principal {principal.name!r} may not use the name {name!r:.140} for a service: `groups` of role "
                f"{principal.role.name!r} allows {', '.join(principal.role.groups) or 'no name'}",
            )
        if isinstance(name, str) and (service := self._by_name.get(name)) is not None:
            principal.require_service(name, service.patterns)
        else:
            principal.require_respond(patterns_of(fields))

    def join(self, session: Session, chan: int, fields: Mapping[str, Any]) -> tuple[Responder, bool]:
        """Add the responder that SUB asks for; returns it, and whether its service is new."""
        name, patterns = self._name(fields), patterns_of(fields)
        concurrency = bounded(fields, "concurrency", *CONCURRENCY)
        service = self._by_name.get(name)
        created = service is None
        if service is None:
            if not patterns:
                raise ProtocolError(Code.BAD_OPTION, "patterns is missing: a new service needs at least one")
            service = Service(name, patterns)
            self._by_name[name] = service
            for pattern in patterns:
                self._trie.add(pattern, service)
        elif patterns and patterns != service.patterns:
            raise ProtocolError(
                Code.GROUP_MISMATCH,
                f"service {name!r} exists with patterns {service.patterns!r}, not {patterns!r}",
                field="patterns",
                have=str(service.patterns),
                want=str(patterns),
            )
        responder = Responder(session, chan, service, concurrency)
        service.members.append(responder)
        self._by_session.setdefault(session, {})[chan] = responder
        return responder, created

    def leave(self, responder: Responder) -> None:
        service, session = responder.service, responder.session
        service.leave(responder)
        del self._by_session[session][responder.chan]
        if not self._by_session[session]:
            del self._by_session[session]
        if not service.members:
            del self._by_name[service.name]
            for pattern in service.patterns:
                self._trie.remove(pattern, service)

    def _name(self, fields: Mapping[str, Any]) -> str:
        """The service that a SUB names; without a name, a new service of its own."""
        if fields.get("group") is None:
            self._made += 1
            return f"$service.{self._made}"
        name = text(fields, "group", "", GROUP_CHARS_MAX)
        if not name or name.startswith("$"):
            raise ProtocolError(Code.BAD_OPTION, f"group {name!r}: a name is not empty and does not start with $")
        return name
