"""A producer or a consumer that may be killed: `python -m tests.crash.worker '{"role": "producer", …}'`.

Both are ordinary users of the client library, which reconnects when the hub was killed. After a kill of their own they
go on by their history; the producer also by the last number that the hub has for its name.
"""

import json
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

import fabric_client
from fabric_client import Batch, Client, FabricError
from fabric_client.core.subscription import Subscription
from tests.crash.history import Log, body_of, digest, name_of
from tests.patience import PATIENCE_S

TOPICS: Final = 3
PAUSE_S: Final = 0.02  # between publishes, so that consumers can keep up
FLUSH_EVERY: Final = 20  # so many deliveries are confirmed together, at most
GAVE_UP: Final = 3  # exit code: a call took longer than that
REFUSED: Final = 4
REJECT_EVERY: Final = 25


def topic_of(producer: str, number: int) -> str:
    return f"crash.{producer}.{number % TOPICS}"


class Producer:
    def __init__(self, fab: Client, log: Log, name: str, rng: random.Random) -> None:
        self._fab, self._log, self._name, self._rng = fab, log, name, rng
        self._stopping = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def run(self) -> None:
        stored = self._fab.hub["producer"]["last_pseq"]
        self._log.say("resume", stored)
        number = stored + 1
        while not self._stopping:
            way, count = self._rng.choice(((self._one, 1), (self._many, 20), (self._many, 40), (self._stream, 60)))
            last = number + self._rng.randint(1, count) - 1
            self._log.say("pub", number, last)
            seq = way(number, last)
            self._log.say("ok", number, last, seq)
            number = last + 1
            time.sleep(self._rng.uniform(0, PAUSE_S))

    def _one(self, first: int, last: int) -> int:
        topic, body = topic_of(self._name, first), body_of(self._name, first)
        return self._fab.publish(topic, body, timeout=PATIENCE_S).seq

    def _many(self, first: int, last: int) -> int:
        topic = topic_of(self._name, first)
        bodies = [body_of(self._name, number) for number in range(first, last + 1)]
        return self._fab.publish_many(topic, bodies, timeout=PATIENCE_S).seq

    def _stream(self, first: int, last: int) -> int:
        for number in range(first, last + 1):
            self._fab.publish_nowait(topic_of(self._name, number), body_of(self._name, number))
        self._fab.flush(PATIENCE_S)
        return 0  # a flush does not tell seqs


class Consumer:
    def __init__(self, fab: Client, log: Log, about: dict[str, Any], rng: random.Random) -> None:
        self._fab, self._log, self._rng = fab, log, rng
        self._group, self._picky = about["group"], about["picky"]
        self._given: list[tuple[int, list[int], list[int]]] = []  # verdicts without a confirmation: generation, seqs
        self._stale = 0
        self._batches = fab.consume_batches(
            *about["patterns"], group=self._group, start="first", attempts=1000, prefetch=rng.choice((50, 400, 4000))
        )

    def run(self) -> None:
        for batch in self._batches:
            names = [name_of(body) for body in batch.payloads]
            seqs = [batch.seq_of(index) for index in range(batch.count)]
            rows = zip(seqs, names, batch.payloads, strict=True)
            self._log.say("got", [[seq, *name, digest(body), batch.attempt] for seq, name, body in rows])
            self._settle(batch, seqs, [number for _, number in names])

    def _settle(self, batch: Batch, seqs: list[int], numbers: list[int]) -> None:
        """Give a verdict on every message, and now and then wait until the hub has confirmed them."""
        chance = self._rng.random()
        if chance < 0.05:
            batch.retry()
            return
        if chance < 0.1:
            batch.release()
            return
        acked, rejected = seqs, list[int]()
        if chance < 0.2 and len(seqs) > 1:  # half of it, and the rest goes back
            acked = seqs[::2]
            for message in list(batch)[::2]:
                message.ack()
            batch.retry(0.05)
        elif self._picky:
            rejected = [seq for seq, number in zip(seqs, numbers, strict=True) if number % REJECT_EVERY == 0]
            acked = [seq for seq in seqs if seq not in rejected]
            for message in batch:
                if message.seq in rejected:
                    message.reject("not to my taste")
        self._log.say("settle", acked, rejected)
        self._given.append((batch.generation, acked, rejected))
        batch.ack()
        if len(self._given) >= self._rng.randint(1, FLUSH_EVERY):
            self._confirm(batch.subscription)

    def _confirm(self, sub: Subscription) -> None:
        confirmed = True
        try:
            self._fab.flush(PATIENCE_S)
        except fabric_client.VerdictsUnconfirmed:
            confirmed = False
        # A verdict may come too late. Only what was neither void nor stale is settled for sure.
        in_time, self._stale = sub.stale == self._stale, sub.stale
        for generation, acked, rejected in self._given:
            sure = confirmed and in_time and generation == sub.generation
            self._log.say("acked" if sure else "unsure", acked)
            if rejected:
                self._log.say("rejected" if sure else "unsure", rejected)
        self._given.clear()


def main(about: dict[str, Any]) -> int:
    rng = random.Random(f"{about['seed']}-{about['run']}")
    log = Log(Path(about["log"]), **about)
    name = about["name"]
    try:
        with fabric_client.connect(about["url"], name=name, producer=name, timeout=PATIENCE_S) as fab:
            if about["role"] == "producer":
                Producer(fab, log, name, rng).run()
            else:
                Consumer(fab, log, about, rng).run()
    except (fabric_client.Timeout, fabric_client.ConnectionLost) as error:
        log.say("unknown", repr(error))
        return GAVE_UP
    except FabricError as error:
        log.say("refused", repr(error))
        print(repr(error), error.hint, file=sys.stderr)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
