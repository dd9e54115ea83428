"""GET: reads committed messages without a group. Nothing is leased or remembered between two commands.

A command does a bounded amount of work and answers the seq at which to continue. A client that reads a long history
sends many commands, and other clients are served in between.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from fabric.router.dead_letters.index import DeadLetters
from fabric.router.fields import bounded
from fabric.router.patterns.view import View
from fabric.router.shared import Shared
from fabric_protocol.block import Block
from fabric_protocol.block_parts import pick
from fabric_protocol.bounds import GET_N, NUMBER_MAX
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.messages import Got
from fabric_protocol.names import DEAD, canonical, check_topic, unaliased
from fabric_protocol.runs import Runs, runs_of, split

# Work for one answer, at most: some milliseconds, since other clients wait meanwhile. The client asks for the rest.
BYTES_MAX: Final = 2 << 20  # of blocks in one answer; a larger message is alone in its answer
READ_BYTES_MAX: Final = 4 << 20  # read for one answer
FINDS_MAX: Final = 4  # searches through the index that find no block: each takes a millisecond, if topics are many
STEPS_BACK_MAX: Final = 8  # as FINDS_MAX, for searches backwards, which are shorter
BLOCKS_MAX: Final = 128  # found for one answer
TOPICS_MAX: Final = 4_096  # matched for one answer, and the rest of a block
MESSAGES_MAX: Final = 4_096  # checked one by one for one answer, and the rest of a block
TURN_BYTES_MAX: Final = 32 << 20  # of all answers in one turn
PATTERNS_MAX: Final = 64
VIEWS_MAX: Final = 256  # remembered
_FIELDS: Final = ("topic", "pattern", "seq", "time_us", "n", "last", "before", "by_key")


class _Order(NamedTuple):
    """What one GET asks for."""

    view: View
    start: int
    n: int
    by_key: bool
    before: int  # with `last`: messages below this seq


class Answer(NamedTuple):
    frames: list[Got]
    fields: dict[str, Any]


class _Page:
    """The messages of an answer, and how many more fit."""

    def __init__(self, rid: int, n: int) -> None:
        self.rid = rid
        self.n = n
        self.left = n
        self.bytes = 0
        self.frames: list[Got] = []
        self.gaps: list[list[Any]] = []

    @property
    def full(self) -> bool:
        return self.left <= 0 or self.bytes >= BYTES_MAX

    def take(self, block: Block, runs: Runs) -> int:
        """Add as many messages as fit; returns the seq at which to continue."""
        each = max(len(block.raw) // block.count, 1)
        fitting = max((BYTES_MAX - self.bytes) // each, 0 if self.frames else 1)
        taken, rest = split(runs, min(self.left, fitting))
        if taken:
            self.frames.append(got(self.rid, block, taken))
            self.bytes += len(self.frames[-1].block)
            self.left -= sum(b - a for a, b in taken)
        if rest:
            self.left = 0
        return block.base_seq + rest[0][0] if rest else block.last_seq + 1

    def answer(self, following: int, more: bool) -> Answer:
        fields: dict[str, Any] = {"count": sum(_size(frame) for frame in self.frames), "next": following, "more": more}
        if self.gaps:
            fields["gaps"] = self.gaps
        return Answer(self.frames, fields)


class Reading:
    def __init__(self, shared: Shared, letters: DeadLetters) -> None:
        self._shared = shared
        self._letters = letters
        self._views: dict[tuple[str, ...], View] = {}

    def get(self, rid: int, fields: Mapping[str, Any], wall_us: int) -> Answer:
        """Answer a GET."""
        first_seq, horizon = self._shared.first_seq, self._shared.committed_seq
        order = self._order(fields, first_seq)
        if fields.get("last"):
            answer = self._last(rid, order, first_seq, horizon, wall_us)
        elif self._shared.rounds.read_bytes >= TURN_BYTES_MAX:
            return Answer([], {"count": 0, "next": order.start, "more": order.start <= horizon})
        elif order.by_key:
            answer = self._by_key(rid, order, horizon, wall_us)
        else:
            answer = self._forward(rid, order, horizon, wall_us)
        self._shared.rounds.read_bytes += sum(len(frame.block) for frame in answer.frames)
        return answer

    # The fields of GET.

    def _order(self, fields: Mapping[str, Any], first_seq: int) -> _Order:
        unknown = sorted(set(fields) - set(_FIELDS))
        if unknown:
            raise ProtocolError(Code.BAD_OPTION, f"GET knows {', '.join(_FIELDS)}, not {', '.join(unknown)}")
        for name in ("last", "by_key"):
            if type(fields.get(name, False)) is not bool:
                raise ProtocolError(Code.BAD_OPTION, f"{name} is true or false, not {fields[name]!r}")
        if sum(bool(fields.get(name) is not None) for name in ("seq", "time_us")) + bool(fields.get("last")) > 1:
            raise ProtocolError(Code.BAD_OPTION, "seq, time_us and last exclude each other: give one of them")
        if fields.get("last") and fields.get("by_key"):
            raise ProtocolError(Code.BAD_OPTION, "last and by_key exclude each other: give one of them")
        if fields.get("before") is not None and not fields.get("last"):
            raise ProtocolError(Code.BAD_OPTION, "before needs last: true")
        before = bounded(fields, "before", 0, NUMBER_MAX, NUMBER_MAX)
        start = bounded(fields, "seq", 0, first_seq, NUMBER_MAX)
        if fields.get("time_us") is not None:
            start = self._shared.reader.seek_time(bounded(fields, "time_us", 0, 0, NUMBER_MAX))
        n = bounded(fields, "n", *GET_N)
        return _Order(self.view(fields), max(start, first_seq), n, bool(fields.get("by_key")), before)

    def view(self, fields: Mapping[str, Any]) -> View:
        """The topics that the fields `topic` or `pattern` name. The same fields get the same object, if it is
        remembered: the journal's index remembers answers by it."""
        topic, pattern = fields.get("topic"), fields.get("pattern")
        if topic is not None and pattern is not None:
            raise ProtocolError(Code.BAD_OPTION, "topic and pattern exclude each other: give one of them")
        asked: list[Any] = ["#"] if pattern is None else pattern if isinstance(pattern, list) else [pattern]
        if topic is not None:
            asked = [topic]
        if not 1 <= len(asked) <= PATTERNS_MAX or not all(isinstance(one, str) for one in asked):
            raise ProtocolError(
                Code.BAD_OPTION, f"topic is a text; pattern is a text or a list of 1..{PATTERNS_MAX} texts"
            )
        if isinstance(topic, str):
            check_topic(topic)
        patterns = tuple(sorted({canonical(unaliased(one)) for one in asked}))
        view = self._views.get(patterns)
        if view is None:
            if len(self._views) >= VIEWS_MAX:
                self._views.clear()
            view = self._views[patterns] = View(patterns)
        return view

    # The search.

    def _blocks(self, order: _Order, horizon: int, gaps: list[list[Any]]) -> Iterator[tuple[Block | None, int]]:
        """Blocks with wanted topics from the start on, each with the seq of its first message that counts. The last
        pair has
        no block, and the seq up to which this answer has searched."""
        cursor, read, messages = order.start, 0, 0
        looked_max = order.view.looked + TOPICS_MAX
        for _ in range(BLOCKS_MAX + FINDS_MAX):
            if cursor > horizon or read >= READ_BYTES_MAX or order.view.looked >= looked_max:
                break
            if messages >= MESSAGES_MAX:
                break
            found = self._shared.block_store.find(cursor, horizon, order.view)
            cursor = max(cursor, found.cursor)
            if found.block is None:
                if not found.more:
                    cursor = horizon + 1
                    break
                read += READ_BYTES_MAX // FINDS_MAX  # a long search counts as bytes read
                continue
            if not isinstance(found.block, Block):
                gaps.append([max(found.block.first_seq, cursor), found.block.last_seq, found.block.why])
                cursor = found.block.last_seq + 1
                continue
            if found.block.base_seq > horizon:
                cursor = horizon + 1
                break
            yield found.block, max(cursor, found.block.base_seq)
            read += len(found.block.raw)
            messages += found.block.count
            cursor = max(cursor, found.block.last_seq + 1)
        yield None, cursor

    def _forward(self, rid: int, order: _Order, horizon: int, wall_us: int) -> Answer:
        page = _Page(rid, order.n)
        following = order.start
        for block, start in self._blocks(order, horizon, page.gaps):
            following = start
            if block is None or page.full:
                break
            stop = _stop(block, start)
            runs = self._runs(block, start, stop, order.view, wall_us)
            following = min(page.take(block, runs) if runs else stop, stop)
            if page.full or stop <= block.last_seq:
                break
        return page.answer(following, more=following <= horizon)

    def _by_key(self, rid: int, order: _Order, horizon: int, wall_us: int) -> Answer:
        """The latest message of each key among the messages that this answer searches. A later answer overrides it."""
        latest: dict[tuple[str, bytes], int] = {}  # (topic, key) -> seq
        loose: list[int] = []  # seqs of messages without a key
        blocks: dict[int, Block] = {}
        page = _Page(rid, order.n)
        following = order.start
        for block, start in self._blocks(order, horizon, page.gaps):
            following = start
            if block is None:
                break
            blocks[block.base_seq] = block
            stop = _stop(block, start)
            runs = self._runs(block, start, stop, order.view, wall_us)
            following = min(self._note_keys(block, runs, latest, loose, order.n), stop)
            if following <= block.last_seq:
                break
        return self._newest(page, blocks, sorted([*latest.values(), *loose]), following, horizon)

    def _note_keys(
        self, block: Block, runs: Runs, latest: dict[tuple[str, bytes], int], loose: list[int], n: int
    ) -> int:
        if not runs:
            return block.last_seq + 1
        first = runs[0][0]
        part = Block(pick(block, [(first, runs[-1][1])]))  # only these keys are decoded, not those of the whole block
        topics, keys = part.topic_names(), part.keys()
        for a, b in runs:
            for at in range(a, b):
                key = keys[at - first]
                place = topics[at - first], key
                if len(latest) + len(loose) >= n and place not in latest:
                    return block.base_seq + at
                if key:
                    latest[place] = block.base_seq + at
                else:
                    loose.append(block.base_seq + at)
        return block.last_seq + 1

    def _newest(self, page: _Page, blocks: dict[int, Block], seqs: list[int], following: int, horizon: int) -> Answer:
        """The answer with the chosen messages, block by block. Messages that do not fit are found again by the next
        GET."""
        for base, block in blocks.items():
            places = [seq - base for seq in seqs if base <= seq <= block.last_seq]
            if not places:
                continue
            if page.full:
                following = min(following, base + places[0])
                break
            stop = page.take(block, runs_of(places))
            if stop <= base + places[-1]:
                following = min(following, stop)
                break
        return page.answer(following, more=following <= horizon)

    def _last(self, rid: int, order: _Order, first_seq: int, horizon: int, wall_us: int) -> Answer:
        """The last n messages that match, oldest first. A long search finds fewer; older messages are below `next`."""
        if self._shared.rounds.read_bytes >= TURN_BYTES_MAX:
            raise ProtocolError(
                Code.BUSY, "other clients have read as much as one turn allows; send the command again", retry_ms=5
            )
        found: list[tuple[Block, Runs]] = []
        wanted, before, read, messages = order.n, min(order.before, horizon + 1), 0, 0
        looked_max = order.view.looked + TOPICS_MAX
        for _ in range(BLOCKS_MAX + STEPS_BACK_MAX):
            if wanted <= 0 or before <= first_seq or read >= BYTES_MAX or order.view.looked >= looked_max:
                break
            if messages >= MESSAGES_MAX:
                break
            block, reached = self._shared.reader.previous_block(before, order.view)
            if block is not None:
                stop = min(before, horizon + 1, block.last_seq + 1)
                start = max(first_seq, block.base_seq, stop - MESSAGES_MAX)
                runs = self._runs(block, start, stop, order.view, wall_us)
                reached = max(reached, start)
                size = sum(b - a for a, b in runs)
                runs = split(runs, size - wanted)[1] if size > wanted else runs
                if runs:
                    found.append((block, runs))
                wanted -= min(size, wanted)
                read += len(block.raw)
                messages += block.count
            else:
                read += BYTES_MAX // STEPS_BACK_MAX  # a search without a result counts as bytes read
            before = reached
        page = _Page(rid, order.n)
        page.frames = [got(rid, block, runs) for block, runs in reversed(found)]
        if wanted <= 0:
            block, runs = found[-1]
            before = block.base_seq + runs[0][0]
        more = before > first_seq
        return page.answer(before if more else horizon + 1, more)

    # Which messages of a block.

    def _runs(self, block: Block, start: int, stop: int, view: Callable[[str], bool], wall_us: int) -> Runs:
        """Places in a block of messages start..stop - 1 that match and are not expired, removed or superseded."""
        if block.expires_us and block.expires_us <= wall_us:
            return []
        removed, superseded = self._shared.removed, self._shared.superseded
        wanted = [view(topic) for topic in block.topics]
        floors = [removed.get(topic, 0) for topic in block.topics]
        dead = [topic.startswith(DEAD) for topic in block.topics]
        first, last = max(start - block.base_seq, 0), min(stop - block.base_seq, block.count)
        if superseded is None and all(wanted) and not any(dead) and max(floors) <= block.base_seq:
            return [(first, last)]
        index, base = block.topic_idx(), block.base_seq
        places = [
            at
            for at in range(first, last)
            if wanted[index[at]]
            and floors[index[at]] <= base + at
            and (not dead[index[at]] or self._letters.holds(block.topics[index[at]], base + at))
            and not (superseded is not None and superseded(block, at))
        ]
        return runs_of(places)


def got(rid: int, block: Block, runs: Runs) -> Got:
    seqs = () if len(runs) == 1 else tuple(n for a, b in runs for n in (block.base_seq + a, b - a))
    return Got(rid, seqs, pick(block, runs), block.origin_of(runs[0][0]))


def _stop(block: Block, start: int) -> int:
    """The seq at which this answer stops in a block."""
    return min(block.last_seq + 1, start + MESSAGES_MAX)


def _size(frame: Got) -> int:
    return Block(frame.block).count
