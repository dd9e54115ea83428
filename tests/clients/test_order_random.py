"""Order in the client with a hub that takes messages back after a failure, a slow line, and random failures.

The hub is a few lists, and each frame waits in a queue for a while. No message may be handled before every earlier
message of its key is settled.
"""

import itertools
import random
from collections import deque
from typing import Any

import pytest

from fabric_client.core.batch import Batch
from fabric_client.core.subscription import Subscription
from fabric_protocol import block
from fabric_protocol import messages as m
from fabric_protocol.messages import Verdict

MESSAGES = 120


class OrderedHub:
    """A group of order `key` (or `strict`) with one consumer. Takes back all later deliveries of a key that failed."""

    def __init__(self, keys: list[bytes], strict: bool, rng: random.Random, dead_after: int) -> None:
        self._keys = [b"*"] * len(keys) if strict else keys  # by seq - 1
        self._sent_keys = keys
        self._rng = rng
        self._waiting = {key: deque[int]() for key in self._keys}
        for seq, key in enumerate(self._keys, 1):
            self._waiting[key].append(seq)
        self._leased: dict[int, int] = {}  # ordinal -> seq
        self._failures: dict[int, int] = {}
        self._dead_after = dead_after
        self._ordinal = 0
        self.done: list[int] = []
        self.out: deque[m.ToClient] = deque()
        self._uncommitted: list[m.Ok] = []

    def send(self, room: int) -> None:
        """Deliver some of what is ready, a run of one to four at a time."""
        while room > 0 and (ready := [key for key, queue in self._waiting.items() if queue]):
            run = []
            for _ in range(min(room, self._rng.randint(1, 4))):
                key = self._rng.choice(ready)
                if self._waiting[key]:
                    run.append(self._waiting[key].popleft())
            if not run:
                continue
            raw = block.encode("t", [b"%d" % seq for seq in run], keys=[self._sent_keys[seq - 1] for seq in run])
            seqs = tuple(number for seq in run for number in (seq, 1))
            self.out.append(m.Deliver(1, self._ordinal + 1, 1, seqs, block.stamp(raw, run[0], 0)))
            for seq in run:
                self._ordinal += 1
                self._leased[self._ordinal] = seq
            room -= len(run)

    def settle(self, message: m.Settle) -> None:
        stale = []
        for verdict, first, last, _ in message.verdicts:
            for ordinal in range(first, last + 1):
                seq = self._leased.pop(ordinal, None)
                if seq is None:
                    stale.append([ordinal, ordinal])
                elif verdict == Verdict.ACK:
                    self.done.append(seq)
                else:
                    self._come_back(seq, verdict)
        self._uncommitted.append(m.Ok(1, message.rid, {"applied": 1, "stale": stale}))

    def commit(self) -> None:
        """Answers wait for the disk; deliveries do not."""
        self.out.extend(self._uncommitted)
        self._uncommitted.clear()

    def _come_back(self, seq: int, verdict: int) -> None:
        key = self._keys[seq - 1]
        self._failures[seq] = self._failures.get(seq, 0) + (verdict == Verdict.RETRY)
        if self._failures[seq] > self._dead_after:
            self.done.append(seq)  # a dead letter; the later ones stay where they are
            return
        later = [o for o, s in self._leased.items() if self._keys[s - 1] == key and s > seq]
        back = sorted([seq, *(self._leased.pop(ordinal) for ordinal in later)])
        self._waiting[key].extendleft(reversed(back))
        if later and self._rng.random() < 0.7:  # the notice helps, but order must not hang on it
            fields = {"chan": 1, "ordinals": [[o, o] for o in later], "why": "an earlier message comes first"}
            self.out.append(m.Notice("lease_lost", fields))

    @property
    def room(self) -> int:
        return 24 - len(self._leased)


@pytest.mark.parametrize("seed", range(40))
def test_nothing_overtakes_a_failed_message(seed: int) -> None:
    rng = random.Random(seed)
    strict = seed % 4 == 0
    keys = [rng.choice([b"a", b"b", b"c"]) for _ in range(MESSAGES)]
    hub = OrderedHub(keys, strict, rng, dead_after=rng.choice([1, 100]))
    sub = Subscription(1, {"patterns": ["#"], "group": "g", "order": "strict" if strict else "key"})
    rids = itertools.count(1)
    to_hub: deque[Any] = deque()
    handled: list[int] = []
    begun: list[tuple[Batch, int]] = []
    ended: set[int] = set()  # acked by us, or dead at the hub

    def hear() -> None:
        message = hub.out.popleft()
        if isinstance(message, m.Deliver):
            assert sub.deliver(message, 0.0)
        elif isinstance(message, m.Ok):
            sub.answered(message.rid, message.fields)
        elif isinstance(message, m.Notice):
            sub.take_back(message.fields["ordinals"])

    def handle(batch: Batch, index: int) -> None:
        message = batch.message(index)
        if message.lost:
            return
        key = b"*" if strict else keys[message.seq - 1]
        earlier = [s for s in range(1, message.seq) if strict or keys[s - 1] == key]
        assert all(s in ended or s in hub.done for s in earlier), f"seq {message.seq} overtook, seed {seed}"
        handled.append(message.seq)
        if rng.random() < 0.2:
            rng.choice([message.retry, message.release])()
        else:
            ended.add(message.seq)
            message.ack()

    for _ in range(200_000):
        if len(set(hub.done)) == MESSAGES:
            break
        step = rng.random()
        if step < 0.3:
            hub.send(min(hub.room, rng.randint(1, 8)))
            if rng.random() < 0.5:
                hub.commit()
        elif step < 0.55 and hub.out:
            hear()
        elif step < 0.7:
            to_hub.extend(s for s in sub.collect(lambda: next(rids)) if isinstance(s, m.Settle))
        elif step < 0.85 and to_hub:
            hub.settle(to_hub.popleft())
        elif begun:
            handle(*begun.pop(0))
        elif isinstance(batch := sub.take(), Batch):
            begun = [(batch, index) for index in range(batch.count)]
    assert sorted(set(hub.done)) == list(range(1, MESSAGES + 1)), f"seed {seed}"
    assert len(hub.done) == MESSAGES, "nothing is settled twice"
