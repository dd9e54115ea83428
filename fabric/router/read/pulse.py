"""Pulse: the totals of the hub, and the rows of groups, sessions and topics that have changed since an earlier pulse.

Each change of a row gives the row a new version, higher than all others. `since` is the version of an earlier pulse,
and the answer has the rows above it. Versions of each run of the hub begin at a random number, so that a version of an
earlier run is none of this run. The time of the start would not do: clocks are set back.

Parts of the router mark changed groups in `shared.changed` at operations on blocks. Sessions, topics and dead letters
are compared with what the last pulse has seen, some of them in each pulse. So a hub without viewers does nothing for
them.
"""

from collections.abc import Callable, Hashable, Mapping
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from fabric.router.dead_letters.index import DeadLetterSet
from fabric.router.fields import bounded
from fabric.router.groups.description import counts
from fabric.router.groups.group import Group
from fabric.router.paging import PAGE_CHARS_MAX
from fabric.router.sessions.session import Session
from fabric.router.topics.topic import Topic
from fabric_protocol.bounds import INFO_N, PULSE_SINCE

if TYPE_CHECKING:
    from fabric.router.router import Router

GROUPS: Final = "groups"
SESSIONS: Final = "sessions"
TOPICS: Final = "topics"
KINDS: Final = (GROUPS, SESSIONS, TOPICS)
COUNTERS: Final = (
    "messages_in", "deliveries", "acked", "retried", "released", "rejected", "lapsed", "expired",
    "commits", "commit_us",
)  # fmt: skip
COMPARED_MAX: Final = 1_000  # of sessions, topics and sets of dead letters each, in one pulse: about a millisecond
ENDED_MAX: Final = 10_000  # rows that have ended and are remembered, about 2 MB
IDLE_S: Final = 60.0  # without a question for this time, no change is remembered any more

Fields = Mapping[str, Any]
Row = dict[str, Any]
Place = tuple[str, Any]  # the kind of a row, and its name or number


Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


class Seen(Generic[Key, Item]):
    """What was seen of some items, to find those that have changed. A sight begins with the name of the row."""

    def __init__(self, sight_of: Callable[[Item], tuple[Any, ...]]) -> None:
        self._sight_of = sight_of
        self._sights: dict[Key, tuple[Any, ...]] = {}
        self._next = 0  # the place of the first item of the next comparison

    def compare(self, items: Mapping[Key, Item]) -> tuple[list[tuple[Any, Item]], list[Any]]:
        """Names and items of rows that have changed, and names of rows that have ended."""
        sights = self._sights
        ended = [sights.pop(key)[0] for key in [key for key in sights if key not in items]]
        start = self._next if self._next < len(items) else 0
        self._next = start + COMPARED_MAX
        changed = []
        for key, item in islice(items.items(), start, self._next):
            sight = self._sight_of(item)
            if sights.get(key) != sight:
                sights[key] = sight
                changed.append((sight[0], item))
        return changed, ended

    def clear(self) -> None:
        self._sights.clear()


class Pulse:
    def __init__(self, router: "Router", token: Callable[[], bytes]) -> None:
        self._router = router
        self._shared = shared = router.shared
        self._token = token
        self._version = self._start = 0  # the first pulse sets them
        self._versions: dict[Place, int] = {}  # in ascending order of the versions
        self._ended: set[Place] = set()  # of these, rows that have ended
        self._groups: set[str] = set()  # names of the groups among the places
        self._sessions: dict[int, Session] = {}  # the sessions among the places
        self._seen_sessions: Seen[bytes, Session] = Seen(_sight_of_session)
        self._seen_topics: Seen[str, Topic] = Seen(_sight_of_topic)
        self._seen_letters: Seen[str, DeadLetterSet] = Seen(
            lambda letters: (letters.group, letters.count(shared.committed_seq))
        )
        self._asked_at: float | None = None  # when a pulse was asked for; None: too long ago, and nothing is remembered

    def sweep(self, now: float) -> None:
        """Give versions to changed groups, before other parts of the router forget that these have changed."""
        if self._asked_at is None:
            return
        if now - self._asked_at <= IDLE_S:
            self._note_groups()
        else:
            self._clear()

    def _clear(self) -> None:
        """Forget all changes: each viewer begins anew."""
        self._asked_at = None
        self._start = self._version = self._version + 1
        for remembered in (self._versions, self._ended, self._groups, self._sessions):
            remembered.clear()
        for seen in (self._seen_sessions, self._seen_topics, self._seen_letters):
            seen.clear()

    def answer(self, fields: Fields) -> Row:
        """The answer to INFO {what: "pulse", since?, n?}."""
        since, n = bounded(fields, "since", *PULSE_SINCE), bounded(fields, "n", *INFO_N)
        try:
            return self._answer(since, n)
        except Exception:  # a bug, after which changes may be noted in part
            self._clear()
            raise

    def _answer(self, since: int, n: int) -> Row:
        self._asked_at = self._shared.clock.now
        if not self._start:
            self._start = self._version = _random_start(self._token())
        self._note_all()
        is_reset = not self._start <= since <= self._version
        rows: dict[str, list[Row]] = {kind: [] for kind in KINDS}
        gone: dict[str, list[Any]] = {kind: [] for kind in KINDS}
        told, chars, version, more = 0, 0, self._version, False
        for place in self._above(0 if is_reset else since):
            kind, name = place
            if place in self._ended and is_reset:
                continue
            if told >= n or chars > PAGE_CHARS_MAX:
                more = True
                break
            told, version = told + 1, self._versions[place]
            if place in self._ended:
                gone[kind].append(name)
                chars += len(repr(name))
            else:
                rows[kind].append(self._row(kind, name))
                chars += len(repr(rows[kind][-1]))
        answer = {"totals": self._totals(), **rows, "gone": gone, "reset": is_reset}
        return {**answer, "more": more, "version": version if more else self._version}

    def _above(self, since: int) -> list[Place]:
        """Places with versions above a version, ascending."""
        places = []
        for place in reversed(self._versions):
            if self._versions[place] <= since:
                break
            places.append(place)
        places.reverse()
        return places

    # Changes.

    def _note_all(self) -> None:
        router = self._router
        self._note_groups()
        letters, without = self._seen_letters.compare(router.dead_letters.by_group)
        for name in (*(name for name, _ in letters), *without):
            if name in router.groups:
                self._mark((GROUPS, name))
        changed, ended = self._seen_sessions.compare(router.session_table.sessions)
        for number, session in changed:
            self._sessions[number] = session
            self._mark((SESSIONS, number))
        for number in ended:
            del self._sessions[number]
            self._end((SESSIONS, number))
        topics, deleted = self._seen_topics.compare(router.topics.with_settings())
        for name, _ in topics:
            self._mark((TOPICS, name))
        for name in deleted:
            self._end((TOPICS, name))

    def _note_groups(self) -> None:
        """Give versions to changed groups, in the order of their names: equal hubs answer alike."""
        groups = self._router.groups
        changed = self._router.dispatcher.recounts.take_changed()
        names = {group.name for group in changed if groups.get(group.name) is group}
        names |= groups.keys() - self._groups
        for name in sorted(names):
            self._mark((GROUPS, name))
        for name in sorted(self._groups - groups.keys()):
            self._end((GROUPS, name))
        self._groups = set(groups)

    def _mark(self, place: Place) -> None:
        """A row has changed."""
        self._version += 1
        self._versions.pop(place, None)
        self._versions[place] = self._version
        self._ended.discard(place)

    def _end(self, place: Place) -> None:
        """A row has ended."""
        self._mark(place)
        self._ended.add(place)
        if len(self._ended) > ENDED_MAX:
            self._forget()

    def _forget(self) -> None:
        """Forget half of the rows that have ended. Older rows that exist get new versions: a viewer that begins anew
        finds all rows above `_start`."""
        left = len(self._ended) // 2
        for place in list(self._versions):
            if len(self._ended) == left:
                break
            if place in self._ended:
                self._ended.discard(place)
                self._start = self._versions.pop(place)
            else:
                self._mark(place)

    # Rows.

    def _row(self, kind: str, name: Any) -> Row:
        router = self._router
        if kind == GROUPS:
            return self._group_row(router.groups[name])
        if kind == SESSIONS:
            return {"session": name, **self._sessions[name].describe()}
        return router.topics.describe(router.topics.find(name))

    def _group_row(self, group: Group) -> Row:
        """Fields of INFO groups that change by themselves, with the settings that explain them."""
        now, letters = self._shared.clock.now, self._router.dead_letters.by_group.get(group.name)
        numbers = counts(group, now)
        del numbers["oldest_age_ms"]  # it changes with time: a viewer computes it
        return {
            "group": group.name,
            "ack": group.settings.ack,
            "on_expire": group.settings.on_expire,
            "durable": group.durable,
            "paused": group.paused,
            "members": len(group.members),
            **numbers,
            "dead": letters.count(self._shared.committed_seq) if letters else 0,
            "drain_s": group.rate.drain_s(now, group.backlog.ready(group.position())),
            "counters": group.tally.as_map(),
        }

    def _totals(self) -> Row:
        router, shared = self._router, self._shared
        return {
            "now_us": shared.clock.wall_us(shared.clock.now),
            "first_seq": shared.first_seq,
            "last_seq": shared.committed_seq,
            **{name: router.counters[name] for name in COUNTERS},
            "groups": len(router.groups),
            "sessions": len(router.session_table.sessions),
            "dead_letters": sum(letters.size for letters in router.dead_letters.by_group.values()),
            "pending_bytes": router.publishing.pending_bytes,
            "refusing": router.publishing.refusal.text if router.publishing.refusal else "",
            "health": router.health.word.name,
        }


def _random_start(token: bytes) -> int:
    """The first version of a run. All versions are below 2^53, because JSON has no larger integers everywhere."""
    return 1 + int.from_bytes(blake2b(token, digest_size=6).digest(), "big")


def _sight_of_session(session: Session) -> tuple[Any, ...]:
    """What changes of a session; its bytes change with its messages."""
    held = 0
    for sub in session.channels.values():
        held += sub.outstanding
    return (
        session.number, session.messages_in, session.messages_out, held, len(session.channels),
        session.inflight_blocks, session.suspect, session.blocked, session.producer,
    )  # fmt: skip


def _sight_of_topic(topic: Topic) -> tuple[Any, ...]:
    counting = topic.counting is not None
    return topic.name, topic.msgs, topic.size, topic.floor, counting, topic.overflowed, topic.settings
