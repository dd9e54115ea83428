"""Whether a topic matches one of some patterns."""

from collections.abc import Iterable

from fabric.router.patterns.automaton import Automaton


class View:
    """Canonical patterns. An object always gives the same answers, so that the journal's index can remember them."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(patterns)
        self.looked = 0  # topics that were matched so far
        self._automaton = Automaton()
        for pattern in self.patterns:
            self._automaton.add(pattern)

    def __call__(self, topic: str) -> bool:
        self.looked += 1
        return bool(self._automaton.match(topic))
