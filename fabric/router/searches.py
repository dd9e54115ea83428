"""Searches backwards through the journal for a position: the last message, or the last of each topic and key.

The journal may be long, and one command does a bounded amount of work. If that is not enough, the command is refused
with BUSY and the search is remembered: the same command, sent again, continues it. A complete search that is asked for
again looks at newer messages only.
"""

from collections import OrderedDict
from typing import Final, TypeVar

from fabric.router.block_store import Reader
from fabric.router.clock import Clock
from fabric.router.patterns.view import View
from fabric_protocol.block import Block
from fabric_protocol.errors import Code, ProtocolError

# Work of one command, at most: some ten milliseconds.
STEPS_MAX: Final = 128  # reads of a summary of the journal's index, or of a block
TOPICS_MAX: Final = 8_192  # compared with the patterns
MESSAGES_MAX: Final = 16_384  # looked at
BYTES_MAX: Final = 8 << 20  # of blocks read
KEYS_MAX: Final = 100_000  # keys that one search finds before it ends; some 20 MB
REMEMBERED_MAX: Final = 8
REMEMBERED_S: Final = 60.0
RETRY_MS: Final = 5

Patterns = tuple[str, ...]


class _Search:
    """Searches messages low+1..high from the newest on; messages at or above `before` were searched."""

    def __init__(self, patterns: Patterns) -> None:
        self.view = View(patterns)
        self.low = self.high = 0
        self.before = 0
        self.used_at = 0.0

    def take(self, block: Block, first_seq: int) -> bool:
        """Search the messages of a block from first_seq on; True when no older message is wanted."""
        raise NotImplementedError


class _Last(_Search):
    def __init__(self, patterns: Patterns) -> None:
        super().__init__(patterns)
        self.found = 0

    def take(self, block: Block, first_seq: int) -> bool:
        wanted, places = [self.view(topic) for topic in block.topics], block.topic_idx()
        for at in range(block.count - 1, -1, -1):
            if wanted[places[at]]:
                self.found = max(self.found, block.base_seq + at)
                return True
        return False


class _LastPerKey(_Search):
    def __init__(self, patterns: Patterns) -> None:
        super().__init__(patterns)
        self.found: dict[tuple[str, bytes], int] = {}

    def take(self, block: Block, first_seq: int) -> bool:
        found, base = self.found, block.base_seq
        topics, keys, places = block.topics, block.keys(), block.topic_idx()
        wanted = [self.view(topic) for topic in topics]
        for at in range(block.count - 1, max(first_seq - base, 0) - 1, -1):
            if wanted[place := places[at]]:
                key = topics[place], keys[at]
                if found.get(key, 0) < base + at:
                    if len(found) >= KEYS_MAX and key not in found:
                        return True
                    found[key] = base + at
        return False


Kind = TypeVar("Kind", bound=_Search)


class Searches:
    def __init__(self, reader: Reader, clock: Clock) -> None:
        self.reader = reader
        self._clock = clock
        self._remembered: OrderedDict[tuple[type[_Search], Patterns], _Search] = OrderedDict()

    def last(self, patterns: Patterns, first_seq: int, committed_seq: int) -> int | None:
        """The seq of the last message that matches; None when there is none. Raises BUSY when the search has not
        ended."""
        search = self._run(_Last, patterns, first_seq, committed_seq)
        return search.found if search.found >= first_seq else None

    def last_per_key(self, patterns: Patterns, first_seq: int, committed_seq: int) -> list[int]:
        """The seqs of the last message of each topic and key, ascending; a message without a key has an empty one."""
        found = self._run(_LastPerKey, patterns, first_seq, committed_seq).found
        return sorted(seq for seq in found.values() if seq >= first_seq)

    def sweep(self, now: float) -> None:
        """Forget searches that were not asked for again."""
        for key, search in list(self._remembered.items()):
            if now - search.used_at > REMEMBERED_S:
                del self._remembered[key]

    def _run(self, kind: type[Kind], patterns: Patterns, first_seq: int, committed_seq: int) -> Kind:
        search = self._remembered.pop((kind, patterns), None) or kind(patterns)
        assert isinstance(search, kind)
        search.used_at = self._clock.now
        self._remembered[kind, patterns] = search
        if len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)
        if not self._advance(search, first_seq, committed_seq):
            raise ProtocolError(
                Code.BUSY,
                "the hub still searches the journal for this position; send the command again",
                retry_ms=RETRY_MS,
            )
        return search

    def _advance(self, search: _Search, first_seq: int, committed_seq: int) -> bool:
        """Continue a search; False when it has not ended."""
        messages, size, looked_max = 0, 0, search.view.looked + TOPICS_MAX
        for _ in range(STEPS_MAX):
            if search.before <= max(search.low + 1, first_seq):
                search.low = search.high
                if search.low >= committed_seq:
                    return True
                search.high, search.before = committed_seq, committed_seq + 1
                continue
            if messages >= MESSAGES_MAX or size >= BYTES_MAX or search.view.looked >= looked_max:
                return False
            block, search.before = self.reader.previous_block(search.before, search.view)
            if block is not None:
                messages, size = messages + block.count, size + len(block.raw)
                if search.take(block, first_seq):
                    search.before = 0
        return False
