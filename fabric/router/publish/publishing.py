"""Publishing: checks of publishes, seqs, and the joining of small blocks into journal blocks.

A publish gets its seqs when it arrives; blocks are sealed when the hub can begin another commit. Small blocks of one
turn are joined into one journal block, so single messages are stored and scanned like batches.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fabric.records import Append, DropProducer, Record, Restored, SaveOrigin
from fabric.router.block_store import OpenBlock
from fabric.router.dead_letters.index import DeadLetters
from fabric.router.part import Part
from fabric.router.patterns.trie import CACHE_MAX
from fabric.router.publish.dedupe.index import Ids
from fabric.router.publish.origins import origin_of, parts_with_origins
from fabric.router.publish.producers import POSITIONS, SCHEDULED, Producer
from fabric.router.publish.sources import restored_producer
from fabric.router.sessions.session import Session
from fabric.router.shared import Shared
from fabric.router.turn import Turn
from fabric_protocol.block import COUNT_MAX, IDS, SPARSE, Block
from fabric_protocol.block_parts import join
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.messages import Confirm, Level, Publish, PubOk
from fabric_protocol.names import check_topic, unaliased

if TYPE_CHECKING:
    from fabric.router.topics.table import TopicTable

# Blocks below the first size are joined up to the second: LMDB is fastest with rows of 16-256 KB.
SMALL_BLOCK_BYTES: Final = 16 << 10
JOINED_BYTES_MAX: Final = 256 << 10
# Publishes of all sessions that are not yet on disk. Above it a publish is refused with BUSY, and the client resends.
PENDING_BYTES_MAX: Final = 48 << 20
# Unconfirmed bytes of one session; less when many sessions publish.
WINDOW_BYTES: Final = 8 << 20
WINDOW_BYTES_MIN: Final = 256 << 10
RETRY_MS: Final = 50
# Duplicates named in one PUBOK, unless a single publish has more; with 13 bytes each they fit the meta of a frame.
REPEATS_MAX: Final = COUNT_MAX
LOOKUPS_MAX: Final = 4_096  # ids or topics of one block: the lookups must not delay a turn


class Refusal(NamedTuple):
    """Why publishes are refused now."""

    code: Code
    text: str
    retry_ms: int


class _Taken(NamedTuple):
    """Publishes that one turn has accepted, until they are on disk."""

    sessions: list[tuple[Session, int, int]]  # (session, blocks, bytes)
    size: int  # bytes of all blocks, as they were published


class Publishing(Part):
    def __init__(
        self,
        shared: Shared,
        topics: "TopicTable",
        dead_letters: DeadLetters,
        ids: Ids,
        restored: Restored,
        place: Mapping[str, Any],  # of INFO: which journal this is
    ) -> None:
        self._own_journal = bytes.fromhex(place.get("journal", ""))
        self._ids = ids
        self._topics = topics
        self._shared = shared
        self._dead_letters = dead_letters
        self.producers = {p.name: restored_producer(p) for p in restored.producers}
        self.refusal: Refusal | None = None
        self.pending_bytes = 0  # accepted and not yet committed
        self.topics_taken = 0  # topics of all blocks so far: each is indexed and looked up later
        self.has_received = False  # a publish of level `received` waits for the seal
        self._last_ts_us = restored.last_ts_us
        self._block_store = shared.block_store
        self._confirms: dict[tuple[Session, int], list[Confirm]] = {}
        self._taken: dict[Session, tuple[int, int]] = {}
        self._dirty: dict[Producer, None] = {}
        self._dropped: list[DropProducer] = []
        self._rows: list[Record] = []  # of the turn that `seal` has closed
        self._committing: deque[_Taken] = deque()  # for each sealed turn
        self.confirmed: tuple[Any, ...] = ()  # the latest row of a confirmation, for the answer to TXN
        self._held = 0  # bytes of schedules that wait for the commit
        self._known_topics: set[str] = set()

    def __bool__(self) -> bool:
        waits = self._block_store.open_blocks or self._confirms or self._held or self._dirty or self._dropped
        return bool(waits or self._ids.is_due)

    def accept(
        self,
        session: Session,
        publish: Publish,
        window: tuple[int, int],
        turn: Turn,
        examined: tuple[Block, int | None] | None = None,
    ) -> Block | None:
        """Accept a publish and give seqs to its messages; None when it is a duplicate. Raises when it is refused."""
        block, first = examined or self.examine(session, publish, window)
        if first is not None:
            if first >= SCHEDULED:
                raise ProtocolError(
                    Code.BAD_OPTION,
                    f"pseq {publish.pseq} was accepted as a delayed publish; resend it with the same options",
                )
            repeats = self._ids.resent(block, first) if block.flags & IDS else ()
            self._confirm(session, publish, _row(publish.rid, first, 0, block.count, repeats))
            return None
        if block.flags & IDS:
            return self._accept_new(session, publish, block, turn)
        if self._topics.tracked:
            self._topics.require_room(block, turn)
        next_seq = self._shared.next_seq
        self.take(session, publish, block, next_seq)
        self._confirm(session, publish, (publish.rid, next_seq, block.count, 0))
        self.has_received |= publish.level == Level.RECEIVED
        self.append(block, turn)
        return block

    def _accept_new(self, session: Session, publish: Publish, block: Block, turn: Turn) -> Block | None:
        """Accept the messages of a block that have no known idempotency key."""
        checked = self._ids.check(block)
        left, first = checked.block, self._shared.next_seq
        if left is not None:
            self._topics.require_room(left, turn)
        self._shared.change.begin()
        self._ids.remember(checked, first)
        repeats = checked.rows(first)
        if left is None:
            first = repeats[0][1]
        stored = left.count if left is not None else 0
        self.take(session, publish, block, first)
        self._confirm(session, publish, _row(publish.rid, first, stored, len(repeats), repeats))
        self.has_received |= publish.level == Level.RECEIVED
        if left is not None:
            for part in [left] if block.origin is None or left is block else parts_with_origins(block, repeats):
                self.append(part, turn)
        return left

    def examine(self, session: Session, publish: Publish, window: tuple[int, int]) -> tuple[Block, int | None]:
        """Check a publish. Returns the block, and the first seq of a duplicate by pseq; None when it is new."""
        if self.refusal is not None:
            raise ProtocolError(self.refusal.code, self.refusal.text, retry_ms=self.refusal.retry_ms)
        size = len(publish.block)
        # Twice the bytes of the window, because a FLOW may be on its way.
        if session.inflight_blocks >= window[0] or session.inflight_bytes >= 2 * window[1]:
            raise ProtocolError(
                Code.OVERRUN,
                f"more unconfirmed publishes than the window allows ({window[0]} blocks): wait for a PUBOK",
                retry_ms=RETRY_MS,
            )
        if self.pending_bytes + size > PENDING_BYTES_MAX:
            raise ProtocolError(Code.BUSY, "the disk is behind; publish again later", retry_ms=RETRY_MS)
        if session.fenced:
            assert session.producer is not None
            raise ProtocolError(
                Code.FENCED,
                f"producer {session.producer.label!r} was claimed by a newer session; this session cannot publish any "
                "more",
            )
        block = Block(publish.block)
        if block.count > LOOKUPS_MAX:
            _require_few_lookups(block)
        block.verify()
        if block.flags & SPARSE:
            raise ProtocolError(Code.BAD_BLOCK, "a published block has consecutive seqs: clear the flag SPARSE")
        if not self._known_topics.issuperset(block.topics):
            self._learn(block.topics)
        principal = session.principal
        principal.require_publish(block.topics)
        if publish.options:
            block.origin = origin_of(publish.options, block.count, self._own_journal)
            if block.origin is not None:
                principal.require_admin("links", "publish messages under an origin")
        if not publish.pseq:
            if publish.options:
                _require_pseq(publish.options)
            first = None
        elif session.producer is None:
            raise ProtocolError(
                Code.BAD_OPTION, f"pseq {publish.pseq}: a publish with a pseq needs a producer in HELLO"
            )
        else:
            first = session.producer.duplicate_of(publish.pseq, block.count, block.body_crc, publish.options)
        # Last: blocks that the client must send again because one before them was refused, cost nothing.
        if principal.usage.is_limited:
            principal.usage.publish(block.count, size, self._shared.clock.now)
        return block, first

    def take(self, session: Session, publish: Publish, block: Block, place: int) -> None:
        """Note that a checked publish is stored at a place: its first seq, or SCHEDULED + the id of its schedule."""
        self._shared.change.begin()
        if publish.pseq:
            assert session.producer is not None
            session.producer.stored(publish.pseq, block.count, block.body_crc, place, publish.options)
            self._dirty[session.producer] = None
        size = len(publish.block)
        session.inflight_blocks += 1
        session.inflight_bytes += size
        session.principal.usage.inflight_bytes += size
        session.messages_in += block.count
        session.bytes_in += size
        blocks, taken = self._taken.get(session, (0, 0))
        self._taken[session] = (blocks + 1, taken + size)

    def save(self, producer: Producer) -> None:
        """Write the producer's row with this turn."""
        self._dirty[producer] = None

    def drop(self, producer: Producer) -> None:
        """Forget a producer, and remove its row with this turn. A later claim of the name makes another producer."""
        del self.producers[producer.name]
        self._dirty.pop(producer, None)
        self._dropped.append(DropProducer(producer.name))

    def hold(self, size: int) -> None:
        """Count bytes of a schedule that wait for the commit of this turn."""
        self._held += size
        self.pending_bytes += size

    def _confirm(self, session: Session, publish: Publish, row: Confirm) -> None:
        self._shared.change.begin()
        self.confirmed = row
        if publish.rid:
            self._confirms.setdefault((session, publish.level), []).append(row)

    def append(self, block: Block, turn: Turn) -> None:
        """Append a block that has passed the checks, or that the hub has made."""
        shared, topics = self._shared, self._topics
        if block.topics[0][0] == "$":  # a topic of the hub
            self._dead_letters.appended(block, shared.next_seq, turn)
        if topics.tracked:
            topics.take(block, shared.next_seq)
        self._block_store.open_blocks.append(OpenBlock(block, shared.next_seq))
        shared.next_seq += block.count
        self.pending_bytes += len(block.raw)
        self.topics_taken += block.n_topics

    def _learn(self, topics: tuple[str, ...]) -> None:
        for topic in topics:
            check_topic(topic)
            if unaliased(topic).startswith("$"):  # also x.DLQ, which is an alias of a topic of dead letters
                raise ProtocolError(
                    Code.FORBIDDEN,
                    f"topic {topic!r} belongs to the hub: publish to a topic that does not begin with $ or end with "
                    ".DLQ",
                )
        if len(self._known_topics) >= CACHE_MAX:
            self._known_topics.clear()
        self._known_topics.update(topics)

    def seal(self, wall_us: int, turn: Turn) -> list[Block]:
        """Close the turn; returns its blocks, stamped and in order. PUBOKs of level `received` leave at once; other
        PUBOKs are the last answers of the turn."""
        ts_us = self._last_ts_us = max(self._last_ts_us, wall_us)
        entries = self._block_store.open_blocks
        blocks = [_sealed(run, ts_us) for run in _joinable(entries)]
        self._rows = [Append(block.raw) for block in blocks]
        self._rows += [SaveOrigin(block.base_seq, block.origin) for block in blocks if block.origin is not None]
        self._rows += self._dropped  # before the rows of producers: a dropped name may have been claimed since
        self._rows += [producer.record(ts_us) for producer in self._dirty]
        for (session, level), rows in self._confirms.items():
            say = turn.send if level == Level.RECEIVED else turn.answer
            for part in _parts(rows):
                say(session.peer, PubOk(level, part))
        taken = [(session, *counts) for session, counts in self._taken.items()]
        size = sum(len(entry.block.raw) for entry in entries) + self._held
        self._committing.append(_Taken(taken, size))
        self._held = 0
        self._block_store.open_blocks = []
        self._confirms, self._taken, self._dirty, self._dropped = {}, {}, {}, []
        self.has_received = False
        return blocks

    def rows(self) -> list[Record]:
        """Blocks and producers of the turn that `seal` has closed."""
        rows, self._rows = self._rows, []
        return rows

    def committed(self) -> None:
        """The oldest sealed turn is on disk."""
        taken = self._committing.popleft()
        self.pending_bytes -= taken.size
        for session, blocks, size in taken.sessions:
            session.inflight_blocks -= blocks
            session.inflight_bytes -= size
            session.principal.usage.inflight_bytes -= size


def _row(rid: int, first: int, stored: int, dups: int, repeats: tuple[tuple[int, int], ...]) -> Confirm:
    return (rid, first, stored, dups, repeats) if repeats else (rid, first, stored, dups)


def _parts(rows: list[Confirm]) -> Iterator[tuple[Confirm, ...]]:
    """The rows of each PUBOK: one PUBOK, unless the rows name very many duplicates."""
    start = named = 0
    for at, row in enumerate(rows):
        more = len(row[4]) if len(row) == 5 else 0
        if named + more > REPEATS_MAX and at > start:
            yield tuple(rows[start:at])
            start, named = at, 0
        named += more
    yield tuple(rows[start:])


def _joinable(entries: list[OpenBlock]) -> list[list[OpenBlock]]:
    """Runs of entries that become one journal block each. Topics of the hub are not joined with others, so that the
    first topic of a block tells whether its messages are dead letters. A block with an origin stays as it is."""
    runs: list[list[OpenBlock]] = []
    size = count = 0
    for entry in entries:
        block = entry.block
        if runs and len(block.raw) < SMALL_BLOCK_BYTES and size + len(block.raw) <= JOINED_BYTES_MAX:
            last = runs[-1][-1].block
            if (
                len(last.raw) < SMALL_BLOCK_BYTES
                and last.origin is block.origin is None
                and (last.priority, last.expires_us) == (block.priority, block.expires_us)
                and count + block.count <= COUNT_MAX
                and (last.topics == block.topics or "$" not in (last.topics[0][0], block.topics[0][0]))
            ):
                runs[-1].append(entry)
                size += len(block.raw)
                count += block.count
                continue
        runs.append([entry])
        size, count = len(block.raw), block.count
    return runs


def _sealed(run: list[OpenBlock], ts_us: int) -> Block:
    if len(run) == 1:
        return run[0].block.stamped(run[0].base_seq, ts_us)
    return Block(join([entry.block for entry in run])).stamped(run[0].base_seq, ts_us)


def _require_pseq(options: Mapping[str, Any]) -> None:
    for option in POSITIONS:
        if options.get(option) is not None:
            raise ProtocolError(Code.BAD_OPTION, f"option {option} needs a pseq: it is the position of a message")


def _require_few_lookups(block: Block) -> None:
    """Refuse a block with so many ids or topics that their lookup would delay other clients."""
    what = "messages with ids" if block.flags & IDS else "topics" if block.n_topics > LOOKUPS_MAX else ""
    if what:
        count = block.count if block.flags & IDS else block.n_topics
        raise ProtocolError(
            Code.TOO_LARGE,
            f"a block has at most {LOOKUPS_MAX} {what}, not {count}: publish the rest in another block",
        )
