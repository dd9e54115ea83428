"""Rights: a role in a form that answers quickly. It has no state of the hub, and remembers its answers in bounds.

A topic is allowed if an allowed pattern matches it and no denied one does. A pattern is allowed if it is included in
one allowed pattern and meets no denied one. Several allowed patterns that include it together do not count: so each
answer has one reason, which a person can read in the access file.
"""

from collections.abc import Iterable
from typing import Final

from fabric.router.access.globs import matches_any
from fabric.router.access.inclusion import Meeting, includes, shortest
from fabric.router.access.role import Role
from fabric.router.patterns.automaton import Automaton, places_of
from fabric.router.patterns.view import View

KNOWN_MAX: Final = 16_384  # topics, and patterns, that are remembered for each kind of right; about 2 MB
SHOWN_MAX: Final = 8  # patterns in the text of an error


class Topics:
    """Topics that some patterns allow and no denied pattern matches."""

    __slots__ = ("_allowed", "_denied", "known")

    def __init__(self, allowed: Iterable[str], denied: Iterable[str]) -> None:
        self._allowed = View(allowed)
        self._denied = View(denied)
        self.known: set[str] = set()  # topics that are allowed

    def __contains__(self, topic: str) -> bool:
        if topic in self.known:
            return True
        if not self._allowed(topic) or self._denied(topic):
            return False
        if len(self.known) >= KNOWN_MAX:
            self.known.clear()
        self.known.add(topic)
        return True


class Patterns:
    """Patterns that are included in one allowed pattern and meet no denied one."""

    __slots__ = ("_allowed", "_known", "denies")

    def __init__(self, allowed: Iterable[str], denied: Iterable[str]) -> None:
        self._allowed = Automaton()
        for pattern in allowed:
            self._allowed.add(pattern)
        self.denies = Meeting(denied)
        self._known: dict[str, bool] = {}

    def __contains__(self, pattern: str) -> bool:
        answer = self._known.get(pattern)
        if answer is None:
            matching = places_of(self._allowed.match(shortest(pattern)))  # few of many allowed patterns
            answer = any(includes(self._allowed.patterns[last], pattern) for last in matching)
            answer = answer and not self.denies(pattern)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[pattern] = answer
        return answer


class Rights:
    """The rights of a role."""

    __slots__ = ("publish", "request", "requested", "respond", "role", "subscribe", "topics")

    def __init__(self, role: Role) -> None:
        self.role = role
        self.publish = Topics(role.publish, role.deny)
        self.request = Topics(role.request, role.deny)
        self.topics = Topics(role.subscribe, role.deny)  # that it may read
        self.subscribe = Patterns(role.subscribe, role.deny)
        self.respond = Patterns(role.respond, role.deny)
        self.requested = Patterns(role.request, role.deny)

    def joins(self, group: str) -> bool:
        """Whether the role allows a name of a group. The hub gives names with `$`, which no role can allow."""
        return not group.startswith("$") and matches_any(self.role.groups, group)

    @property
    def joins_all(self) -> bool:
        return "*" in self.role.groups


def shown(allowed: Iterable[str]) -> str:
    """What a role allows, for the text of an error."""
    listed = list(allowed)
    more = f" and {len(listed) - SHOWN_MAX} more" if len(listed) > SHOWN_MAX else ""
    return ", ".join(listed[:SHOWN_MAX]) + more
