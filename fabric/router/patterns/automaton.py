"""Which of many patterns a topic matches, in time that no choice of patterns can make long.

All places in all patterns are bits of one number. Word by word of a topic, the places that the words so far can have
led to are kept as a set of bits: a few operations for each word, whatever the patterns are. (To try the ways in which
`*` and several `#` can share the words one after the other takes long: there are very many.)
"""


class Automaton:
    """Canonical patterns, each known by its last place."""

    def __init__(self) -> None:
        self.patterns: dict[int, str] = {}  # by their last places
        self.size = 0  # places so far, also those of patterns that were removed
        self.used = 0  # those of patterns that are there
        self._words: dict[str, int] = {}  # literal word -> its places
        self._any_word = self._any_words = 0  # places of `*` and of `#`
        self._start = self._start_literal = self._end = 0

    def add(self, pattern: str) -> int:
        """Returns the pattern's last place."""
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
        """Take a pattern out. Its places are not used again."""
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
        """The places to begin at. Wildcards do not match a first word that begins with `$`: those topics are the hub's
        own."""
        return self._start_literal if topic[0] == "$" else self._start

    def follow(self, places: int, word: str) -> int:
        """The places that a word leads to."""
        any_words = self._any_words
        places |= (places & any_words) << 1  # a `#` can stand for no word at all; none follows another
        return (places & (self._words.get(word, 0) | self._any_word)) << 1 | (places & any_words)

    def end(self, places: int) -> int:
        """Those of the places at which a pattern has matched."""
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
