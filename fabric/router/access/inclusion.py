"""Which topics a pattern includes, compared with another pattern. Patterns are canonical.

    includes(allowed, asked)   each topic that `asked` matches is matched by `allowed`
    Meeting(patterns)(asked)   some topic matches `asked` and one of the patterns

Both go through all topics at once, word by word, and keep sets of places in the patterns. A topic has at most WORDS_MAX
words, so the work is bounded. The length of a topic in bytes is not looked at: a topic that is too long counts as one.

Few patterns lead to many sets. `includes` says no to those: a subscription that could be allowed is refused then, and
no text of a client costs the hub more than some milliseconds.

`includes` tries one word for all words that `allowed` does not name. If a topic with this word at the wildcards of
`asked` matches `allowed`, the word stands at wildcards there, too; so each other word can stand in its place.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from fabric.router.patterns.automaton import Automaton
from fabric_protocol.names import WORDS_MAX

REMEMBERED_MAX: Final = 16_384  # answers; about 4 MB
SETS_MAX: Final = 32  # at all places together; patterns with a `#` or two have fewer than ten
_UNNAMED: Final = "\n"  # a word that no pattern can name
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
        if sum(map(len, sets)) > SETS_MAX:
            return False
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


class Meeting:
    """Some patterns. Called with another one: whether some topic matches it and one of them. All of them are followed
    at once, so their number hardly matters."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = Automaton()
        for pattern in patterns:
            self._patterns.add(pattern)
        self._first, self._named = self._patterns.named(is_first=True), self._patterns.named(is_first=False)

    def __call__(self, asked: str) -> bool:
        patterns, wanted = self._patterns, asked.split(".")
        reached = [0] * (len(wanted) + 1)
        reached[0] = patterns.begin(wanted[0])
        for count in range(WORDS_MAX):
            _pass_over(reached, wanted)
            following = [0] * len(reached)
            for at, word in enumerate(wanted):
                if word in ("*", "#"):
                    named = self._named if count else self._first
                    following[at if word == "#" else at + 1] |= patterns.follow_any(reached[at], named)
                elif count or not at or not word.startswith("$"):  # wildcards match no topic of the hub
                    following[at + 1] |= patterns.follow(reached[at], word)
            reached = following
            if not any(reached):
                break
            _pass_over(reached, wanted)
            if patterns.end(reached[-1]):
                return True
        return False


def _pass_over(reached: list[int], wanted: list[str]) -> None:
    """A `#` of the pattern can stand for no word."""
    for at, word in enumerate(wanted):
        if word == "#":
            reached[at + 1] |= reached[at]


def shortest(pattern: str) -> str:
    """A topic that a pattern matches: a pattern that includes this one matches it, too."""
    return ".".join(_UNNAMED if word == "*" else word for word in pattern.split(".") if word != "#") or _UNNAMED
