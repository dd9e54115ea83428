"""Which of many patterns a topic matches, in a time that no choice of patterns can make long.

Each place in each pattern is a bit of one number. The automaton goes through a topic word by word and keeps the set of
places that the words can lead to: a few operations for each word, whatever the patterns are. (To try all ways in which
`*` and several `#` can share the words takes long, because there are very many ways.)
"""


class Automaton:
    """Canonical patterns, each found by its last place."""

    def __init__(self) -> None:
        self.patterns: dict[int, str] = {}  # by last place
        self.size = 0  # places, also of removed patterns
        self.used = 0  # places of patterns that were not removed
        self._words: dict[str, int] = {}  # literal word -> its places
        self._any_word = self._any_words = 0  # places of `*` and of `#`
        self._start = self._start_literal = self._end = 0

    def add(self, pattern: str) -> int:
        """Add a pattern; returns its last place."""
        words = pattern.split(".")
        place = 1 << self.size
        self._start |= place
        if words[0] not in ("*", "#"):
            self._start_literal |= place
        for word in words:
            if word == "*":
                self._any_word |= place
            elif word == "#":
                self._any_words |= place
            else:
                self._words[word] = self._words.get(word, 0) | place
            place <<= 1
        self._end |= place
        self.size += len(words) + 1
        self.used += len(words) + 1
        self.patterns[self.size - 1] = pattern
        return self.size - 1

    def remove(self, last: int) -> None:
        """Remove a pattern. Its places are not used again."""
        words = self.patterns.pop(last).split(".")
        self.used -= len(words) + 1
        place = 1 << (last - len(words))
        self._start &= ~place
        self._start_literal &= ~place
        for word in words:
            if word == "*":
                self._any_word ^= place
            elif word == "#":
                self._any_words ^= place
            elif left := self._words[word] & ~place:
                self._words[word] = left
            else:
                del self._words[word]
            place <<= 1
        self._end ^= place

    def match(self, topic: str) -> int:
        """The last places of all patterns that match, as bits."""
        places = self.begin(topic)
        for word in topic.split("."):
            places = self.follow(places, word)
            if not places:
                return 0
        return self.end(places)

    def begin(self, topic: str) -> int:
        """The places to begin at. Wildcards do not match a first word that begins with `$`, which is a topic of the
        hub."""
        return self._start_literal if topic[0] == "$" else self._start

    def follow(self, places: int, word: str) -> int:
        """The places that a word leads to from these places."""
        any_words = self._any_words
        places |= (places & any_words) << 1  # a `#` can stand for no word; canonical patterns have no `#` after a `#`
        return (places & (self._words.get(word, 0) | self._any_word)) << 1 | (places & any_words)

    def named(self, *, is_first: bool) -> int:
        """The places of words that are no wildcards; of first words, without those that begin with `$`."""
        return sum(places for word, places in self._words.items() if not (is_first and word[0] == "$"))

    def follow_any(self, places: int, named: int) -> int:
        """The places that some word leads to, of the words at these named places or of words that no pattern names."""
        any_words = self._any_words
        places |= (places & any_words) << 1
        return (places & (named | self._any_word)) << 1 | (places & any_words)

    def end(self, places: int) -> int:
        """The places at which a pattern ends."""
        places |= (places & self._any_words) << 1
        return places & self._end


def places_of(bits: int) -> list[int]:
    """The places in a set of bits, ascending."""
    text = f"{bits:b}"[::-1]
    found, at = list[int](), text.find("1")
    while at >= 0:
        found.append(at)
        at = text.find("1", at + 1)
    return found
