"""INFO: what the hub has, in numbers. It only reads, and answers at once.

A list comes in pages, because an answer has one MiB at most: a page has up to `n` rows, and fewer when rows are long.
`more` says that there are more rows, and `next` is the `after` of the next page.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fabric.router.access.principal import Principal
from fabric.router.admin.dead_letters import letters_of
from fabric.router.admin.groups import as_map, find
from fabric.router.dead_letters.index import DeadLetterSet
from fabric.router.fields import is_number
from fabric.router.groups.description import describe
from fabric.router.groups.group import Group
from fabric.router.paging import page
from fabric.router.read.message_search import copies
from fabric.router.read.message_search import find as find_messages
from fabric.router.read.story import story
from fabric_protocol.errors import Code, ProtocolError

if TYPE_CHECKING:
    from fabric.router.router import Router

Fields = Mapping[str, Any]
Row = dict[str, Any]

MEMBERS_MAX: Final = 1_000  # consumers described with one group


def info(router: "Router", fields: Fields, principal: Principal | None = None) -> Row:
    """The answer to INFO; without `what`, INFO describes the hub."""
    what = fields.get("what", "hub")
    question = QUESTIONS.get(what) if isinstance(what, str) else None
    if question is None:
        raise ProtocolError(Code.NOT_FOUND, f"INFO knows {', '.join(QUESTIONS)}, not {what!r:.60}")
    if question is _schedules and principal is not None:
        return router.schedules.describe(fields, principal)
    return question(router, fields)


def _hub(router: "Router", fields: Fields) -> Row:
    return {
        "first_seq": router.shared.first_seq,
        "last_seq": router.shared.committed_seq,
        "groups": len(router.groups),
        "sessions": len(router.session_table.sessions),
        "dead_letters": sum(letters.size for letters in router.dead_letters.by_group.values()),
        "ids": router.ids.count,
        "pending_bytes": router.publishing.pending_bytes,
        "refusing": router.publishing.refusal.text if router.publishing.refusal else "",
        "health": router.health.word.name,
        **router.place,
    }


def _health(router: "Router", fields: Fields) -> Row:
    return router.health.describe()


def _counters(router: "Router", fields: Fields) -> Row:
    return dict(router.counters)


def _settings(router: "Router", fields: Fields) -> Row:
    return dict(router.settings.values)


def _groups(router: "Router", fields: Fields) -> Row:
    after = _after(fields, str, "")
    names = sorted(name for name in router.groups if name > after)
    return page("groups", fields, names, lambda name: _described(router, router.groups[name]))


def _group(router: "Router", fields: Fields) -> Row:
    group = find(router, fields, "name" if "name" in fields else "group")
    letters = router.dead_letters.by_group.get(group.name)
    members = [
        {"client": sub.session.client, "session": sub.session.number, "chan": sub.chan, "outstanding": sub.outstanding}
        for sub in group.members[:MEMBERS_MAX]
    ]
    return {
        **_described(router, group),
        "settings": as_map(group.settings),
        "consumers": members,
        "dead_letters": letters.count(router.shared.committed_seq) if letters else 0,
    }


def _described(router: "Router", group: Group) -> Row:
    letters = router.dead_letters.by_group.get(group.name)
    return {**describe(group), "dead": letters.count(router.shared.committed_seq) if letters else 0}


def _sessions(router: "Router", fields: Fields) -> Row:
    after = _after(fields, int, 0)
    found = {s.number: s for s in router.session_table.sessions.values() if s.number > after}
    return page("sessions", fields, sorted(found), lambda number: {"session": number, **found[number].describe()})


def _services(router: "Router", fields: Fields) -> Row:
    """The services that answer requests."""
    after = _after(fields, str, "")
    found = {service.name: service for service in router.requests.services if service.name > after}
    answer = page("services", fields, sorted(found), lambda name: found[name].describe())
    return {**answer, "open": len(router.requests)}


def _dead_letters(router: "Router", fields: Fields) -> Row:
    """The dead letters of one group, or the number of dead letters of each group."""
    horizon = router.shared.committed_seq
    for name in ("group", "name"):
        if fields.get(name) is not None:
            return _described_letters(letters_of(router, fields, name), horizon)
    after = _after(fields, str, "")
    by_group = {
        name: letters for name, letters in router.dead_letters.by_group.items() if letters.size and name > after
    }
    return page("groups", fields, sorted(by_group), lambda name: _described_letters(by_group[name], horizon))


def _described_letters(letters: DeadLetterSet, horizon: int) -> Row:
    first = next((first for first, _ in letters.runs(0, horizon)), 0)
    return {"group": letters.group, "count": letters.count(horizon), "first_seq": first}


def _topics(router: "Router", fields: Fields) -> Row:
    return router.topics.info(fields)


def _pulse(router: "Router", fields: Fields) -> Row:
    return router.pulse.answer(fields)


def _schedules(router: "Router", fields: Fields) -> Row:
    return router.schedules.describe(fields, router.principals.local)


QUESTIONS: Final[dict[str, Callable[["Router", Fields], Row]]] = {
    "hub": _hub,
    "health": _health,
    "pulse": _pulse,
    "counters": _counters,
    "settings": _settings,
    "groups": _groups,
    "group": _group,
    "topics": _topics,
    "topic": _topics,
    "sessions": _sessions,
    "services": _services,
    "schedules": _schedules,
    "dlq": _dead_letters,
    "story": story,
    "find": find_messages,
    "copies": copies,
}


def _after(fields: Fields, kind: type, default: Any) -> Any:
    value = fields.get("after")
    if value is not None and (type(value) is not kind or (kind is int and not is_number(value))):
        raise ProtocolError(Code.BAD_OPTION, f"after is `next` of the page before, not {value!r:.60}")
    return default if value is None else value
