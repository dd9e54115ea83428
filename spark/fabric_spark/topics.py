"""Which topics are wanted: by pattern, as in a subscription, and by the filters that Spark pushes down.

Wildcards do not match a first word that starts with `$`: such topics belong to the hub, and are named in full.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fabric_protocol.errors import ProtocolError
from fabric_protocol.names import canonical, unaliased
from fabric_spark.errors import SourceError


def parse_patterns(text: str) -> tuple[str, ...]:
    """Patterns separated by commas, in their canonical spelling."""
    try:
        return tuple(canonical(unaliased(pattern.strip())) for pattern in text.split(",") if pattern.strip())
    except ProtocolError as error:
        raise SourceError(
            f"option topics: {error}", "patterns are words joined by dots; '*' is one word, '#' is any number of words"
        ) from error


class Wanted(NamedTuple):
    """A choice of topics. Empty patterns want all; `names` and `prefixes` narrow that down."""

    patterns: tuple[str, ...] = ()
    names: frozenset[str] | None = None
    prefixes: tuple[str, ...] = ()

    @property
    def is_everything(self) -> bool:
        return not self.patterns and self.names is None and not self.prefixes

    def __call__(self, topic: str) -> bool:
        if self.names is not None and topic not in self.names:
            return False
        if not all(topic.startswith(prefix) for prefix in self.prefixes):
            return False
        return not self.patterns or any(matches(pattern, topic) for pattern in self.patterns)

    def any_of(self, topics: Iterable[str] | None) -> bool:
        """Whether any of the topics is wanted; None stands for unknown topics."""
        return topics is None or self.is_everything or any(self(topic) for topic in topics)

    def named(self, names: Iterable[str]) -> "Wanted":
        chosen = frozenset(names)
        return self._replace(names=chosen if self.names is None else self.names & chosen)

    def starting(self, prefix: str) -> "Wanted":
        return self._replace(prefixes=(*self.prefixes, prefix))


def matches(pattern: str, topic: str) -> bool:
    """Whether a canonical pattern matches a topic."""
    words = pattern.split(".")
    if topic.startswith("$") and words[0] in ("*", "#"):
        return False
    return _match(words, topic.split("."))


def _match(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Match a pattern: the last `#` takes one word more whenever the rest does not match."""
    at = place = 0
    mark, marked = -1, 0
    while at < len(words):
        if place < len(pattern) and pattern[place] == "#":
            mark, marked = place, at
            place += 1
        elif place < len(pattern) and pattern[place] in ("*", words[at]):
            at += 1
            place += 1
        elif mark >= 0:
            marked += 1
            at, place = marked, mark + 1
        else:
            return False
    return all(word == "#" for word in pattern[place:])
