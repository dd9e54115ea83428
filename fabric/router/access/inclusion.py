"""Which topics a pattern includes, compared with another pattern. Patterns are canonical.

    includes(allowed, asked)   each topic that `asked` matches is matched by `allowed`
    meets(one, other)          some topic matches both

Both go through all topics at once, word by word, and keep sets of places in the patterns. A topic has at most WORDS_MAX
words, so the work is bounded. The length of a topic in bytes is not looked at: a topic that is too long counts as one.

`includes` tries one word for all words that `allowed` does not name. If a topic with this word at the wildcards of
`asked` matches `allowed`, the word stands at wildcards there, too; so each other word can stand in its place.
"""

from functools import lru_cache
from typing import Final

from fabric_protocol.names import WORDS_MAX

REMEMBERED_MAX: Final = 16_384  # answers; about 4 MB
_OTHER: Final = ""  # stands for each word that no pattern names; no word is empty

_Sets = list[set[int]]  # for each place in `asked`, the sets of places in `allowed` that a topic can lead to


@lru_cache(REMEMBERED_MAX)
def includes(allowed: str, asked: str) -> bool:
    """Whether each topic that `asked` matches is matched by `allowed`."""
    if allowed == asked:
        return True
    wanted, pattern = asked.split("."), _Places(allowed)
    sets: _Sets = [set() for _ in range(len(wanted) + 1)]
    sets[0] = {1}
    for count in range(WORDS_MAX + 1):
        _skip(sets, wanted)
        if count and any(not pattern.is_end(places) for places in sets[-1]):
            return False
        sets = _step(sets, wanted, pattern, is_first=count == 0)
        if not any(sets):
            break
    return True


class _Places:
    """The places in a pattern, as bits of a number. Bit n: the topic so far matches the first n words."""

    def __init__(self, pattern: str) -> None:
        words = pattern.split(".")
        self.begins_literally = words[0] not in ("*", "#")
        self._any_words = sum(1 << at for at, word in enumerate(words) if word == "#")
        self._any_word = sum(1 << at for at, word in enumerate(words) if word == "*")
        self._words: dict[str, int] = {}
        for at, word in enumerate(words):
            self._words[word] = self._words.get(word, 0) | 1 << at
        self._end = 1 << len(words)

    def follow(self, places: int, word: str) -> int:
        """The places that a word leads to from these places."""
        places |= (places & self._any_words) << 1
        return (places & (self._words.get(word, 0) | self._any_word)) << 1 | places & self._any_words

    def is_end(self, places: int) -> bool:
        return bool((places | (places & self._any_words) << 1) & self._end)


def _skip(sets: _Sets, wanted: list[str]) -> None:
    """A `#` of `asked` can stand for no word. Of two sets, one in the other, the smaller one decides."""
    for at, word in enumerate(wanted):
        if word == "#":
            sets[at + 1] |= sets[at]
    for at, found in enumerate(sets):
        if len(found) > 1:
            sets[at] = {one for one in found if not any(other & one == other != one for other in found)}


def _step(sets: _Sets, wanted: list[str], pattern: _Places, *, is_first: bool) -> _Sets:
    """The sets after one more word."""
    following: _Sets = [set() for _ in sets]
    for at, word in enumerate(wanted):
        is_wild = word in ("*", "#")
        is_own = is_first and word.startswith("$")
        if is_own and at > 0:
            continue  # `asked` begins with a wildcard, which matches no topic of the hub
        for places in sets[at]:
            if is_own and not pattern.begins_literally:
                reached = 0
            else:
                reached = pattern.follow(places, _OTHER if is_wild else word)
            following[at if word == "#" else at + 1].add(reached)
    return following


@lru_cache(REMEMBERED_MAX)
def meets(one: str, other: str) -> bool:
    """Whether some topic matches both patterns."""
    ours, theirs = one.split("."), other.split(".")
    pairs = {(0, 0)}
    for count in range(WORDS_MAX + 1):
        pairs = _skipped(pairs, ours, theirs)
        if count and (len(ours), len(theirs)) in pairs:
            return True
        pairs = {
            (a if ours[a] == "#" else a + 1, b if theirs[b] == "#" else b + 1)
            for a, b in pairs
            if a < len(ours) and b < len(theirs) and _agree(ours, a, theirs, b, is_first=count == 0)
        }
    return False


def _agree(ours: list[str], a: int, theirs: list[str], b: int, *, is_first: bool) -> bool:
    """Whether some word can stand at both places."""
    here, there = ours[a], theirs[b]
    if is_first:
        if here.startswith("$") and (a or theirs[0] in ("*", "#")):
            return False
        if there.startswith("$") and (b or ours[0] in ("*", "#")):
            return False
    return here == there or here in ("*", "#") or there in ("*", "#")


def _skipped(pairs: set[tuple[int, int]], ours: list[str], theirs: list[str]) -> set[tuple[int, int]]:
    """The pairs of places when a `#` stands for no word."""
    found, left = set(pairs), list(pairs)
    while left:
        a, b = left.pop()
        for pair in (
            *([(a + 1, b)] if a < len(ours) and ours[a] == "#" else []),
            *([(a, b + 1)] if b < len(theirs) and theirs[b] == "#" else []),
        ):
            if pair not in found:
                found.add(pair)
                left.append(pair)
    return found
