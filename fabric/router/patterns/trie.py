"""Finds the owners of the patterns that match a topic. The grammar of patterns is in `fabric_protocol.names`."""

from typing import Final, Generic, TypeVar

from fabric.router.patterns.automaton import Automaton, places_of

# Topics with a remembered match. Ten thousand topics in use must fit, or each publish computes the match of each topic.
CACHE_MAX: Final = 65_536
STEMS_MAX: Final = 256  # each has up to 16 KiB for each automaton
# Places of one automaton: in a larger automaton, adding a pattern is slow.
SIZE_MAX: Final = 131_072

Owner = TypeVar("Owner")
_Stem = list[tuple[Automaton, int]]


class _Match(Generic[Owner]):
    """The owners of the patterns that match a topic. Topics that match the same patterns share one object, so a block
    of many topics has few of them."""

    __slots__ = ("owners",)

    def __init__(self, owners: dict[Owner, None]) -> None:
        self.owners = owners


class Trie(Generic[Owner]):
    """Canonical patterns to owners, with a bounded memory of recent topics."""

    def __init__(self) -> None:
        # By pattern. Owners are a dict for its order: a match must not depend on hashes.
        self._owners: dict[str, dict[Owner, None]] = {}
        # For patterns with wildcards, by first word; empty when the first word is a wildcard.
        self._automata: dict[str, list[Automaton]] = {}
        self._places: dict[str, tuple[Automaton, int]] = {}  # pattern -> its automaton and its last place
        self._forget()

    def _forget(self) -> None:
        self._cache: dict[str, _Match[Owner]] = {}
        self._shared: dict[tuple[object, ...], _Match[Owner]] = {}  # by the patterns that match
        self._stems: dict[str, _Stem] = {}  # by all words of a topic but the last
        self._last_topics: tuple[str, ...] = ()
        self._last_found: list[dict[Owner, None]] = []

    def add(self, pattern: str, owner: Owner) -> None:
        if pattern not in self._owners:
            self._owners[pattern] = {}
            if "*" in pattern or "#" in pattern:
                self._enter(pattern)
        self._owners[pattern][owner] = None
        self._forget()

    def remove(self, pattern: str, owner: Owner) -> None:
        owners = self._owners[pattern]
        del owners[owner]
        if not owners:
            del self._owners[pattern]
            if pattern in self._places:
                self._take_out(pattern)
        self._forget()

    def _enter(self, pattern: str) -> None:
        automata = self._automata.setdefault(_first_word(pattern), [])
        if not automata or automata[-1].size >= SIZE_MAX:
            automata.append(Automaton())
        self._places[pattern] = (automata[-1], automata[-1].add(pattern))

    def _take_out(self, pattern: str) -> None:
        """Remove a pattern from its automaton. An automaton of which less than half is used is dropped, and its
        patterns
        go into others."""
        automaton, last = self._places.pop(pattern)
        automaton.remove(last)
        if 2 * automaton.used < automaton.size:
            word = _first_word(pattern)
            self._automata[word].remove(automaton)
            for other in automaton.patterns.values():
                self._enter(other)
            if not self._automata[word]:
                del self._automata[word]

    def match(self, topic: str) -> dict[Owner, None]:
        """All owners with a pattern that matches, each once, in an order that does not depend on hashes."""
        return (self._cache.get(topic) or self._find(topic)).owners

    def match_all(self, topics: tuple[str, ...]) -> list[dict[Owner, None]]:
        """The distinct answers of `match` for the topics of a block. Called several times for one block."""
        if topics is not self._last_topics:
            found = dict.fromkeys(map(self._cache.get, topics))
            if None in found:
                found = dict.fromkeys([self._cache.get(topic) or self._find(topic) for topic in topics])
            self._last_topics, self._last_found = topics, [match.owners for match in found if match is not None]
        return self._last_found

    def _stem(self, topic: str) -> _Stem:
        """The automata that may match a topic, each with the places that all words but the last lead to."""
        *words, _ = topic.split(".")
        stem = []
        for automaton in self._automata.get("", []) + self._automata.get(topic.partition(".")[0], []):
            places = automaton.begin(topic)
            for word in words:
                places = automaton.follow(places, word)
            if places:
                stem.append((automaton, places))
        return stem

    def _find(self, topic: str) -> _Match[Owner]:
        """The match of a topic. Most topics that are looked up one after the other differ in the last word only."""
        head, _, last = topic.rpartition(".")
        stem = self._stems.get(head)
        if stem is None:
            stem = self._stem(topic)
            if head:  # one-word topics have no words in common
                if len(self._stems) >= STEMS_MAX:
                    self._stems.clear()
                self._stems[head] = stem
        matching = [(automaton, automaton.end(automaton.follow(places, last))) for automaton, places in stem]
        literal = topic if topic in self._owners else None
        key = (literal, *[found for found in matching if found[1]])
        match = self._shared.get(key)
        if match is None:
            patterns = [automaton.patterns[last] for automaton, bits in matching for last in places_of(bits)]
            patterns += [literal] if literal is not None else []
            match = _Match({owner: None for pattern in patterns for owner in self._owners[pattern]})
        if len(self._cache) >= CACHE_MAX:
            self._cache.clear()
            self._shared.clear()
        self._cache[topic] = self._shared[key] = match
        return match


def _first_word(pattern: str) -> str:
    """The first word of a pattern; empty when it is a wildcard."""
    word = pattern.partition(".")[0]
    return "" if word in ("*", "#") else word
