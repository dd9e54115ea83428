"""The checker compares the histories of all clients with the journal at the end.

It does not depend on how the hub works. It has the confirmations that each client got, and the promises; an outcome
that no client was told may be either.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tests.crash.history import History, body_of, digest

Name = tuple[str, int]  # (producer, number)
Groups = Mapping[str, Callable[[str], bool]]  # which topics each group wants


class Stored(NamedTuple):
    """A message of the journal."""

    seq: int
    name: Name
    digest: int
    topic: str


class Letter(NamedTuple):
    """A dead letter of the journal."""

    group: str
    seq: int  # of the message that was given up


class Found(NamedTuple):
    """What was in the journal at the end."""

    first_seqs: Sequence[int]  # of every block, in order, with counts below: the bare numbering
    counts: Sequence[int]
    messages: Sequence[Stored]
    letters: Sequence[Letter]


class Violation(NamedTuple):
    kind: str
    text: str


class Totals(NamedTuple):
    confirmed: int
    delivered: int
    redelivered: int
    settled: int
    letters: int


def check(histories: Sequence[History], found: Found, groups: Groups) -> list[Violation]:
    """Everything that should not be."""
    producers = [h for h in histories if h.about["role"] == "producer"]
    consumers = [h for h in histories if h.about["role"] == "consumer"]
    by_seq = {stored.seq: stored for stored in found.messages}
    return [
        *_numbering(found),
        *_journal(found),
        *_publishes(producers, found),
        *_deliveries(consumers, by_seq),
        *_settlements(consumers),
        *_again(consumers),
        *_unseen(consumers, found, groups),
        *_letters(consumers, found),
    ]


def totals(histories: Sequence[History], found: Found) -> Totals:
    ok = got = again = settled = 0
    for history in histories:
        for event in history.events:
            if event[0] == "ok":
                ok += event[2] - event[1] + 1
            elif event[0] == "got":
                got += len(event[1])
                again += sum(row[4] > 1 for row in event[1])
            elif event[0] in ("acked", "rejected"):
                settled += len(event[1])
    return Totals(ok, got, again, settled, len(found.letters))


def _numbering(found: Found) -> Iterator[Violation]:
    expected = 1
    for first, count in zip(found.first_seqs, found.counts, strict=True):
        if first != expected:
            yield Violation("gap", f"a block begins at seq {first} and not at {expected}")
        expected = first + count


def _journal(found: Found) -> Iterator[Violation]:
    times = Counter(stored.name for stored in found.messages)
    for name, count in times.items():
        if count > 1:
            seqs = [stored.seq for stored in found.messages if stored.name == name]
            yield Violation("stored twice", f"{name} has seqs {seqs}")
    for stored in found.messages:
        if stored.digest != digest(body_of(*stored.name)):
            yield Violation("wrong payload", f"seq {stored.seq} is not what {stored.name} published")
    by_producer: dict[str, list[int]] = defaultdict(list)
    for stored in found.messages:
        by_producer[stored.name[0]].append(stored.name[1])
    for producer, numbers in by_producer.items():
        for before, after in pairwise(numbers):
            if after < before:
                yield Violation("reordered", f"{producer}: {after} comes after {before}")
        missing = sorted(set(range(1, max(numbers) + 1)) - set(numbers))
        if missing:
            yield Violation("hole", f"{producer}: {missing[:5]} are missing, {len(missing)} in all")


def _publishes(producers: Sequence[History], found: Found) -> Iterator[Violation]:
    seq_of = {stored.name: stored.seq for stored in found.messages}
    asked: dict[str, int] = defaultdict(int)  # the highest number that was ever published
    confirmed: dict[str, int] = defaultdict(int)
    for history in producers:
        producer = history.about["name"]
        for event in history.events:
            if event[0] == "pub":
                asked[producer] = max(asked[producer], event[2])
            elif event[0] == "ok":
                _, first, last, seq = event
                confirmed[producer] = max(confirmed[producer], last)
                for number in range(first, last + 1):
                    stored = seq_of.get((producer, number))
                    if stored is None:
                        yield Violation("lost", f"{producer} {number} was confirmed and is not in the journal")
                    elif seq and stored != seq + number - first:
                        yield Violation(
                            "two seqs",
                            f"{producer} {number} was confirmed at {seq + number - first}, it is at {stored}",
                        )
            elif event[0] == "resume":
                if event[1] < confirmed[producer]:
                    yield Violation(
                        "forgotten", f"{producer}: {confirmed[producer]} was confirmed, the hub knows {event[1]}"
                    )
                if event[1] > asked[producer]:
                    yield Violation("invented", f"{producer}: {event[1]} was never published, but {asked[producer]}")
                confirmed[producer] = max(confirmed[producer], event[1])
                if event[1] and (producer, event[1]) not in seq_of:
                    yield Violation("lost", f"{producer} {event[1]}: the hub said that it has it, and it has not")
    for message in found.messages:
        if message.name[1] > asked[message.name[0]]:
            yield Violation("invented", f"{message.name} at seq {message.seq} was never published")


def _deliveries(consumers: Sequence[History], by_seq: dict[int, Stored]) -> Iterator[Violation]:
    for history in consumers:
        for event in history.events:
            if event[0] != "got":
                continue
            for seq, producer, number, crc, _ in event[1]:
                stored = by_seq.get(seq)
                if stored is None or stored.name != (producer, number):
                    is_there = stored.name if stored else "nothing"
                    yield Violation(
                        "phantom", f"{history.about['group']} got {producer} {number} as seq {seq}: there is {is_there}"
                    )
                elif crc != stored.digest:
                    yield Violation("wrong payload", f"{history.about['group']} got wrong bytes for seq {seq}")


def _settlements(consumers: Sequence[History]) -> Iterator[Violation]:
    """A verdict is confirmed only while its lease stands, so a second one means a delivery after the first."""
    settled: Counter[tuple[str, int]] = Counter()
    for history in consumers:
        for event in history.events:
            if event[0] in ("acked", "rejected"):
                settled.update((history.about["group"], seq) for seq in event[1])
    for (group, seq), times in settled.items():
        if times > 1:
            yield Violation("settled twice", f"{group}: seq {seq} was settled {times} times")


def _again(consumers: Sequence[History]) -> Iterator[Violation]:
    """Within one process, and from one process of a lone member to the next, the order of the lines is exact."""
    settled: dict[str, set[int]] = defaultdict(set)
    for history in consumers:
        group = history.about["group"]
        known = settled[group] if history.about["alone"] else set()
        for event in history.events:
            if event[0] == "got":
                for row in event[1]:
                    if row[0] in known:
                        yield Violation("again", f"{group}: seq {row[0]} came again after its confirmed verdict")
            elif event[0] in ("acked", "rejected"):
                known.update(event[1])


def _unseen(consumers: Sequence[History], found: Found, groups: Groups) -> Iterator[Violation]:
    seen: dict[str, set[int]] = {group: set() for group in groups}
    for history in consumers:
        for event in history.events:
            if event[0] == "got":
                seen[history.about["group"]].update(row[0] for row in event[1])
    for group, seqs in seen.items():
        unseen = [m.seq for m in found.messages if m.seq not in seqs and groups[group](m.topic)]
        if unseen:
            yield Violation("unseen", f"{group} never got {unseen[:5]}, {len(unseen)} in all")
        unwanted = [m.seq for m in found.messages if m.seq in seqs and not groups[group](m.topic)]
        if unwanted:
            yield Violation("unwanted", f"{group} got {unwanted[:5]}, {len(unwanted)} in all")


def _letters(consumers: Sequence[History], found: Found) -> Iterator[Violation]:
    for letter, times in Counter(found.letters).items():
        if times > 1:
            yield Violation("letter twice", f"{letter.group}: seq {letter.seq} has {times} dead letters")
    there = set(found.letters)
    for history in consumers:
        group = history.about["group"]
        for event in history.events:
            if event[0] == "rejected":
                for seq in event[1]:
                    if Letter(group, seq) not in there:
                        yield Violation("letter lost", f"{group}: seq {seq} was rejected and has no dead letter")
            elif event[0] == "acked":
                for seq in event[1]:
                    if Letter(group, seq) in there:
                        yield Violation("letter and ack", f"{group}: seq {seq} was acked and has a dead letter")
