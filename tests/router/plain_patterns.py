"""The rules of patterns in the plainest form, as a comparison for the trie."""

from functools import cache


def matches(pattern: str, topic: str) -> bool:
    """Whether a pattern, in any spelling, matches a topic."""
    words = pattern.split(".")
    if topic.startswith("$") and words[0] in ("*", "#", ">"):
        return False
    return _matches(tuple(words), tuple(topic.split(".")))


@cache
def _matches(pattern: tuple[str, ...], topic: tuple[str, ...]) -> bool:
    if not pattern:
        return not topic
    first, rest = pattern[0], pattern[1:]
    if first == "#":
        return any(_matches(rest, topic[i:]) for i in range(len(topic) + 1))
    if not topic:
        return False
    if first == ">":
        return not rest
    return first in ("*", topic[0]) and _matches(rest, topic[1:])
