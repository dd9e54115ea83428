"""What the observer writes down, one entry for each thing that happened: no ranges, no cursors, no heaps."""

from math import inf
from typing import Any, Final

from fabric.records import GroupSettings
from fabric.router.sessions.session import SILENT_BEATS
from fabric_protocol import messages as m
from fabric_protocol.block import Block
from fabric_protocol.messages import Level
from tests.router.plain_patterns import matches
from tests.simulation.blocks import TOPICS
from tests.simulation.numbering import Producer
from tests.simulation.pacing import Pace, pace_of

OWN_TOPICS: Final = ("$dlq.g0", "$dlq.g1", "$dlq.g2")  # those that a pattern may name
_SETTINGS: Final = GroupSettings._fields
_PATTERNS_AT: Final = _SETTINGS.index("patterns")
_LEVEL_AT: Final = _SETTINGS.index("level")
_LEVELS: Final = {level.name.lower(): level for level in Level}
_WANTED: Final[dict[tuple[tuple[str, ...], str], frozenset[str]]] = {}


def wanted_topics(patterns: tuple[str, ...], name: str = "") -> frozenset[str]:
    """Which of all topics that occur here a group wants; what is put back for it is its own, whatever it asked for."""
    found = _WANTED.get((patterns, name))
    if found is None:
        topics = {topic for topic in (*TOPICS, *OWN_TOPICS) if any(matches(pattern, topic) for pattern in patterns)}
        found = _WANTED[patterns, name] = frozenset(topics | {f"$redrive.{name}"} if name else topics)
    return found


def settings_of(fields: Any) -> GroupSettings:
    """The settings that a SUB asks for, all of them named."""
    values = [fields[name] for name in _SETTINGS]
    values[_PATTERNS_AT] = tuple(fields["patterns"])
    values[_LEVEL_AT] = _LEVELS[fields["level"]]
    return GroupSettings._make(values)


def fields_of(settings: GroupSettings) -> dict[str, Any]:
    fields = settings._asdict()
    return {**fields, "patterns": list(settings.patterns), "level": Level(settings.level).name.lower()}


def letters_in(raw: bytes) -> list[tuple[str, int]] | None:
    """(topic, original seq) of each message of a block of the hub's own; None when clients published it."""
    if b"$dlq." not in raw and b"$redrive." not in raw:
        return None
    block = Block(raw)
    return [
        (topic, int(headers["fabric-seq"])) for topic, headers in zip(block.topic_names(), block.headers(), strict=True)
    ]


class Published:
    """A publish that the hub took."""

    __slots__ = (
        *("expires_us", "first", "idents", "is_new", "known", "level", "producer", "pseq", "rid", "session", "stored"),
        *("turn", "twins"),
    )

    def __init__(self, session: "Session", rid: int, level: int, idents: tuple[int, ...], turn: int) -> None:
        self.session = session
        self.rid = rid
        self.level = level
        self.idents = idents
        self.turn = turn
        self.first = 0
        self.is_new = True
        self.known: dict[int, int] = {}  # places of messages whose ids were known, and the seqs they had
        self.twins: dict[int, int] = {}  # places of messages whose ids are in the same block before, and where
        self.expires_us = 0
        self.stored = len(idents)
        self.producer: Producer | None = None
        self.pseq = 0


class Scheduled:
    """A publish that waits for its time."""

    __slots__ = ("cancelled", "due_us", "every_ms", "id", "idents", "name", "number", "owner", "ttl_ms")

    def __init__(
        self, number: int, idents: tuple[int, ...], due_us: int, ttl_ms: int, every_ms: int, name: str, owner: str
    ) -> None:
        self.number = number  # of those that are due together, the first one fires first
        self.idents = idents
        self.due_us = due_us
        self.ttl_ms = ttl_ms
        self.every_ms = every_ms
        self.name = name
        self.owner = owner
        self.id = 0  # as the hub said
        self.cancelled = False  # in this turn, perhaps too late

    def set_due(self, due_us: int) -> None:
        self.due_us = due_us


class Read:
    """A GET, and what it has found so far."""

    __slots__ = ("found", "n", "start", "wanted")

    def __init__(self, fields: Any) -> None:
        self.start: int = fields["seq"]
        self.n: int = fields["n"]
        self.wanted = wanted_topics(tuple(fields["pattern"]))
        self.found: list[int] = []


class Session:
    __slots__ = (
        *(
            "answers",
            "blocked",
            "claimed_turn",
            "epoch",
            "grace_until",
            "hb_s",
            "last_seen",
            "peer",
            "principal",
            "producer",
            "resumed",
            "secret",
            "subs",
            "suspect",
        ),
        *("asked", "closed", "gets", "serving", "ttl_s", "unconfirmed"),
    )

    def __init__(self, peer: bytes, ttl_s: float, hb_s: float, principal: str) -> None:
        self.peer = peer
        self.principal = principal
        self.ttl_s = ttl_s
        self.hb_s = hb_s
        self.secret = b""
        self.resumed = False
        self.blocked = False
        self.suspect = False
        self.grace_until = 0.0  # 0: it is not away; always: it is silent, and its connection is not known to be closed
        self.last_seen = 0.0
        self.producer: Producer | None = None
        self.epoch: int | None = None
        self.claimed_turn = 0  # in which it claimed its producer
        self.subs: dict[int, Sub] = {}
        self.gets: dict[int, Read] = {}  # by rid
        self.asked: dict[int, Asked] = {}  # open requests, by rid
        self.closed: set[int] = set()  # rids of requests whose end was told
        self.serving: dict[int, Serving] = {}  # by channel
        self.unconfirmed: dict[int, list[Published]] = {}  # by rid
        self.answers: dict[
            int, list[tuple[int, dict[str, Any]]]
        ] = {}  # by rid: the turn to wait for, what must be in it

    def expect(self, rid: int, turn: int, fields: dict[str, Any]) -> None:
        """What the next OK with that rid must say, when the turn is on disk."""
        if rid:
            self.answers.setdefault(rid, []).append((turn, fields))

    def expected(self, rid: int) -> tuple[int, dict[str, Any]] | None:
        waiting = self.answers.get(rid)
        if not waiting:
            return None
        if len(waiting) == 1:
            del self.answers[rid]
        return waiting.pop(0)

    def is_reachable(self, now: float) -> bool:
        return not self.blocked and not self.suspect and now - self.last_seen <= SILENT_BEATS * self.hb_s + 1.0

    def is_surely_reachable(self, now: float) -> bool:
        return not (self.blocked or self.suspect or self.grace_until) and now - self.last_seen <= self.hb_s


class Service:
    """Responders that share the requests of some topics."""

    __slots__ = ("members", "name", "patterns", "waiting")

    def __init__(self, name: str, patterns: tuple[str, ...]) -> None:
        self.name = name
        self.patterns = patterns
        self.members: list[Serving] = []
        self.waiting: list[Asked] = []


class Serving:
    """A responder."""

    __slots__ = ("chan", "concurrency", "open", "service", "session")

    def __init__(self, session: Session, chan: int, service: Service, concurrency: int) -> None:
        self.session = session
        self.chan = chan
        self.service = service
        self.concurrency = concurrency
        self.open: dict[int, Asked] = {}  # by the hub's number


class Asked:
    """A request that was taken."""

    __slots__ = ("block", "code", "deadline", "number", "replies_left", "responder", "rid", "service", "session")

    def __init__(self, session: Session, message: m.Request, service: Service, deadline: float) -> None:
        self.session: Session | None = session  # None: its session is over
        self.rid = message.rid
        self.block = message.block
        self.service = service
        self.deadline = deadline
        self.replies_left: int = message.fields["replies_max"]
        self.responder: Serving | None = None  # None: it waits
        self.number = 0  # as the responder knows it
        self.code = 0  # of the error that ends it


class Held:
    """One DELIVER, on its way or at the consumer."""

    __slots__ = ("attempt", "deadline", "ends", "first", "seqs", "sub")

    def __init__(self, sub: "Sub", first: int, seqs: list[int], attempt: int, deadline: float, ends: float) -> None:
        self.sub = sub
        self.first = first
        self.seqs = seqs
        self.attempt = attempt
        self.deadline = deadline
        self.ends = ends  # it cannot be extended beyond

    def seq(self, ordinal: int) -> int:
        return self.seqs[ordinal - self.first]

    def ordinals(self) -> range:
        return range(self.first, self.first + len(self.seqs))


class Sub:
    """A subscription: what was sent on it, and what of that is open."""

    __slots__ = (
        *(
            "again",
            "alone",
            "batches",
            "bytes_max",
            "bytes_sent",
            "chan",
            "concurrency",
            "fetch",
            "group",
            "open",
            "ordinal_max",
        ),
        *("resumed_in", "seen", "sent", "session", "stuck", "told", "unsure"),
    )

    def __init__(self, session: Session, chan: int, group: "GroupBook", fields: Any) -> None:
        self.session = session
        self.chan = chan
        self.group = group
        self.ordinal_max, self.bytes_max = fields["credit"]
        self.concurrency: int = fields.get("concurrency", 1)
        self.batches: bool = fields.get("batches", False)
        self.unsure: int = fields.get("unsure", 0)
        self.sent = 0
        self.bytes_sent = 0
        self.seen = 0
        self.open: dict[int, Held] = {}  # by ordinal, ascending
        self.stuck: set[int] = set()  # ordinals that were begun and have lapsed; a handler may still be at them
        self.alone: Held | None = None  # a suspect, which must be the only one
        self.fetch: tuple[int, int, float] | None = None  # rid, sent before, deadline
        self.again: dict[int, Held] = {}  # what a resume must send again
        self.told: set[int] = set()  # gaps that were sent on it
        self.resumed_in = -1  # the turn of the latest resume, which sends gaps again

    def resume(self, seen: int) -> None:
        """The client is back, and has seen so much."""
        self.seen = seen
        self.again = {held.first: held for held in self.open.values() if held.first > seen}
        self.told = set()

    def sent_again(self, message: m.Deliver, seqs: list[int], first_seq: int) -> None:
        """A delivery is sent again, without the messages at its beginning that retention has removed."""
        first = next((first for first, held in self.again.items() if message.first_ordinal in held.ordinals()), None)
        assert first is not None, "what was seen or settled is not sent again"
        held = self.again.pop(first)
        removed = message.first_ordinal - first
        assert all(seq < first_seq for seq in held.seqs[:removed]), "what is stored is sent again"
        assert (held.seqs[removed:], held.attempt) == (seqs, message.attempt), "the same messages, the same ordinals"


class GroupBook:
    """What became of each message in one group."""

    def __init__(self, name: str, settings: GroupSettings, *, durable: bool) -> None:
        self.name = name
        self.durable = durable
        self.start = 1
        self.floor = 0
        self.last = 0  # an ephemeral one: the last seq that was sent
        self.paused = False
        self.moved_in = -1  # the turn of the latest seek
        self.refreshes = 0  # how many there were
        self.refresh: Any = None  # one that is not ready yet
        self.subs: list[Sub] = []
        self.settled: set[int] = set()
        self.far: set[int] = set()  # what waits for years
        self.optional: set[int] = set()  # what may be gone already when the group comes
        self.leased: dict[int, Held] = {}
        self.failures: dict[int, int] = {}
        self.attempts: dict[int, int] = {}  # of the latest delivery, in this life of the hub
        self.handed: set[int] = set()  # what was ever sent to a consumer, in any life of the hub
        self.ever: set[int] = set()  # the same, though it was given back
        self.unclean = False  # the hub has died since, and may have forgotten what it handed out
        self.due: dict[int, float] = {}
        self.told: set[int] = set()  # gaps that a consumer has heard of
        self.given_up: set[int] = set()  # what became a dead letter, or is told as a gap when it is removed
        self.untold: set[int] = set()  # what retention took while no consumer could hear of it
        self.gap_owed: dict[tuple[bytes, int], set[int]] = {}
        self.lined = 0  # up to here, messages were put in line
        self.lines: dict[bytes | int, list[int]] = {}  # what is not settled: by key, or by priority
        self.restored_to = 0  # up to here, priorities were forgotten by a crash
        self.streak = 0  # messages sent since one was sent although a higher priority waited
        self.starved = 0  # messages sent in a row while a lower priority waited
        self.pace: Pace | None = pace_of(settings, None, None)  # None: it has no rate
        self.idle_from = self.idle_to = inf  # when its wait for a consumer began, at the earliest and at the latest
        self.wait_turn = -1  # the turn in which that changed
        self.settings = settings
        self.use(settings)

    def use(self, settings: GroupSettings) -> None:
        self.pace = pace_of(settings, self.settings, self.pace)
        self.settings = settings
        self.wanted = wanted_topics(settings.patterns, self.name if self.durable else "")
        self.lease_s = settings.lease_ms / 1000
        self.received = settings.level == Level.RECEIVED
        self.leases = self.durable and settings.ack == "explicit"

    def change(self, settings: GroupSettings) -> None:
        self.use(settings)
        self.lined, self.lines = 0, {}

    def free(self, seq: int, held: Held) -> None:
        """A lease is over."""
        if self.leased.get(seq) is held:
            del self.leased[seq]

    def check_turn(self, seq: int, attempt: int, now: float) -> None:
        """Is it this message's turn to be delivered, under this number?"""
        assert attempt >= self.attempts.get(seq, 1), "D6: attempts do not go down"
        may_wait = self.unclean or self.settings.order == "key"  # behind its key, and that is not written down
        assert attempt == 1 or seq in self.ever or may_wait, f"D6: {seq} was never handed out before"
        self.ever.add(seq)
        assert attempt > 1 or seq not in self.handed, f"D6: {seq} comes as attempt 1, and it was handed out before"
        self.handed.add(seq)
        failures = self.failures.get(seq)
        if failures is not None:
            assert attempt > failures, f"D6: {seq} has failed {failures} times, and this is attempt {attempt}"
            assert self.due.pop(seq, 0.0) <= now, f"D8: {seq} is delivered before its time"
        self.attempts[seq] = attempt

    def wait_s(self, failures: int, delay_ms: Any) -> float:
        """How long a message waits at least after a failure."""
        if type(delay_ms) is int:
            return delay_ms / 1000
        kind, base = self.settings.backoff, self.settings.backoff_ms
        wait = base * (failures if kind == "linear" else 2 ** (failures - 1) if kind == "exponential" else 1)
        wait = min(wait, self.settings.backoff_max_ms)
        return (wait - wait * self.settings.jitter_pct // 100) / 1000

    def begin(self, start: int) -> None:
        self.start = start
        self.floor = self.last = start - 1

    def set_floor(self, floor: int) -> None:
        self.floor = floor

    def set_failures(self, seq: int, failures: int, due: float) -> None:
        self.due[seq] = due
        if failures:
            self.failures[seq] = failures
        else:
            self.failures.pop(seq, None)

    def set_paused(self, paused: bool) -> None:
        self.paused = paused

    def restored(self) -> None:
        """After a crash: leases are void; what has failed keeps its count and its wait."""
        self.restored_to = max(self.lined, self.restored_to)
        self.subs, self.leased, self.attempts = [], {}, {}
        self.lined, self.lines, self.streak, self.starved = 0, {}, 0, 0
        self.due = {seq: due for seq, due in self.due.items() if seq in self.failures}

    def begin_wait(self, now: float, turn: int) -> None:
        """The group waits for a consumer from now on; inf: it does not wait."""
        self.idle_from, self.idle_to = -inf if self.idle_from == -inf else now, now
        self.wait_turn = turn

    def forget_pace(self) -> None:
        """The hub may have forgotten the deliveries since the latest row of the group."""
        self.pace = pace_of(self.settings, None, None)

    def snapshot(self) -> tuple[Any, ...]:
        """All that a seek throws away."""
        return self.start, self.floor, self.settled, self.failures, self.due

    def put_back(self, start: int, floor: int, settled: set[int], failures: dict[int, int], due: Any) -> None:
        self.start, self.floor, self.settled, self.failures, self.due = start, floor, settled, failures, due
        self.lined, self.lines = 0, {}

    def move(self, start: int) -> None:
        """Begin again elsewhere."""
        self.start, self.floor, self.last = start, start - 1, start - 1
        self.settled, self.failures, self.due, self.attempts = set(), {}, {}, {}
        self.handed, self.untold, self.told = set(), set(), set()
        for sub in self.subs:
            sub.told = set()
        self.lined, self.lines, self.streak, self.starved = 0, {}, 0, 0
