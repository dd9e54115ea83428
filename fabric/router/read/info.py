"""INFO: what the hub has, in numbers. It only reads, and answers at once.

A list comes in pages, because an answer has one MiB at most: a page has up to `n` rows, and fewer when rows are long.
`more` says that there are more rows, and `next` is the `after` of the next page.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fabric.router.access.identity import LOCAL
from fabric.router.admin.dead_letters import letters_of
from fabric.router.admin.groups import as_map, find
from fabric.router.admin.keys import book_of
from fabric.router.dead_letters.index import DeadLetterSet
from fabric.router.fields import is_number
from fabric.router.groups.description import describe
from fabric.router.groups.group import Group
from fabric.router.paging import page
from fabric.router.read.message_search import copies
from fabric.router.read.message_search import find as find_messages
from fabric.router.read.story import story
from fabric.router.sessions.session import Session
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.names import dead_letter_group

if TYPE_CHECKING:
    from fabric.router.router import Router

Fields = Mapping[str, Any]
Row = dict[str, Any]

PRIVATE: Final = ("path", "binds", "advertise")  # of the hub: not for principals that may not read all
MEMBERS_MAX: Final = 1_000  # consumers described with one group


def info(router: "Router", session: Session, fields: Fields) -> Row:
    """The answer to INFO; without `what`, INFO describes the hub. It has what the principal of the session may see:
    a list has no trace of its other rows."""
    what = fields.get("what", "hub")
    question = QUESTIONS.get(what) if isinstance(what, str) else None
    if question is None:
        raise ProtocolError(Code.NOT_FOUND, f"INFO knows {', '.join(QUESTIONS)}, not {what!r:.60}")
    return question(router, session, fields)


def offline_info(router: "Router", fields: Fields) -> Row:
    """The answer to INFO about a journal that no hub uses: for the person that can read the files."""
    session = Session(b"", b"", "offline", 0.0, 0.0, 0.0)
    session.principal, session.connected_as = router.principals.local, LOCAL
    return info(router, session, fields)


def _hub(router: "Router", session: Session, fields: Fields) -> Row:
    if not _reads_all(session):
        public = {name: value for name, value in router.place.items() if name not in PRIVATE}
        seqs = {"first_seq": router.shared.first_seq, "last_seq": router.shared.committed_seq}
        return {**seqs, "health": router.health.word.name, **public}
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


def _reads_all(session: Session) -> bool:
    """Whether the principal may read numbers that are about all topics and groups together."""
    return session.principal.may_administer("info") or session.principal.may_administer("hub")


def _require_all(session: Session, what: str) -> None:
    if not _reads_all(session):
        session.principal.require_admin("info", f"read INFO {what}")


def _health(router: "Router", session: Session, fields: Fields) -> Row:
    return router.health.describe() if _reads_all(session) else {"health": router.health.word.name}


def _counters(router: "Router", session: Session, fields: Fields) -> Row:
    _require_all(session, "counters")
    return dict(router.counters)


def _settings(router: "Router", session: Session, fields: Fields) -> Row:
    _require_all(session, "settings")
    return dict(router.settings.values)


def _groups(router: "Router", session: Session, fields: Fields) -> Row:
    after, sees = _after(fields, str, ""), session.principal.sees_group
    names = sorted(name for name in router.groups if name > after and sees(name))
    return page("groups", fields, names, lambda name: _described(router, router.groups[name]))


def _group(router: "Router", session: Session, fields: Fields) -> Row:
    field = "name" if "name" in fields else "group"
    _require_group(session, fields.get(field))
    group = find(router, fields, field)
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


def _require_group(session: Session, name: Any) -> None:
    """Raise when the principal may not see a group, whether it exists or not."""
    if isinstance(name, str) and not session.principal.sees_group(name):
        session.principal.require_group(name, "see the group")


def _sessions(router: "Router", session: Session, fields: Fields) -> Row:
    """All sessions; for others than administrators, the sessions of their principal."""
    after, principal = _after(fields, int, 0), session.principal
    sees_all = principal.may_administer("sessions") or principal.may_administer("info")
    found = {
        s.number: s
        for s in router.session_table.sessions.values()
        if s.number > after and (sees_all or s.principal is principal)
    }
    return page("sessions", fields, sorted(found), lambda number: {"session": number, **found[number].describe()})


def _services(router: "Router", session: Session, fields: Fields) -> Row:
    """The services that answer requests."""
    after, sees = _after(fields, str, ""), session.principal.sees_service
    found = {one.name: one for one in router.requests.services if one.name > after and sees(one.patterns)}
    answer = page("services", fields, sorted(found), lambda name: found[name].describe())
    return {**answer, "open": len(router.requests)} if _reads_all(session) else answer


def _dead_letters(router: "Router", session: Session, fields: Fields) -> Row:
    """The dead letters of one group, or the number of dead letters of each group."""
    horizon, sees = router.shared.committed_seq, session.principal.sees_group
    for name in ("group", "name"):
        if isinstance(value := fields.get(name), str):
            _require_group(session, dead_letter_group(value))
        if value is not None:
            return _described_letters(letters_of(router, fields, name), horizon)
    after = _after(fields, str, "")
    by_group = {
        name: letters
        for name, letters in router.dead_letters.by_group.items()
        if letters.size and name > after and sees(name)
    }
    return page("groups", fields, sorted(by_group), lambda name: _described_letters(by_group[name], horizon))


def _described_letters(letters: DeadLetterSet, horizon: int) -> Row:
    first = next((first for first, _ in letters.runs(0, horizon)), 0)
    return {"group": letters.group, "count": letters.count(horizon), "first_seq": first}


def _topics(router: "Router", session: Session, fields: Fields) -> Row:
    return router.topics.info(fields, session.principal)


def _pulse(router: "Router", session: Session, fields: Fields) -> Row:
    _require_all(session, "pulse")
    return router.pulse.answer(fields)


def _schedules(router: "Router", session: Session, fields: Fields) -> Row:
    return router.schedules.describe(fields, session.principal)


def _keys(router: "Router", session: Session, fields: Fields) -> Row:
    """All invitations, and a page of the principals."""
    session.principal.require_admin("keys", "read INFO keys")
    listed, after = book_of(router).listed(), _after(fields, str, "")
    rows = {row["principal"]: row for row in listed["principals"] if row["principal"] > after}
    return {**listed, **page("principals", fields, sorted(rows), rows.__getitem__)}


def _me(router: "Router", session: Session, fields: Fields) -> Row:
    return {**session.principal.describe(), "key": session.connected_as.key}


QUESTIONS: Final[dict[str, Callable[["Router", Session, Fields], Row]]] = {
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
    "keys": _keys,
    "me": _me,
}


def _after(fields: Fields, kind: type, default: Any) -> Any:
    value = fields.get("after")
    if value is not None and (type(value) is not kind or (kind is int and not is_number(value))):
        raise ProtocolError(Code.BAD_OPTION, f"after is `next` of the page before, not {value!r:.60}")
    return default if value is None else value
