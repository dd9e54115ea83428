"""The trie that finds who wants a topic. The grammar of topics and patterns is in `fabric.names`.

Wildcards do not match a first word that starts with `$`: those topics are the hub's own.
"""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

# Topics whose match is remembered. Ten thousand live topics must fit, or every publish walks the trie.
CACHE_MAX: Final = 65_536

Owner = TypeVar("Owner")


class _Node(Generic[Owner]):
    __slots__ = ("children", "owners")

    def __init__(self) -> None:
        self.children: dict[str, _Node[Owner]] = {}
        self.owners: dict[Owner, None] = {}  # a dict for its order: matches must not depend on hashes


class _Takers(Generic[Owner]):
    """Who wants a topic. Topics with the same takers share one, so that a block of many topics is a few of these."""

    __slots__ = ("owners",)

    def __init__(self, owners: dict[Owner, None]) -> None:
        self.owners = owners


class Trie(Generic[Owner]):
    """Canonical patterns to owners, with a bounded memory of recent topics."""

    def __init__(self) -> None:
        self._root: _Node[Owner] = _Node()
        self._forget()

    def _forget(self) -> None:
        self._cache: dict[str, _Takers[Owner]] = {}
        self._shared: dict[tuple[Owner, ...], _Takers[Owner]] = {}
        self._last_topics: tuple[str, ...] = ()
        self._last_found: list[dict[Owner, None]] = []

    def add(self, pattern: str, owner: Owner) -> None:
        node = self._root
        for word in pattern.split("."):
            node = node.children.setdefault(word, _Node())
        node.owners[owner] = None
        self._forget()

    def remove(self, pattern: str, owner: Owner) -> None:
        path = [self._root]
        words = pattern.split(".")
        for word in words:
            path.append(path[-1].children[word])
        del path[-1].owners[owner]
        for parent, word in zip(reversed(path[:-1]), reversed(words), strict=True):
            child = parent.children[word]
            if child.owners or child.children:
                break
            del parent.children[word]
        self._forget()

    def match(self, topic: str) -> dict[Owner, None]:
        """All owners with a pattern that matches, each once, in an order that does not depend on hashes."""
        return (self._cache.get(topic) or self._find(topic)).owners

    def match_all(self, topics: tuple[str, ...]) -> list[dict[Owner, None]]:
        """The distinct answers of `match` for the topics of a block; asked several times for one block."""
        if topics is not self._last_topics:
            found = dict.fromkeys(map(self._cache.get, topics))
            if None in found:
                found = dict.fromkeys([self._cache.get(topic) or self._find(topic) for topic in topics])
            self._last_topics, self._last_found = topics, [takers.owners for takers in found if takers is not None]
        return self._last_found

    def _find(self, topic: str) -> _Takers[Owner]:
        owners = dict.fromkeys(self._walk(self._root, topic.split("."), 0, set()))
        if len(self._cache) >= CACHE_MAX:
            self._cache.clear()
            self._shared.clear()
        takers = self._cache[topic] = self._shared.setdefault(tuple(owners), _Takers(owners))
        return takers

    def _walk(self, node: _Node[Owner], words: list[str], at: int, seen: set[tuple[int, int]]) -> Iterator[Owner]:
        """Owners below a node for the words from `at` on. `seen` are the places visited: several `#` lead to the
        same one in very many ways."""
        if (id(node), at) in seen:
            return
        seen.add((id(node), at))
        wild = at > 0 or not words[0].startswith("$")
        rest = node.children.get("#") if wild else None
        if rest is not None:
            for skip in range(at, len(words) + 1):
                yield from self._walk_after_hash(rest, words, skip, seen)
        if at == len(words):
            yield from node.owners
            return
        for word in (words[at], "*") if wild else (words[at],):
            child = node.children.get(word)
            if child is not None:
                yield from self._walk(child, words, at + 1, seen)

    def _walk_after_hash(
        self, node: _Node[Owner], words: list[str], at: int, seen: set[tuple[int, int]]
    ) -> Iterator[Owner]:
        """As `_walk` at the node of a `#`, which has already taken its words; canonical form has no `#` after it."""
        if (id(node), at) in seen:
            return
        seen.add((id(node), at))
        if at == len(words):
            yield from node.owners
            return
        child = node.children.get(words[at])
        if child is not None:
            yield from self._walk(child, words, at + 1, seen)
