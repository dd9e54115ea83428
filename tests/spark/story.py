"""A journal whose story is known: twelve messages, two groups, and what became of each message.

A third group, mail, has left no events: it has settled all but 3 and, by a priority's own cursor, 12.

seq   topic    time  key    billing (acks)                          audit (settles when sent)
1-4   orders   0 s   a b    delivered at 1 s, acked at 2 s          delivered at 10 s
5-8   orders   10 s  a b    delivered at 11 s; 5 fails and comes    –
                            again at 20 s, acked at 30 s; 6-8
                            acked at 12 s
9-10  letters  20 s         $dlq.billing: two dead letters          –
11-12 orders   60 s  a b    not delivered                           –
"""

from pathlib import Path
from typing import Final

from fabric import event_block as events
from fabric.journal.journal import Journal
from fabric.records import Append, GroupSettings, Record, SaveEvents, SaveGroup
from fabric.snapshot import create
from fabric_protocol import block
from fabric_protocol.messages import Happening

T0: Final = 1_700_000_000_000_000
SECOND: Final = 1_000_000


def told(number: int, second: float, kind: Happening, group: str, attempt: int, first: int, last: int) -> events.Event:
    return events.Event(number, T0 + int(second * SECOND), kind, group, "worker-1", attempt, first, last)


EVENTS: Final = [
    told(1, 1, Happening.DELIVER, "billing", 1, 1, 4),
    told(2, 2, Happening.ACK, "billing", 1, 1, 4),
    told(3, 10, Happening.DELIVER, "audit", 1, 1, 4),
    told(4, 11, Happening.DELIVER, "billing", 1, 5, 8),
    told(5, 12, Happening.ACK, "billing", 1, 6, 8),
    told(6, 15, Happening.RETRY, "billing", 1, 5, 5),
    told(7, 20, Happening.DELIVER, "billing", 2, 5, 5),
    told(8, 30, Happening.ACK, "billing", 2, 5, 5),
]


def _append(seq: int, second: int, topic: str, payloads: list[bytes], **more: object) -> Record:
    raw = block.encode(topic, payloads, **more)  # type: ignore[arg-type]
    return Append(block.stamp(raw, seq, T0 + second * SECOND))


def write_journal(path: Path) -> None:
    letter = {
        "fabric-reason": "attempts",
        "fabric-topic": "orders",
        "fabric-group": "billing",
        "fabric-seq": "2",
        "fabric-attempts": "5",
        "fabric-hops": "1",
        "fabric-time": str(T0),
        "fabric-error": "boom",
        "trace": "t1",
    }
    keys = [b"a", b"b", b"a", b"b"]
    journal = Journal.open(path)
    try:
        journal.commit([_append(1, 0, "orders", [b"p1", b"p2", b"p3", b"p4"], keys=keys)])
        journal.commit([_append(5, 10, "orders", [b"p1", b"p2", b"longer", b"p8"], keys=keys)])
        journal.commit([_append(9, 20, "$dlq.billing", [b"p2", b"p2"], headers=[letter, letter])])
        journal.commit([_append(11, 60, "orders", [b"x", b""], keys=keys[:2])])
        for event in EVENTS:
            journal.commit([SaveEvents(event.number, 1, events.encode(event.number, [event]))])
        journal.commit([
            SaveGroup("billing", GroupSettings(patterns=("orders",)), cursor=11, open=()),
            SaveGroup("audit", GroupSettings(patterns=("#",), ack="auto"), cursor=5, open=()),
            SaveGroup("mail", GroupSettings(patterns=("mail.#", "orders")), 13, open=((3, 3),), lanes=((4, 12),)),
        ])  # fmt: skip
    finally:
        journal.close()


def write_snapshot(folder: Path, name: str = "snapshot") -> Path:
    write_journal(folder / "journal")
    create(folder / "journal", folder / name)
    return folder / name
