"""Principal: a name that connections have proved, with its rights. All sessions of the name share one object.

A check that fails raises FORBIDDEN with a text that names the principal, what was asked, and what its role allows. A
principal with all rights, as `local` is by default, is not checked at all. Dead letters of a group have payloads of the
topics of the group; so `$dlq.<group>` needs the right to the group and to its stored patterns.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from fabric.router.access.identity import GUEST_NAME, LOCAL_NAME
from fabric.router.access.rights import KNOWN_MAX, Rights, shown
from fabric.router.access.role import EVERYTHING, NOTHING, Role
from fabric.router.access.usage import Usage, require_room_for_group
from fabric.router.patterns.view import View
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.names import DEAD, REDRIVE

if TYPE_CHECKING:
    from fabric.router.groups.group import Group

_OF_GROUPS: Final = (DEAD, REDRIVE)  # topics that are made of these and the name of a group


class Principal:
    __slots__ = (
        "_groups",
        "_publishable",
        "_readable",
        "_requestable",
        "_rights",
        "is_barred",
        "is_free",
        "is_revoked",
        "name",
        "role",
        "usage",
    )

    def __init__(self, name: str, role: Role = EVERYTHING, groups: "Mapping[str, Group] | None" = None) -> None:
        self.name = name
        self.usage = Usage()
        self._groups: Mapping[str, Group] = {} if groups is None else groups  # all groups of the hub
        self.is_revoked = False  # its sessions have ended, and a command of a session that was not told is refused
        self.is_barred = self.is_guest  # most commands are refused, whatever the role
        self.set_role(role)

    @property
    def is_guest(self) -> bool:
        return self.name == GUEST_NAME

    def set_role(self, role: Role) -> None:
        """Have the rights and limits of a role from now on."""
        self.role = role
        self.is_free = role is EVERYTHING
        self._rights = Rights(role)
        self._publishable, self._requestable = self._rights.publish.known, self._rights.request.known
        self._readable: set[str] = set()  # patterns that `require_subscribe` has allowed
        self.usage.limit(role.limits)

    def revoke(self) -> None:
        self.set_role(NOTHING)
        self.is_revoked = self.is_barred = True

    # Each command is checked, so known topics and patterns cost one look.

    def require_publish(self, topics: Collection[str]) -> None:
        """Raise unless a publish to all of these topics is allowed."""
        if self.is_free or self._publishable.issuperset(topics):
            return
        for topic in topics:
            if topic not in self._rights.publish:
                raise self._forbidden(f"publish to {topic!r:.120}", self.role.publish, "publishes to no topic")

    def may_publish(self, topics: Collection[str]) -> bool:
        return self.is_free or all(topic in self._rights.publish for topic in topics)

    def require_request(self, topic: str) -> None:
        if self.is_free or topic in self._requestable or topic in self._rights.request:
            return
        raise self._forbidden(f"send a request to {topic!r:.120}", self.role.request, "sends requests to no topic")

    def require_respond(self, patterns: Collection[str]) -> None:
        """Raise unless answers to requests of all of these patterns are allowed."""
        if self.is_free:
            return
        for pattern in patterns:
            if pattern not in self._rights.respond:
                raise self._forbidden(f"answer requests to {pattern!r:.120}", self.role.respond, "answers no requests")

    def require_service(self, name: str, patterns: Collection[str]) -> None:
        """Raise unless the principal may answer all requests of a service. The text does not name its patterns."""
        if not self.may_respond(patterns):
            what = f"answer the requests of service {name!r:.140}, whose patterns are not all allowed"
            raise self._forbidden(what, self.role.respond, "answers no requests")

    def may_respond(self, patterns: Collection[str]) -> bool:
        return self.is_free or all(pattern in self._rights.respond for pattern in patterns)

    # Reading.

    def require_subscribe(self, patterns: Collection[str], what: str = "read {!r:.120}") -> None:
        """Raise unless all messages of these canonical patterns may be read."""
        if self.is_free or self._readable.issuperset(patterns):
            return
        found: set[str] = set()
        for pattern in patterns:
            if not self._subscribes(pattern, found):
                raise self._forbidden(what.format(pattern), self.role.subscribe, "reads no topic")
        if len(self._readable) >= KNOWN_MAX:
            self._readable.clear()
        # What dead letters have depends on groups, which change.
        self._readable.update(pattern for pattern in patterns if not pattern.startswith(_OF_GROUPS))

    def may_subscribe(self, patterns: Collection[str]) -> bool:
        found: set[str] = set()
        return self.is_free or all(self._subscribes(pattern, found) for pattern in patterns)

    def _subscribes(self, pattern: str, found: set[str]) -> bool:
        """Whether all messages of a pattern may be read; so is what was found before. A group may itself consume dead
        letters, also of each other: each pattern is looked at once."""
        left = [pattern] if pattern not in found else []
        found.add(pattern)
        while left:
            one = left.pop()
            if not one.startswith(_OF_GROUPS):
                if one not in self._rights.subscribe:
                    return False
                continue
            rest = one.split(".", 1)[1]
            if not self._reads_dead_letters(one, rest):
                return False
            for group in self._written_by(rest):
                left += [other for other in group.settings.patterns if other not in found]
                found.update(group.settings.patterns)
        return True

    def _reads_dead_letters(self, pattern: str, group: str) -> bool:
        """Whether the role allows a pattern for the dead letters of some groups, whatever the groups consume."""
        if "*" in group or "#" in group:
            return self._rights.joins_all and pattern in self._rights.subscribe
        return self._rights.joins(group) and not self._rights.subscribe.denies(pattern)

    def _written_by(self, rest: str) -> "Iterator[Group]":
        """The groups whose names match the rest of a pattern for dead letters."""
        if rest in self._groups:
            yield self._groups[rest]
        elif "*" in rest or "#" in rest:
            view = View([rest])
            yield from (group for group in self._groups.values() if group.durable and view(group.name))

    def sees_topic(self, topic: str) -> bool:
        """Whether the principal may read a topic, or all lists."""
        if self.is_free or "info" in self.role.admin:
            return True
        if topic.startswith(_OF_GROUPS):
            return self._subscribes(topic, set())
        return topic in self._rights.topics

    def first_words(self) -> Collection[str] | None:
        """The first words of topics that the principal may see, so that a list leaves out all others; None: any."""
        words = {pattern.partition(".")[0] for pattern in self.role.subscribe} | {prefix[:-1] for prefix in _OF_GROUPS}
        return None if self.is_free or "info" in self.role.admin or not words.isdisjoint(("*", "#")) else words

    def require_topic(self, topic: str, what: str) -> None:
        """Raise unless the principal may read a topic or publish to it."""
        if not (self.is_free or self.may_subscribe([topic]) or topic in self._rights.publish):
            allowed = dict.fromkeys((*self.role.subscribe, *self.role.publish))
            raise self._forbidden(f"{what} {topic!r:.120}", allowed, "has no right to a topic")

    # Groups and services.

    def require_group(self, name: str, what: str = "use the group") -> None:
        if not self.joins(name):
            raise self._forbidden(f"{what} {name!r:.140}", self.role.groups, "uses no group", denies=False)

    def require_stored(self, group: "Group") -> None:
        """Raise unless all stored patterns of a group are allowed. The text does not name them."""
        if not self.may_subscribe(group.settings.patterns):
            what = f"read the topics of group {group.name!r:.140}, whose patterns are not all allowed"
            raise self._forbidden(what, self.role.subscribe, "reads no topic")

    def require_new_group(self) -> None:
        """Raise when the principal may not create one more durable group."""
        require_room_for_group(self, self._groups)

    def joins(self, name: str) -> bool:
        return self.is_free or self._rights.joins(name)

    def sees_group(self, name: str) -> bool:
        """Whether the principal may use a group, or see all lists."""
        return self.is_free or "info" in self.role.admin or self._rights.joins(name)

    def sees_service(self, patterns: Collection[str]) -> bool:
        """Whether the principal may answer the requests of a service, or send it some."""
        if self.is_free or "info" in self.role.admin or self.may_respond(patterns):
            return True
        return all(pattern in self._rights.requested for pattern in patterns)

    # Administration.

    def may_administer(self, right: str) -> bool:
        return right in self.role.admin

    def require_admin(self, right: str, what: str) -> None:
        """Raise unless the role has one of ADMIN_RIGHTS."""
        if right not in self.role.admin:
            text = f"{what}, which needs the right {right!r} of `admin`"
            raise self._forbidden(text, sorted(self.role.admin), "administers nothing", denies=False)

    def describe(self) -> dict[str, Any]:
        """The fields of INFO me."""
        role = self.role
        rights = {
            field: sorted(value) if field == "admin" else list(value)
            for field, value in role._asdict().items()
            if field not in ("name", "limits")
        }
        return {"principal": self.name, "role": role.name, "rights": rights, "limits": role.limits._asdict()}

    def _forbidden(self, what: str, allowed: Iterable[str], none: str, *, denies: bool = True) -> ProtocolError:
        said = shown(allowed)
        text = f"principal {self.name!r} may not {what}: role {self.role.name!r} "
        text += f"allows {said}" if said else none
        if denies and self.role.deny:
            text += f", and denies {shown(self.role.deny)}"
        return ProtocolError(Code.FORBIDDEN, text)


class Principals:
    """All principals by name, each one object for the life of the hub."""

    def __init__(self, groups: "Mapping[str, Group] | None" = None, roles: Mapping[str, Role] | None = None) -> None:
        self._groups = groups
        self._by_name = {
            LOCAL_NAME: Principal(LOCAL_NAME, EVERYTHING, groups),
            GUEST_NAME: Principal(GUEST_NAME, NOTHING, groups),
        }
        self.apply(roles or {})

    @property
    def local(self) -> Principal:
        return self._by_name[LOCAL_NAME]

    def find(self, name: str) -> Principal | None:
        """The principal of a name; None when there is none, or it was revoked."""
        principal = self._by_name.get(name)
        return None if principal is None or principal.is_revoked else principal

    def apply(self, roles: Mapping[str, Role]) -> list[Principal]:
        """Give each principal its role. Returns the principals that have other rights than before, or none."""
        changed = []
        for name, role in {LOCAL_NAME: EVERYTHING, **roles}.items():
            principal = self._by_name.get(name)
            if principal is None or principal.is_revoked:
                self._by_name[name] = Principal(name, role, self._groups)
            elif principal.role != role:
                principal.set_role(role)
                changed.append(principal)
        for name, principal in list(self._by_name.items()):
            if name not in roles and name not in (LOCAL_NAME, GUEST_NAME):
                del self._by_name[name]
                principal.revoke()
                changed.append(principal)
        return changed
