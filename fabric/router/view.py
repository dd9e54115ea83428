"""Whether a topic matches one of some patterns, in time that no choice of patterns can make long.

All places in all patterns are bits of one number. Word by word of a topic, the places that the words so far can have
led to are kept as a set of bits: a few operations for each word, whatever the patterns are. (An expression tries the
ways in which several `#` can share the words one after the other, and there are very many.)
"""

from collections.abc import Iterable


class View:
    """Canonical patterns. The same object gives the same answers, so that the journal's index can remember them."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.looked = 0  # topics asked about so far
        self._words: dict[str, int] = {}  # literal word -> its places
        self._any_word = self._any_words = 0  # places of `*` and of `#`
        self._start = self._start_literal = self._end = 0
        place = 1
        for pattern in patterns:
            words = pattern.split(".")
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
            place <<= 1

    def __call__(self, topic: str) -> bool:
        self.looked += 1
        words, any_word, any_words = self._words, self._any_word, self._any_words
        # Wildcards do not match a first word that begins with `$`: those topics are the hub's own.
        places = self._start_literal if topic[0] == "$" else self._start
        for word in topic.split("."):
            places |= (places & any_words) << 1  # a `#` can stand for no word at all; none follows another
            places = (places & (words.get(word, 0) | any_word)) << 1 | (places & any_words)
            if not places:
                return False
        places |= (places & any_words) << 1
        return bool(places & self._end)
