"""Idempotency keys against a plain dictionary: random publishes, times, commits, crashes."""

import pytest

from fabric.records import TopicSettings
from fabric_protocol.block import Block, encode
from tests.router.ids_disk import HOUR_MS, Disk, make_small
from tests.seeds import seeded


@pytest.mark.parametrize("run", range(12))
def test_as_a_dictionary_would(monkeypatch: pytest.MonkeyPatch, run: int) -> None:
    make_small(monkeypatch)
    rng = seeded(f"ids, run {run}")
    disk = Disk()
    settled: set[int] = set()
    disk.settings = {
        "slide": TopicSettings(dedupe="slide", dedupe_ms=7_000),
        "acked": TopicSettings(dedupe="until_ack", dedupe_ms=30_000),
        "long": TopicSettings(dedupe_ms=3 * HOUR_MS),
        "ever": TopicSettings(dedupe_ms=0),
        "plain": TopicSettings(dedupe_ms=20_000),
    }
    twin = Twin(disk, settled)
    for _ in range(rng.choice((60, 400))):
        what = rng.random()
        if what < 0.6:
            topic = rng.choice(list(disk.settings))
            names = [f"id{rng.randrange(rng.choice((9, 300)))}" for _ in range(rng.choice((1, 2, 8, 40)))]
            raw = [name.encode() for name in names]
            checked = disk.ids.check(Block(encode(topic, raw, ids=raw)))
            expected = twin.put(topic, names)
            assert checked.rows(disk.seq) == expected
            disk.ids.remember(checked, disk.seq)
            disk.seq += len(names) - len(expected)
        elif what < 0.75:
            disk.wait(rng.choice((1, 1000, 500_000, 6_999_999, 7_000_000, 20_000_000, 3 * HOUR_MS * 1000)))
        elif what < 0.8 and disk.on_disk:
            settled.add(rng.randint(1, disk.on_disk))
        elif what < 0.85:
            disk.ids.sweep()
        elif what < 0.87:
            topic = rng.choice(list(disk.settings))
            disk.ids.forget(topic, disk.seq)
            twin.forget(topic)
        elif what < 0.97:
            disk.turn()
            twin.committed()
        else:
            disk.crash()
            twin.crashed()
        disk.ids._is_over = lambda topic, seq: seq in settled


class Twin:
    """(topic, id) -> (seq, until), and a copy of it as of the last commit."""

    def __init__(self, disk: Disk, settled: set[int]) -> None:
        self.disk = disk
        self.settled = settled
        self.known: dict[tuple[str, str], tuple[int, int]] = {}
        self.safe = dict(self.known)

    def put(self, topic: str, names: list[str]) -> tuple[tuple[int, int], ...]:
        now_us, seq, rows = self.disk.now_us, self.disk.seq, []
        settings = self.disk.settings[topic]
        until = now_us + settings.dedupe_ms * 1000 if settings.dedupe_ms else 1 << 62
        mine: set[str] = set()
        for index, name in enumerate(names):
            first, old = self.known.get((topic, name), (0, 0))
            if name in mine or (now_us < old and not (settings.dedupe == "until_ack" and first in self.settled)):
                rows.append((index, first))
                if settings.dedupe == "slide":
                    self.known[topic, name] = first, until
            else:
                self.known[topic, name] = seq, until
                mine.add(name)
                seq += 1
        return tuple(rows)

    def forget(self, topic: str) -> None:
        self.known = {key: entry for key, entry in self.known.items() if key[0] != topic}

    def committed(self) -> None:
        self.safe = dict(self.known)

    def crashed(self) -> None:
        self.known = dict(self.safe)
