"""A journal with messages, and the list of them."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from fabric import event_block as events
from fabric.journal.journal import Journal
from fabric.journal.limits import Limits
from fabric.records import Append, Record, SaveEvents
from fabric_protocol import block
from fabric_protocol.messages import Happening

T0: Final = 1_700_000_000_000_000  # 2023-11-14 22:13:20 UTC
SECOND: Final = 1_000_000
TOPICS: Final = ("orders.new", "orders.paid", "orders.eu.new", "audit.login", "$dlq.workers")


class Sent(NamedTuple):
    """A message as it was published."""

    seq: int
    topic: str
    ts_us: int
    key: bytes | None
    headers: dict[str, str | bytes]
    payload: bytes


class Author:
    """Writes blocks of many kinds: with one topic or several, with and without keys, ids and headers."""

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        self.path = path
        self.sent: list[Sent] = []
        self._limits = limits or Limits()
        self._blocks = 0

    def write(self, blocks: int = 12, messages: int = 50) -> "Author":
        """Add blocks, one a second, and let go of the journal again."""
        journal = Journal.open(self.path, self._limits)
        try:
            self.write_to(journal, blocks, messages)
        finally:
            journal.close()
        return self

    def write_to(self, journal: Journal, blocks: int, messages: int = 50) -> None:
        for _ in range(blocks):
            journal.commit(self._block(journal.last_seq + 1, messages))

    def _block(self, base_seq: int, count: int) -> Sequence[Record]:
        number, self._blocks = self._blocks, self._blocks + 1
        ts_us = T0 + number * SECOND
        topics = [TOPICS[i % len(TOPICS)] if number % 3 else TOPICS[number % len(TOPICS)] for i in range(count)]
        keys = [b"" if i % 3 == 0 else b"key-%d" % (i % 7) for i in range(count)] if number % 2 else None
        ids = [b"id-%d" % (base_seq + i) for i in range(count)] if number % 4 == 1 else None
        headers: list[dict[str, str | bytes] | None] | None = None
        if number % 5 != 2:
            headers = [
                None if i % 4 == 0 else {"trace": f"é{base_seq + i}", "bin": bytes([i % 256, 255])}
                for i in range(count)
            ]
        payloads = [b"" if i % 11 == 0 else b"payload %d " % (base_seq + i) * (i % 5) for i in range(count)]
        raw = block.encode(
            topics[0] if number % 3 == 0 else topics,
            payloads,
            keys=keys,
            ids=ids,
            headers=headers,
            priority=number % 10,
        )
        self.sent += [
            Sent(
                base_seq + i,
                topics[i],
                ts_us,
                (keys[i] if keys else b"") or None,
                (headers[i] if headers else None) or {},
                payloads[i],
            )
            for i in range(count)
        ]
        return [Append(block.stamp(raw, base_seq, ts_us))]


def write_events(path: Path, count: int, first: int = 1) -> list[events.Event]:
    """Delivery events in blocks of ten."""
    written = [
        events.Event(
            number=first + i,
            ts_us=T0 + (first + i) * SECOND,
            kind=Happening(i % len(Happening)),
            group=f"group-{i % 3}",
            client="" if i % 4 == 0 else f"client-{i % 5}",
            attempt=i % 6,
            first_seq=i + 1,
            last_seq=i + 1 + i % 2,
        )
        for i in range(count)
    ]
    journal = Journal.open(path)
    try:
        for at in range(0, count, 10):
            some = written[at : at + 10]
            journal.commit([SaveEvents(first + at, len(some), events.encode(first + at, some))])
    finally:
        journal.close()
    return written


def damage(file: Path, needle: bytes) -> None:
    """Flip a bit of the first place in a file that holds some bytes."""
    data = bytearray(file.read_bytes())
    at = data.index(needle)
    data[at] ^= 1
    file.write_bytes(data)


def select(sent: Iterable[Sent], *topics: str) -> list[int]:
    return [message.seq for message in sent if message.topic in topics]
