"""Advisories: what happens inside the hub, told to whoever listens to `$sys.…` right now, and to the hub's log.

They are messages without a seq: never journaled, never sent again, for subscriptions without a group. Who has no
credit left misses them, and that is counted. What nobody listens to costs one look into the trie.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from fabric.router.groups.group import Group
from fabric.router.patterns.trie import Trie
from fabric.router.turn import Out
from fabric_protocol.block import encode, stamp
from fabric_protocol.messages import Deliver

PENDING_MAX: Final = 1_000  # said in one turn; a storm of news must not become one of memory


class Advisories:
    def __init__(self, trie: Trie[Group], counters: Counter[str]) -> None:
        self._trie = trie
        self._counters = counters
        self._pending: list[tuple[str, bytes]] = []
        self.enabled = True
        self.hear: Callable[[str, Mapping[str, Any]], None] = _unheard  # the hub's log; it hears all, sent or not

    def __bool__(self) -> bool:
        return bool(self._pending)

    def enable(self, enabled: bool) -> None:
        self.enabled = enabled

    def say(self, topic: str, /, **fields: Any) -> None:
        """Let those know who listen. `topic` starts with $sys."""
        self.hear(topic, fields)
        if not self.enabled or not self._trie.match(topic):
            return
        if len(self._pending) >= PENDING_MAX:
            self._counters["advisories_dropped"] += 1
            return
        self._pending.append((topic, json.dumps(fields, ensure_ascii=False, default=str).encode()))

    def flush(self, wall_us: int, out: Out) -> None:
        """Hand out what was said. Ordinals are given here, so that they leave in order."""
        pending, self._pending = self._pending, []
        for topic, payload in pending:
            raw = stamp(encode(topic, [payload]), 0, wall_us)
            for group in self._trie.match(topic):
                if not group.durable:
                    self._deliver(group, raw, out)

    def _deliver(self, group: Group, raw: bytes, out: Out) -> None:
        for sub in group.members:
            if sub.room() < 1 or not sub.fitting(len(raw)):
                self._counters["advisories_dropped"] += 1
                continue
            sub.sent += 1
            sub.bytes_sent += len(raw)
            self._counters["advisories"] += 1
            out.append((sub.session.peer, Deliver(sub.chan, sub.sent, 1, (), raw)))


def _unheard(topic: str, fields: Mapping[str, Any]) -> None:
    pass
