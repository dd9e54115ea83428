"""ADMIN of dead letters: list, redrive or discard them.

A choice by filter reads a bounded number of dead letters and answers how far it came (`next`, which is the `after_seq`
of the next command) and whether there are more. A choice by seqs is done as a whole or refused as a whole.
"""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fabric.router.admin.groups import find
from fabric.router.block_store import BlockStore
from fabric.router.dead_letters import blocks
from fabric.router.dead_letters.index import DeadLetterSet
from fabric.router.fields import bounded, is_number
from fabric.router.patterns.view import View
from fabric.router.publish.publishing import PENDING_BYTES_MAX, RETRY_MS
from fabric.router.turn import Turn
from fabric_protocol.block import Block
from fabric_protocol.bounds import LETTERS_N, NUMBER_MAX
from fabric_protocol.errors import BlockError, Code, ProtocolError
from fabric_protocol.names import canonical, dead_letter_group, unaliased
from fabric_protocol.runs import runs_of

if TYPE_CHECKING:
    from fabric.router.router import Router

Fields = Mapping[str, Any]

# Work of one command, at most, so that other clients are served in between.
LETTERS_MAX: Final = LETTERS_N[2]  # listed or redriven, and named by seqs
LOOKED_MAX: Final = 10_000
READ_BYTES_MAX: Final = 16 << 20
REDRIVE_BYTES_MAX: Final = 4 << 20
RUNS_MAX: Final = 16_384  # discarded without reading the dead letters
ROWS_CHARS_MAX: Final = 200_000  # of a list: at most four times as many bytes, and an answer has one MiB at most


class Letter(NamedTuple):
    seq: int
    block: Block
    place: int
    headers: blocks.Notes

    @property
    def why_not(self) -> str:
        """Why a filter does not redrive this dead letter; empty when it does."""
        if blocks.OMITTED in self.headers:
            return "its body was too large for a dead letter"
        hops = blocks.number(self.headers, blocks.HOPS)
        return f"it was dead {blocks.HOPS_MAX} times" if hops >= blocks.HOPS_MAX else ""


class Choice(NamedTuple):
    """Which dead letters a command means: seqs, or dead letters after a seq that pass a filter."""

    seqs: list[int] | None
    filter: "Filter | None"
    most: int
    after: int


class Filter(NamedTuple):
    reason: str | None
    topics: View | None
    before_us: int | None

    def passes(self, letter: Letter) -> bool:
        if self.reason is not None and letter.headers.get(blocks.REASON) != self.reason:
            return False
        if self.topics is not None and not self.topics(str(letter.headers.get(blocks.TOPIC, ""))):
            return False
        return self.before_us is None or letter.block.ts_us < self.before_us


class _Look:
    """Reads dead letters in ascending order. A block is read and decoded once."""

    def __init__(self, block_store: BlockStore) -> None:
        self._block_store = block_store
        self._block: Block | None = None
        self._headers: list[blocks.Notes] = []
        self.read = 0  # bytes of blocks

    def at(self, seq: int) -> Letter | None:
        """The dead letter; None when it cannot be read."""
        block = self._block
        if block is None or not block.base_seq <= seq <= block.last_seq:
            found = self._block_store.at(seq)
            if not isinstance(found, Block):
                return None
            block = self._block = found
            self._headers = block.headers()
            self.read += len(block.raw)
        return Letter(seq, block, seq - block.base_seq, self._headers[seq - block.base_seq])


class _Walk:
    """Reads the dead letters of a group, oldest first, as many as one command may read."""

    def __init__(self, router: "Router", letters: DeadLetterSet, after: int) -> None:
        self._look = _Look(router.shared.block_store)
        self._runs = letters.runs(after, router.shared.committed_seq)
        self.reached = after  # the last seq that was read
        self.more = False
        self.unreadable = 0

    def __iter__(self) -> Iterator[Letter]:
        look, looked = self._look, 0
        for first, last in self._runs:
            for seq in range(first, last + 1):
                if looked >= LOOKED_MAX or look.read >= READ_BYTES_MAX:
                    self.more = True
                    return
                looked += 1
                letter = look.at(seq)
                if letter is None:
                    self.unreadable += 1
                else:
                    yield letter
                self.reached = seq


def letters_of(router: "Router", fields: Fields, name: str = "group") -> DeadLetterSet:
    """The dead letters of a group, by its name, by `<group>.DLQ` or by `$dlq.<group>`; empty when it has none."""
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise ProtocolError(Code.BAD_OPTION, f"{name} is missing: the name of a group")
    group = dead_letter_group(value)
    letters = router.dead_letters.by_group.get(group)
    if letters is None:
        if group not in router.groups:
            raise ProtocolError(
                Code.NOT_FOUND, f"there is no group {group!r}, and there are no dead letters of a group of this name"
            )
        return DeadLetterSet(group)
    return letters


# The operations.


def listed(router: "Router", fields: Fields, now: float, turn: Turn) -> dict[str, Any]:
    letters = letters_of(router, fields)
    after = bounded(fields, "after_seq", 0, 0, NUMBER_MAX)
    n = bounded(fields, "n", *LETTERS_N)
    rows: list[dict[str, Any]] = []
    walk, chars, more = _Walk(router, letters, after), 0, False
    following = after
    for letter in walk:
        row = _row(letter)
        chars += len(repr(row))
        if len(rows) >= n or (rows and chars > ROWS_CHARS_MAX):
            more = True
            break
        rows.append(row)
        following = letter.seq
    return {
        "group": letters.group,
        "letters": rows,
        "next": following if more else max(walk.reached, following),
        "more": more or walk.more,
        "count": letters.count(router.shared.committed_seq),
    }


def redrive(router: "Router", fields: Fields, now: float, turn: Turn) -> dict[str, Any]:
    """Redrive dead letters: publish them for their group, as messages with new seqs and without failures."""
    letters = letters_of(router, fields)
    find(router, {"group": letters.group})
    choice = _choice(fields)
    _require_room(router)
    chosen, skipped, reached, more = _chosen(router, letters, choice)
    router.shared.change.begin()
    done, size = 0, 0
    for part in _by_block(chosen):
        if size >= REDRIVE_BYTES_MAX:
            reached, more = part[0].seq - 1, True
            break
        for raw, seqs in _redriven(letters.group, part):
            if raw is None:
                skipped += 1
                continue
            router.publishing.append(Block(raw), turn)
            size += len(raw)
            done += len(seqs)
            for first, stop in runs_of(seqs):
                router.dead_letters.remove(letters, first, stop - 1)
    router.counters["redriven"] += done
    return {"group": letters.group, "redriven": done, "skipped": skipped, "more": more, "next": reached}


def discard(router: "Router", fields: Fields, now: float, turn: Turn) -> dict[str, Any]:
    """Discard dead letters. Their messages stay in the journal until retention removes them."""
    letters, choice = letters_of(router, fields), _choice(fields)
    gone: list[tuple[int, int]] = []
    reached, more, skipped = choice.after, False, 0
    if choice.seqs is not None:
        _require_present(router, letters, choice.seqs)
        gone, reached = [(first, stop - 1) for first, stop in runs_of(choice.seqs)], choice.seqs[-1]
    elif choice.filter is not None:
        chosen, skipped, reached, more = _chosen(router, letters, choice, guarded=False)
        gone = [(first, stop - 1) for first, stop in runs_of([letter.seq for letter in chosen])]
    else:
        gone, reached, more = _oldest(router, letters, choice)
    router.shared.change.begin()
    for first, last in gone:
        router.dead_letters.remove(letters, first, last)
    done = sum(last - first + 1 for first, last in gone)
    router.counters["discarded"] += done
    return {"group": letters.group, "discarded": done, "skipped": skipped, "more": more, "next": reached}


# The choice of dead letters.


def _choice(fields: Fields) -> Choice:
    ways = [name for name in ("seqs", "filter", "all") if fields.get(name) is not None]
    if len(ways) != 1:
        raise ProtocolError(
            Code.BAD_OPTION, f"choose dead letters by one of seqs, filter and all, not by {ways or 'none'}"
        )
    if fields.get("all") is not None and fields["all"] is not True:
        raise ProtocolError(Code.BAD_OPTION, f"all is true or absent, not {fields['all']!r}")
    most, after = bounded(fields, "max", 1, NUMBER_MAX, NUMBER_MAX), bounded(fields, "after_seq", 0, 0, NUMBER_MAX)
    seqs = fields.get("seqs")
    if seqs is None:
        return Choice(None, _filter(fields["filter"]) if ways == ["filter"] else None, most, after)
    if not isinstance(seqs, list) or not 1 <= len(seqs) <= LETTERS_MAX or not all(map(is_number, seqs)):
        raise ProtocolError(Code.BAD_OPTION, f"seqs is a list of 1..{LETTERS_MAX} numbers")
    if fields.get("max") is not None or fields.get("after_seq") is not None:
        raise ProtocolError(Code.BAD_OPTION, "max and after_seq exclude seqs: leave them out")
    return Choice(sorted(set(seqs)), None, most, after)


def _filter(value: Any) -> Filter:
    known = ("reason", "topic", "before_us")
    if not isinstance(value, dict) or not value or set(value) - set(known):
        raise ProtocolError(Code.BAD_OPTION, f"filter is a map with one or more of {', '.join(known)}, not {value!r}")
    reason, topic = value.get("reason"), value.get("topic")
    if not all(one is None or isinstance(one, str) for one in (reason, topic)):
        raise ProtocolError(Code.BAD_OPTION, "reason and topic of a filter are texts")
    before_us = bounded(value, "before_us", 0, NUMBER_MAX, NUMBER_MAX) if value.get("before_us") is not None else None
    return Filter(reason, View((canonical(unaliased(topic)),)) if topic is not None else None, before_us)


def _require_present(router: "Router", letters: DeadLetterSet, seqs: list[int]) -> None:
    for seq in seqs:
        if seq < 0 or seq > router.shared.committed_seq or seq not in letters:
            raise ProtocolError(Code.NOT_FOUND, f"group {letters.group!r} has no dead letter {seq}; nothing was done")


def _chosen(
    router: "Router", letters: DeadLetterSet, choice: Choice, *, guarded: bool = True
) -> tuple[list[Letter], int, int, bool]:
    """The chosen dead letters, the number of skipped ones, the last seq that was read, and whether there are more."""
    if choice.seqs is not None:
        return _named(router, letters, choice.seqs)
    chosen: list[Letter] = []
    skipped, reached, size = 0, choice.after, 0
    most = min(choice.most, LETTERS_MAX)
    walk = _Walk(router, letters, choice.after)
    for letter in walk:
        if len(chosen) >= most or size >= REDRIVE_BYTES_MAX:
            return chosen, skipped + walk.unreadable, reached, True
        if choice.filter is None or choice.filter.passes(letter):
            if guarded and letter.why_not:
                skipped += 1
            else:
                chosen.append(letter)
                size += len(letter.block.raw) // letter.block.count
        reached = letter.seq
    return chosen, skipped + walk.unreadable, max(reached, walk.reached), walk.more


def _named(router: "Router", letters: DeadLetterSet, seqs: list[int]) -> tuple[list[Letter], int, int, bool]:
    """Dead letters named by seqs. Raises unless each exists and can be redriven."""
    _require_present(router, letters, seqs)
    look, found = _Look(router.shared.block_store), list[Letter]()
    for seq in seqs:
        if look.read >= READ_BYTES_MAX:
            return found, 0, found[-1].seq, True
        letter = look.at(seq)
        if letter is None:
            raise ProtocolError(
                Code.CONFLICT, f"dead letter {seq} cannot be read: its block is damaged or removed; nothing was done"
            )
        if blocks.OMITTED in letter.headers:
            origin = letter.headers.get(blocks.SEQ)
            raise ProtocolError(
                Code.CONFLICT,
                f"dead letter {seq} has no body, because it was too large: publish the message at seq {origin!s} anew; "
                "nothing was done",
            )
        found.append(letter)
    return found, 0, seqs[-1], False


def _oldest(router: "Router", letters: DeadLetterSet, choice: Choice) -> tuple[list[tuple[int, int]], int, bool]:
    """Runs of dead letters from the oldest on, up to the chosen number. They are not read."""
    taken: list[tuple[int, int]] = []
    left, reached = choice.most, choice.after
    for first, last in letters.runs(choice.after, router.shared.committed_seq):
        if left <= 0 or len(taken) >= RUNS_MAX:
            return taken, reached, True
        reached = min(last, first + left - 1)
        taken.append((first, reached))
        left -= reached - first + 1
        if reached < last:
            return taken, reached, True
    return taken, reached, False


# Redriving.


def _require_room(router: "Router") -> None:
    """Raise when publishes are refused, because redriven messages are publishes."""
    refusal = router.publishing.refusal
    if refusal is not None:
        raise ProtocolError(refusal.code, refusal.text, retry_ms=refusal.retry_ms)
    if router.publishing.pending_bytes + REDRIVE_BYTES_MAX > PENDING_BYTES_MAX:
        raise ProtocolError(Code.BUSY, "the disk is behind; send the command again later", retry_ms=RETRY_MS)


def _by_block(chosen: list[Letter]) -> Iterator[list[Letter]]:
    for _, part in groupby(chosen, key=lambda letter: letter.block.base_seq):
        yield list(part)


def _redriven(group: str, part: list[Letter]) -> Iterator[tuple[bytes | None, list[int]]]:
    """Redriven blocks of dead letters of one block, with their seqs; None for a dead letter that does not fit a
    block."""
    try:
        places, headers = [letter.place for letter in part], [letter.headers for letter in part]
        yield blocks.redriven(group, part[0].block, places, headers), [letter.seq for letter in part]
    except BlockError:
        if len(part) == 1:
            yield None, [part[0].seq]
            return
        for letter in part:
            yield from _redriven(group, [letter])


def _row(letter: Letter) -> dict[str, Any]:
    headers = letter.headers
    return {
        "seq": letter.seq,
        "topic": str(headers.get(blocks.TOPIC, "")),
        "origin_seq": blocks.number(headers, blocks.SEQ),
        "reason": str(headers.get(blocks.REASON, "")),
        "error": str(headers.get(blocks.ERROR, "")),
        "attempts": blocks.number(headers, blocks.ATTEMPTS),
        "time_us": letter.block.ts_us,
        "hops": blocks.number(headers, blocks.HOPS),
        "redriven": blocks.number(headers, blocks.REDRIVEN),
        "parked": bool(letter.why_not),
    }
