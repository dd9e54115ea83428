"""What dead letters look like, which of them there are, and how they come back."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from fabric.records import SaveSetting
from fabric.router.dead_letters import blocks as letters
from fabric.router.dead_letters import index as deadletters
from fabric.router.dead_letters.index import DeadLetters, DeadLetterSet
from fabric_protocol.block import BLOCK_BYTES_MAX, SPARSE, Block, encode
from fabric_protocol.block_parts import pick
from tests.router.world import World
from tests.seeds import seeded


class Death(NamedTuple):
    first: int
    last: int
    attempts: int = 5
    reason: str = "retries spent"
    error: str = ""


def stamped(raw: bytes, seq: int, ts_us: int = 77) -> Block:
    return Block(raw).stamped(seq, ts_us)


def payload_for(block: Block, death: Death, group: str = "g") -> Block:
    (raw,) = letters.dead_letters(group, death, block, death.first, death.last)  # type: ignore[arg-type]
    letter = Block(raw)
    letter.verify()
    return letter


# The bytes.


def test_a_letter_keeps_the_message_and_says_what_happened() -> None:
    block = stamped(
        encode(["a.x", "a.y"], [b"1", b"2"], keys=[b"k", b"l"], ids=[b"i", b"j"], headers=[{"h": "v"}, None]), 10
    )
    letter = payload_for(block, Death(10, 11, 3, "rejected", "no such account"))
    assert letter.topics == ("$dlq.g",)
    assert letter.payloads() == [b"1", b"2"]
    assert letter.keys() == [b"k", b"l"]
    assert letter.ids() == [b"i", b"j"]
    assert letter.headers()[0] == {
        "h": "v",
        "fabric-reason": "rejected",
        "fabric-error": "no such account",
        "fabric-group": "g",
        "fabric-topic": "a.x",
        "fabric-seq": "10",
        "fabric-attempts": "3",
        "fabric-time": "77",
        "fabric-hops": "1",
    }
    assert letter.headers()[1]["fabric-topic"] == "a.y"
    assert letter.headers()[1]["fabric-seq"] == "11"


def test_a_letter_without_an_error_has_no_header_for_one() -> None:
    assert "fabric-error" not in payload_for(stamped(encode("a", [b"1"]), 1), Death(1, 1)).headers()[0]


def test_a_letter_does_not_expire() -> None:
    assert payload_for(stamped(encode("a", [b"1"], expires_us=5, priority=7), 1), Death(1, 1)).expires_us == 0
    assert payload_for(stamped(encode("a", [b"1"], expires_us=5, priority=7), 1), Death(1, 1)).priority == 7


def test_many_letters_are_several_blocks() -> None:
    block = stamped(encode("a", [b"%d" % i for i in range(600)]), 1)
    made = [Block(raw) for raw in letters.dead_letters("g", Death(2, 600), block, 2, 600)]  # type: ignore[arg-type]
    assert [part.count for part in made] == [256, 256, 87]
    assert [p for part in made for p in part.payloads()] == [b"%d" % i for i in range(1, 600)]
    assert made[2].headers()[-1]["fabric-seq"] == "600"


def test_a_letter_costs_the_same_whatever_else_is_in_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ACK may reject some thousand messages of one block, each by a row of its own."""
    count = 2000
    headers: list[dict[str, str | bytes]] = [{f"name {i % 50}": f"value {i}", "other": b"%d" % i} for i in range(count)]
    topics = [f"t.{i % 7}" for i in range(count)]
    numbers = [b"%d" % i for i in range(count)]
    block = stamped(encode(topics, numbers, keys=numbers, ids=numbers, headers=headers), 1)
    decoded = 0

    def counted(method: Callable[[Block], Any]) -> Callable[[Block], Any]:
        def call(some: Block) -> Any:
            nonlocal decoded
            decoded += some.count
            return method(some)

        return call

    for name in ("topic_names", "headers", "payloads", "keys", "ids"):
        monkeypatch.setattr(Block, name, counted(getattr(Block, name)))
    made = [payload_for(block, Death(seq, seq)) for seq in range(1, count + 1, 100)]
    assert decoded == 5 * len(made)
    for letter, at in zip(made, range(0, count, 100), strict=True):
        assert letter.payloads() == letter.keys() == letter.ids() == [numbers[at]]
        assert letter.headers()[0].items() >= headers[at].items()
        assert letter.headers()[0]["fabric-topic"] == topics[at]


def test_a_message_that_fills_a_block_becomes_a_letter_without_a_body() -> None:
    block = stamped(encode("a", [bytes(BLOCK_BYTES_MAX - 100)], keys=[b"k"]), 1)
    letter = payload_for(block, Death(1, 1))
    assert letter.payloads() == [b""]
    assert letter.keys() == [b"k"]
    assert "fabric-omitted" in letter.headers()[0]


def redriven(letter: Block, *places: int) -> Block:
    chosen = places or range(letter.count)
    return Block(letters.redriven("g", letter, chosen, [letter.headers()[at] for at in chosen]))


def test_a_letter_is_redriven_and_revived() -> None:
    source = encode(["a.x", "a.y"], [b"1", b"2"], keys=[b"k", b"l"], ids=[b"i", b"j"], headers=[{"h": "v"}, None])
    letter = payload_for(stamped(source, 10), Death(10, 11, 3, "rejected", "why")).stamped(20, 88)
    again = redriven(letter).stamped(30, 99)
    assert again.topics == ("$redrive.g",)
    alive = Block(letters.original(again.raw))
    alive.verify()
    alive.verify_stamp()
    assert (alive.base_seq, alive.ts_us, alive.flags & SPARSE) == (30, 99, 0)
    assert alive.topic_names() == ["a.x", "a.y"]
    assert alive.headers() == [{"h": "v", "fabric-redriven": "1"}, {"fabric-redriven": "1"}]
    assert (alive.payloads(), alive.keys(), alive.ids()) == ([b"1", b"2"], [b"k", b"l"], [b"i", b"j"])


def test_only_redriven_messages_of_a_block_are_revived_and_picked_ones_stay_picked() -> None:
    letter = payload_for(stamped(encode("a.x", [b"1"], headers=[{"h": "v"}]), 10), Death(10, 10))
    hidden = letters.redriven("g", letter.stamped(20, 1), [0], letter.headers())
    mixed = encode(
        ["b", "$redrive.g", "c", "$redrive.g"],
        [b"b", b"1", b"c", b"1"],
        headers=[{"fabric-topic": "mine"}, Block(hidden).headers()[0], None, Block(hidden).headers()[0]],
    )
    picked = pick(stamped(mixed, 40), [(0, 2), (3, 4)])
    alive = Block(letters.original(picked))
    alive.verify()
    alive.verify_stamp()
    assert alive.flags & SPARSE
    assert alive.topic_names() == ["b", "a.x", "a.x"]
    assert alive.headers()[0] == {"fabric-topic": "mine"}
    assert alive.headers()[1] == {"h": "v", "fabric-redriven": "1"}


def test_a_block_without_redriven_messages_is_passed_on_as_it_is() -> None:
    raw = stamped(encode("a", [b"1"]), 3).raw
    assert letters.original(raw) is raw


def test_a_redriven_message_that_dies_again_is_still_the_one_that_was_published() -> None:
    block, hops = stamped(encode("a.x", [b"1"], headers=[{"h": "v"}]), 10, 5), []
    for seq in (20, 30, 40):
        letter = payload_for(block, Death(block.base_seq, block.base_seq, 5, "retries spent")).stamped(seq, seq)
        (headers,) = letter.headers()
        assert (headers["fabric-topic"], headers["fabric-seq"], headers["fabric-time"]) == ("a.x", "10", "5")
        hops.append(headers["fabric-hops"])
        block = redriven(letter).stamped(seq + 5, seq + 5)
    assert hops == ["1", "2", "3"]
    assert Block(letters.original(block.raw)).headers() == [{"h": "v", "fabric-redriven": "3"}]


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "9" * 40, "²", b"7"])
def test_a_count_that_somebody_made_up_is_no_count(value: str | bytes) -> None:
    assert letters.number({"fabric-hops": value}, "fabric-hops") == 0


# Which there are.


def test_a_box_against_a_set() -> None:
    chance = seeded("boxes")
    for _ in range(20):
        box, twin, seq, rows = DeadLetterSet("g"), set[int](), 1, dict[str, bytes]()
        for _ in range(chance.randrange(2000)):
            if chance.random() < 0.6 or not twin:
                count = chance.choice((1, 1, 1, 2, 50))
                box.add(seq, count)
                twin |= set(range(seq, seq + count))
                seq += count + chance.choice((0, 0, 1, 7))
            elif chance.random() < 0.98:
                gone = chance.choice(sorted(twin)[:50] if chance.random() < 0.5 else sorted(twin))
                last = gone
                while last + 1 in twin and chance.random() < 0.5:
                    last += 1
                box.remove(gone, last)
                twin -= set(range(gone, last + 1))
            else:
                floor = chance.randrange(1, seq)
                box.trim(floor)
                twin = {s for s in twin if s >= floor}
            if chance.random() < 0.3:
                for row in box.rows():
                    assert isinstance(row, SaveSetting)
                    rows[row.name] = row.value
        for row in box.rows():
            assert isinstance(row, SaveSetting)
            rows[row.name] = row.value
        saved = [SaveSetting(name, value) for name, value in rows.items() if value is not None]
        restored = DeadLetters(saved, 1).by_group.get("g", DeadLetterSet("g"))
        assert all(len(s.firsts) <= 2 * deadletters.RUNS_PER_SEGMENT for s in box._segments)
        for one in (box, restored):
            assert seqs(one, 0, seq) == sorted(twin)
            after, horizon = chance.randrange(seq), chance.randrange(seq)
            assert seqs(one, after, horizon) == sorted(s for s in twin if after < s <= horizon)
            assert one.count(horizon) == len([s for s in twin if s <= horizon])
            assert one.size == len(twin)
            assert all((s in one) == (s in twin) for s in range(seq + 2))


def seqs(box: DeadLetterSet, after: int, horizon: int) -> list[int]:
    return [seq for first, last in box.runs(after, horizon) for seq in range(first, last + 1)]


def test_letters_that_follow_each_other_are_removed_together_across_segments() -> None:
    box = DeadLetterSet("g")
    for i in range(deadletters.RUNS_PER_SEGMENT):
        box.add(1 + 2 * i, 1)
    first = 2 * deadletters.RUNS_PER_SEGMENT - 1
    box.add(first + 1, 5)  # the segment is full, so this is another one
    assert len(box._segments) == 2
    box.remove(first, first + 3)
    assert seqs(box, first - 1, 1 << 40) == [first + 4, first + 5]


def test_a_death_rewrites_one_short_row_however_many_letters_there_are() -> None:
    box = DeadLetterSet("g")
    for i in range(10_000):
        box.add(1 + 2 * i, 1)
    list(box.rows())
    box.add(50_000, 1)
    (row,) = box.rows()
    assert isinstance(row, SaveSetting)
    assert len(row.value) <= 16 * deadletters.RUNS_PER_SEGMENT


def test_letters_of_several_groups_are_told_apart_whatever_their_names() -> None:
    dead = DeadLetters((), 1)
    for at, group in enumerate(("a", "a:1", "a.b")):
        dead.appended(Block(encode(f"$dlq.{group}", [b"x"])), 10 + at, World().router.turn)
    dead.appended(Block(encode("$redrive.a", [b"x"])), 20, World().router.turn)
    saved = [row for row in dead.rows() if isinstance(row, SaveSetting)]
    again = DeadLetters(saved, 1)
    assert {name: seqs(box, 0, 99) for name, box in again.by_group.items()} == {"a": [10], "a:1": [11], "a.b": [12]}
    assert again.holds("$dlq.a:1", 11)
    assert not again.holds("$dlq.a", 11)
    assert not again.holds("$dlq.zz", 11)


def test_what_retention_took_is_not_restored() -> None:
    dead = DeadLetters((), 1)
    dead.appended(Block(encode("$dlq.g", [b"x"] * 10)), 10, World().router.turn)
    saved = [row for row in dead.rows() if isinstance(row, SaveSetting)]
    assert seqs(DeadLetters(saved, 15).by_group["g"], 0, 99) == [15, 16, 17, 18, 19]
