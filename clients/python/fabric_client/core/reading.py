"""Reading stored messages without a group: GET, page after page."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from fabric_client.core import wire_values
from fabric_client.core.arguments import Moment, check_whole, microseconds
from fabric_client.core.message import Message
from fabric_client.core.requests import read
from fabric_protocol import messages as m

PAGE: Final = 1_000  # messages of one GET at most
_WILD: Final = frozenset("*#>")


class Reading:
    """One call of `get`, answered in several pages."""

    def __init__(
        self, topic: str | None, seq: int | None, time: Moment | None, n: int | None, last: bool, by_key: bool
    ) -> None:
        if n is not None:
            check_whole("n", n, 1, "it is how many messages you want at most")
        if topic is not None:
            wire_values.text(topic, "topic")
        self._left = n if n is not None else (None if by_key else 1)
        self._last, self._by_key = last, by_key
        self._fields: dict[str, Any] = {}
        if topic is not None:
            self._fields["pattern" if _WILD.intersection(topic.split(".")) else "topic"] = topic
        if seq is not None:
            self._fields["seq"] = seq
        if time is not None:
            self._fields["time_us"] = microseconds(time)
        if last:
            self._fields["last"] = True
        if by_key:
            self._fields["by_key"] = True
        self._latest: dict[tuple[str, str | int], Message] = {}
        self._ending: list[Message] = []
        self.done = False

    def ask(self, rid: int) -> m.Get:
        """The GET for the next page."""
        n = PAGE if self._by_key or self._left is None else min(self._left, PAGE)
        return m.Get(rid, {**self._fields, "n": n})

    def page(self, answer: Mapping[str, Any], parts: Iterable[m.Got | m.Reply]) -> Iterator[Message]:
        """The messages of a page for the caller. The latest message of each key is known after the last page."""
        found = [
            message for part in parts if isinstance(part, m.Got) for message in read(part.seqs, part.block, part.origin)
        ]
        self.done = not answer.get("more")
        self._fields.pop("time_us", None)
        self._fields["before" if self._last else "seq"] = answer.get("next", 0)
        if self._last:
            return iter(self._page_before(found))
        if self._by_key:
            for message in found:
                self._latest[message.topic, message.key or message.seq] = message
            found = sorted(self._latest.values(), key=lambda message: message.seq) if self.done else []
        if self._left is not None:
            found = found[: self._left]
            if not self._by_key:
                self._left -= len(found)
                self.done = self.done or not self._left
        return iter(found)

    def _page_before(self, found: list[Message]) -> list[Message]:
        """Pages of the last messages arrive newest first; the caller gets them in order after the last page."""
        self._ending = found + self._ending
        if self._left is not None:
            self._left -= len(found)
            self.done = self.done or self._left <= 0
        return self._ending if self.done else []
