"""Advisories: messages of topics `$sys.…` about what happens inside the hub, for ephemeral subscriptions.

An advisory has no seq: it is not journaled and not sent again. A subscription without credit misses it, which is
counted. An advisory that no pattern matches costs one lookup of its topic.
"""

from collections import Counter

from fabric.router.clock import Clock
from fabric.router.groups.group import Group
from fabric.router.part import Part
from fabric.router.patterns.trie import Trie
from fabric.router.turn import Turn
from fabric_protocol.block import encode, stamp
from fabric_protocol.messages import Deliver


class Advisories(Part):
    def __init__(self, trie: Trie[Group], clock: Clock, counters: Counter[str]) -> None:
        self._trie = trie
        self._clock = clock
        self._counters = counters

    def tick(self, now: float, turn: Turn) -> None:
        """Deliver the queued advisories. Ordinals are given here, so that they leave in order."""
        for topic, payload in turn.take_advised() if turn.advised else ():
            raw = stamp(encode(topic, [payload]), 0, self._clock.wall_us(now))
            for group in self._trie.match(topic):
                if not group.durable:
                    self._deliver(group, raw, turn)

    def _deliver(self, group: Group, raw: bytes, turn: Turn) -> None:
        for sub in group.members:
            if sub.room() < 1 or not sub.fitting(len(raw)):
                self._counters["advisories_dropped"] += 1
                continue
            sub.sent += 1
            sub.bytes_sent += len(raw)
            self._counters["advisories"] += 1
            turn.send(sub.session.peer, Deliver(sub.chan, sub.sent, 1, (), raw))
