"""Finding blocks by topic and time, against a plain list."""

import random
from pathlib import Path

import pytest

from fabric.journal.blocks import Damaged, blocks_from
from fabric.journal.journal import Journal, Limits
from fabric.journal.reader import Reader
from fabric.journal.rows import seq_key
from fabric.journal.tables.chunks import LISTED_MAX, NAMES_MAX, Chunk, OpenChunk, Wanted
from fabric_protocol.block import Block
from tests.journal.sample import Pen, Row, rows_in, rows_of
from tests.seeds import seeded

TOPICS = ["a.b", "a.c", "b.b", "rare", "c.d.e"]


def fill(journal: Journal, pen: Pen, rng: random.Random, turns: int) -> None:
    """Turns of a few blocks, some of one topic and some of many, some of the same time."""
    for _ in range(turns):
        turn = []
        for _ in range(rng.randint(1, 7)):
            pool = TOPICS if rng.random() < 0.1 else TOPICS[:3]
            topics = [rng.choice(pool) for _ in range(rng.randint(1, 6))]
            one = rng.random() < 0.6
            turn.append(pen.block(topics[0] if one else topics, len(topics), later_us=rng.choice([0, 0, 10, 500])))
        journal.commit(turn)


def all_next(reader: Reader, seq: int, wanted: Wanted) -> list[Block]:
    """Every wanted block from seq on; each call must get ahead or be at the end."""
    found: list[Block] = []
    while True:
        block, following = reader.next_block(seq, wanted)
        if block is None and following == seq:
            return found
        assert following > seq
        seq = following
        if block is not None:
            assert isinstance(block, Block)
            found.append(block)


@pytest.mark.usefixtures("small_chunks")
def test_searches_agree_with_a_plain_list(tmp_path: Path) -> None:
    rng = seeded("searches")
    pen = Pen()
    limits = Limits(max_messages=150)
    journal = Journal.open(tmp_path / "j", limits)
    twin: list[Row] = []
    for _ in range(6):
        before = pen.seq
        fill(journal, pen, rng, turns=8)
        twin += [row for row in rows_in(journal) if row.seq >= before]
        if rng.random() < 0.5:
            first_seq = journal.trim_step(pen.ts_us)
            twin = [row for row in twin if first_seq is None or row.seq >= first_seq]
        if rng.random() < 0.3:
            journal.close()
            journal = Journal.open(tmp_path / "j", limits)
        compare(journal, twin, rng)
    journal.close()


def compare(journal: Journal, twin: list[Row], rng: random.Random) -> None:
    reader = journal.reader()
    assert rows_in(journal) == twin
    first_seq, last_seq = twin[0].seq, twin[-1].seq
    for _ in range(10):
        chosen = frozenset(rng.sample(TOPICS, rng.randint(0, 3)))
        wanted = chosen.__contains__
        seq = rng.randint(0, last_seq + 2)
        found = [row for block in all_next(reader, seq, wanted) for row in rows_of(block)]
        assert [row for row in found if row.topic in chosen and row.seq >= seq] == [
            row for row in twin if row.topic in chosen and row.seq >= seq
        ]
        assert reader.last_match(wanted) == max((row.seq for row in twin if row.topic in chosen), default=None)
        if isinstance(found_block := reader.block_at(seq), Block):
            base = found_block.base_seq
            earlier = max((row.seq for row in twin if row.topic in chosen and row.seq < base), default=None)
            assert reader.last_match(wanted, base) == earlier
        ts_us = rng.choice([0, rng.choice(twin).ts_us, rng.choice(twin).ts_us + 1, twin[-1].ts_us + 1])
        assert reader.seek_time(ts_us) == min((row.seq for row in twin if row.ts_us >= ts_us), default=last_seq + 1)
        block = reader.block_at(seq)
        if first_seq <= seq <= last_seq:
            assert isinstance(block, Block)
            assert block.base_seq <= seq <= block.last_seq
        else:
            assert block is None


@pytest.mark.usefixtures("small_chunks")
def test_a_summary_made_again_from_its_blocks_equals_the_stored_one(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j")
    fill(journal, Pen(), seeded("summaries"), turns=20)
    with journal.environment.begin(buffers=True) as txn:
        stored = [Chunk.decode(key, row) for key, row in txn.cursor(journal.tables.chunks)]
        assert len(stored) > 5
        for chunk in stored:
            again = OpenChunk(chunk.first_seq)
            for found in blocks_from(txn, journal.tables, chunk.first_seq, chunk.last_seq + 1):
                again.add(*found)
            assert Chunk.of(again) == chunk
    journal.close()


@pytest.mark.parametrize("blocks", [1, 2, 31, 255])
def test_a_summary_survives_its_row(blocks: int) -> None:
    filling = OpenChunk(1)
    for i in range(blocks):
        filling.add(10 * i + 1, 10 * i + 10, i, 100, [b"often"] if i % 3 else [b"often", "ä.ö".encode()])
    filling.add(10 * blocks + 1, 10 * blocks + 10, blocks, 100, None)  # damaged
    chunk = Chunk.of(filling)
    assert Chunk.decode(*chunk.encode()) == chunk
    assert chunk.mask(lambda topic: False) == 1 << blocks
    assert chunk.mask(lambda topic: True) == (1 << blocks + 1) - 1
    for topic, every in (("often", 1), ("ä.ö", 3)):
        bits = chunk.mask(topic.__eq__)
        assert {i for i in range(blocks + 1) if bits >> i & 1} == {*range(0, blocks, every), blocks}


@pytest.mark.usefixtures("small_chunks")
def test_lost_and_damaged_summaries_change_no_answer_and_the_last_ones_are_written_again(tmp_path: Path) -> None:
    rng, pen = seeded("lost summaries"), Pen()
    journal = Journal.open(tmp_path / "j")
    fill(journal, pen, rng, turns=20)
    twin = rows_in(journal)
    with journal.writing() as txn:
        rows = list(txn.cursor(journal.tables.chunks))
        txn.delete(rows[1][0], db=journal.tables.chunks)
        txn.put(rows[3][0], rows[3][1][:-9] + b"?" + rows[3][1][-8:], db=journal.tables.chunks)
        for key, row in rows[-2:]:
            txn.put(key, row[:-1], db=journal.tables.chunks)
    compare(journal, twin, rng)
    journal.close()
    journal = Journal.open(tmp_path / "j")
    compare(journal, twin, rng)
    with journal.environment.begin() as txn:
        assert [txn.get(key, db=journal.tables.chunks) == row for key, row in rows[-2:]] == [True, True]
    journal.close()


@pytest.mark.usefixtures("small_chunks")
def test_missing_blocks_are_told_by_their_range_and_their_neighbours_are_read(tmp_path: Path) -> None:
    """Blocks 1 and 2 (the beginning), 9 (summed up) and 18 (in the open chunk) vanish, as only a damaged file loses."""
    journal = Journal.open(tmp_path / "j")
    journal.commit(Pen().blocks(19, count=10))
    lost = [(1, 20), (81, 90), (171, 180)]
    for reopened in (False, True):
        if reopened:
            journal.close()
            journal = Journal.open(tmp_path / "j")
        with journal.writing() as txn:
            for base in (1, 11, 81, 171):
                txn.delete(seq_key(base), db=journal.tables.blocks)
        reader, seq, good, damaged = journal.reader(), 1, [], []
        while seq <= 190:
            block, seq = reader.next_block(seq, lambda topic: topic == "a.b")
            if isinstance(block, Damaged):
                damaged.append((block.first_seq, block.last_seq))
            elif block is not None:
                good += [row.seq for row in rows_of(block)]
        gone = {seq for first, last in damaged for seq in range(first, last + 1)}
        assert gone == {seq for first, last in lost for seq in range(first, last + 1)}
        assert good == sorted(set(range(1, 191)) - gone)
        for first, last in lost:
            for place in (first, last):
                block = reader.block_at(place)
                assert isinstance(block, Damaged)
                assert first <= block.first_seq <= place <= block.last_seq <= last
        assert reader.seek_time(0) == 21
    journal.close()


def test_one_call_does_a_bounded_share_and_says_where_to_go_on(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j")
    pen = Pen()
    journal.commit([*pen.blocks(200, "a.b", count=1), pen.block("rare", count=1)])
    reader, asked = journal.reader(), []

    def wanted(topic: str) -> bool:
        asked.append(topic)
        return topic == "rare"

    block, seq = reader.next_block(1, wanted)
    assert block is None
    assert 1 < seq <= 201
    calls = 1
    while block is None:
        block, seq = reader.next_block(seq, wanted)
        calls += 1
    assert isinstance(block, Block)
    assert block.topics == ("rare",)
    assert calls > 2
    assert len(asked) <= 2 * calls  # each topic once for each call, not once for each block
    journal.close()


def test_many_topics_end_a_call_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fabric.journal.tables import chunks

    monkeypatch.setattr(chunks, "BLOCKS_MAX", 2)
    journal = Journal.open(tmp_path / "j")
    pen = Pen()
    for _ in range(4):
        journal.commit([pen.block([f"t.{i}" for i in range(600)]), pen.block("a.b", count=1)])
    asked = 0

    def wanted(topic: str) -> bool:
        nonlocal asked
        asked += 1
        return False

    block, seq = journal.reader().next_block(1, wanted)
    assert (block, seq) == (None, 2 * 601 + 1)
    assert asked == 2 * 601
    journal.close()


def test_a_step_of_a_search_compares_few_topics_however_many_there_are(tmp_path: Path) -> None:
    """A chunk ends when it has many topics, so that its summary is read and compared soon."""
    journal, pen = Journal.open(tmp_path / "j"), Pen()
    for n in range(30):
        journal.commit([pen.block([f"t.{n}.{k}" for k in range(1_000)], 1_000)])
    asked: list[str] = []

    def wanted(topic: str) -> bool:
        asked.append(topic)
        return topic == "t.29.999"

    reader, seq, steps, block = journal.reader(), 1, 0, None
    while block is None:
        before = len(asked)
        block, seq = reader.next_block(seq, wanted)
        assert len(asked) - before <= 2 * NAMES_MAX + 1_000
        steps += 1
    assert steps > 5
    before, stop = len(asked), pen.seq
    while stop > 1:
        _, stop = reader.previous_block(stop, wanted)
        assert len(asked) - before <= NAMES_MAX + 1_000
        before = len(asked)
    journal.close()
    assert Journal.open(tmp_path / "j").last_seq == 30_000


def test_a_chunk_ends_when_its_blocks_list_many_topics(tmp_path: Path) -> None:
    """Also when these are the same in each of them."""
    journal, pen = Journal.open(tmp_path / "j"), Pen()
    names = [f"t.{k}" for k in range(1_000)]
    for _ in range(40):
        journal.commit([pen.block(names, 1_000)])
    with journal.environment.begin() as txn:
        assert txn.stat(journal.tables.chunks)["entries"] == 40_000 // LISTED_MAX
