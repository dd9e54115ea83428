"""Rows of delayed publishes in a real journal, against a dictionary; and damage in them."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fabric.journal import environment
from fabric.journal.environment import put_row
from fabric.journal.journal import Journal
from fabric.journal.rows import name_key, pair_key, seq_key, unpack, unseal
from fabric.journal.tables import schedule_table
from fabric.journal.tools.backup import backup
from fabric.journal.tools.verify import verify
from fabric.records import CountSchedules, DropSchedule, Record, SaveSchedule
from fabric_protocol.block import encode
from tests.router.schedules import MemorySchedules
from tests.seeds import seeded

BLOCK = encode("t", [b"x"])
OWNERS = ("local", "ann", "bob")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal.open(tmp_path)
    yield journal
    journal.close()


def save(number: int, due_us: int, **more: object) -> SaveSchedule:
    return SaveSchedule(number, due_us, BLOCK, **more)  # type: ignore[arg-type]


def test_a_schedule_is_found_by_time_by_number_and_by_name(journal: Journal) -> None:
    reader = journal.reader().schedules
    row = save(7, 1000, ttl_ms=1, every_ms=200, cron="", name="jöb")
    journal.commit([row, save(8, 500), CountSchedules(8, (("t", 2),))])
    assert reader.due((0, 0), 999, 10) == [(500, 8)]
    assert reader.due((0, 0), 1000, 10) == [(500, 8), (1000, 7)]
    assert reader.due((500, 8), 1000, 10) == [(1000, 7)]
    assert reader.due((500, (1 << 64) - 1), 1000, 10) == [(1000, 7)]
    assert reader.due((0, 0), 1 << 62, 1) == [(500, 8)]
    assert reader.read([(1000, 7), (1, 1)], 1 << 20) == [row, None]
    assert reader.find(7) == reader.find_name("jöb") == row
    assert reader.find(9) is None
    assert reader.find_name("job") is None
    assert reader.counts(10) == (8, 2, 2, {"t": 2})


def test_a_schedule_that_moves_keeps_its_number_and_name(journal: Journal) -> None:
    reader = journal.reader().schedules
    journal.commit([save(7, 1000, name="job", every_ms=100)])
    moved = save(7, 1100, name="job", every_ms=100)
    journal.commit([DropSchedule(7, 1000, "job"), moved])
    assert reader.due((0, 0), 1 << 62, 9) == [(1100, 7)]
    assert reader.find(7) == reader.find_name("job") == moved
    journal.commit([DropSchedule(7, 1100, "job"), save(8, 1200, name="job"), CountSchedules(8, ())])
    assert reader.find(7) is None
    assert reader.find_name("job") == save(8, 1200, name="job")


def test_a_read_stops_when_it_has_enough_bytes(journal: Journal) -> None:
    reader = journal.reader().schedules
    journal.commit([save(n, 1000) for n in range(1, 6)])
    keys = [(1000, n) for n in range(1, 6)]
    assert len(reader.read(keys, 1)) == 1
    assert len(reader.read(keys, 1 << 20)) == 5
    rows, following = reader.page((0, 0), 2, 1 << 20)
    assert ([row.id for row in rows], following) == ([1, 2], (1000, 2))
    rows, following = reader.page((1000, 2), 100, 1)
    assert ([row.id for row in rows], following) == ([3], (1000, 3))
    rows, following = reader.page((1000, 3), 2, 1 << 20)
    assert ([row.id for row in rows], following) == ([4, 5], None)


def test_it_survives_a_restart_and_a_backup_counts_too(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    journal.commit([save(3, 1000, name="job"), CountSchedules(5, (("t", 1),))])
    journal.close()
    journal = Journal.open(tmp_path)
    reader = journal.reader().schedules
    assert reader.find_name("job") == save(3, 1000, name="job")
    assert reader.counts(0) == (5, 1, 1, {})
    journal.close()


def test_a_row_that_is_damaged_is_told_and_no_more(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = journal.reader().schedules
    with monkeypatch.context() as patch:
        patch.setattr(environment, "seal", lambda key, value: value + b"oops")
        journal.commit([save(1, 1000)])
    journal.commit([save(2, 1000), CountSchedules(2, (("t", 2),))])
    damaged, good = reader.read([(1000, 1), (1000, 2)], 1 << 20)
    assert isinstance(damaged, str)
    assert "checksum" in damaged
    assert good == save(2, 1000)
    assert reader.page((0, 0), 10, 1 << 20) == ([save(2, 1000)], None)
    assert isinstance(reader.find(1), str)


def test_counts_that_are_damaged_do_not_stop_the_hub(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = journal.reader().schedules
    journal.commit([save(9, 1000)])
    with monkeypatch.context() as patch:
        patch.setattr(environment, "seal", lambda key, value: value + b"oops")
        journal.commit([CountSchedules(9, (("t", 1),))])
    assert reader.counts(9) == (9, 1, 0, {"t": 0})  # the number is that of the highest row
    journal.commit([DropSchedule(9, 1000), CountSchedules(9, (("t", -1),))])
    assert reader.counts(9) == (9, 0, 0, {})


def test_the_rows_of_local_are_those_of_an_older_program(journal: Journal) -> None:
    journal.commit([save(7, 1000, name="job"), CountSchedules(7, (("t", 1),))])
    with journal.environment.begin() as txn:
        row = bytes(txn.get(pair_key(1000, 7), db=journal.tables.schedule) or b"")
        keys = {bytes(key) for key, _ in txn.cursor(journal.tables.schedule_ids)}
    assert unpack(unseal(pair_key(1000, 7), row)) == [7, 1000, BLOCK, 0, 0, "", "job"]
    assert keys == {seq_key(7), b"n" + name_key("job"), b"tt", b"all"}
    assert journal.reader().schedules.find(7) == save(7, 1000, name="job", owner="local")


def test_a_row_of_an_older_program_is_read_moved_and_dropped(journal: Journal) -> None:
    with journal.writing() as txn:
        put_row(txn, journal.tables.schedule, pair_key(1000, 7), [7, 1000, BLOCK, 0, 200, "", "job"])
        put_row(txn, journal.tables.schedule_ids, seq_key(7), [1000])
        put_row(txn, journal.tables.schedule_ids, b"n" + name_key("job"), [7])
    reader = journal.reader().schedules
    row = reader.find_name("job")
    assert row == save(7, 1000, every_ms=200, name="job", owner="local")
    journal.commit([DropSchedule(7, 1000, "job"), save(7, 1200, every_ms=200, name="job")])
    assert reader.find_name("job") == reader.find(7) == save(7, 1200, every_ms=200, name="job")
    journal.commit([DropSchedule(7, 1200, "job")])
    with journal.environment.begin() as txn:
        assert txn.stat(journal.tables.schedule_ids)["entries"] == 0


def test_names_are_of_an_owner_and_no_name_meets_that_of_another(journal: Journal) -> None:
    reader = journal.reader().schedules
    rows = [
        save(1, 10, name="nightly"),
        save(2, 10, name="nightly", owner="ann"),
        save(3, 10, name="ann/nightly"),
        save(4, 10, name="/nightly", owner="ann"),
        save(5, 10, name="nightly", owner="bob"),
    ]
    journal.commit(rows)
    assert [reader.find_name(row.name, row.owner) for row in rows] == rows
    journal.commit([DropSchedule(2, 10, "nightly", "ann")])
    assert reader.find_name("nightly", "ann") is None
    assert reader.find_name("nightly") == rows[0]


def test_a_dropped_schedule_leaves_no_row(journal: Journal) -> None:
    journal.commit(
        [save(1, 10, name="n", owner="ann"), CountSchedules(1, (("t", 1),), (("ann", "t", 1), ("ann", "", 1)))]
    )
    assert journal.reader().schedules.counts(9, "ann") == (1, 1, 1, {"t": 1})
    gone = CountSchedules(1, (("t", -1),), (("ann", "t", -1), ("ann", "", -1)))
    journal.commit([DropSchedule(1, 10, "n", "ann"), gone])
    with journal.environment.begin() as txn:
        assert [bytes(key) for key, _ in txn.cursor(journal.tables.schedule_ids)] == [b"all"]
        assert txn.stat(journal.tables.schedule)["entries"] == 0


def test_a_page_of_local_goes_on_behind_many_rows_of_others(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_table, "_SCAN_MAX", 3)
    journal.commit([save(n, 10, owner="ann") for n in range(1, 8)] + [save(8, 10)])
    reader, found, after = journal.reader().schedules, [], (0, 0)
    while after is not None:
        rows, after = reader.page(after, 5, 1 << 20, "local")  # type: ignore[assignment]
        found += rows
    assert found == [save(8, 10)]


def test_the_owner_survives_a_backup_and_verify_finds_nothing(tmp_path: Path) -> None:
    row = save(3, 1000, name="job", owner="ann")
    journal = Journal.open(tmp_path / "a")
    journal.commit([row, CountSchedules(3, (("t", 1),), (("ann", "t", 1), ("ann", "", 1)))])
    journal.close()
    assert backup(tmp_path / "a", tmp_path / "b").findings == verify(tmp_path / "a").findings == ()
    copy = Journal.open(tmp_path / "b")
    assert copy.stats().schedules == 1
    assert copy.reader().schedules.find_name("job", "ann") == row
    assert copy.reader().schedules.counts(9, "ann") == (3, 1, 1, {"t": 1})
    copy.close()


def test_random_turns_read_like_a_dictionary(journal: Journal) -> None:
    rng = seeded("schedule rows")
    twin, reader = MemorySchedules(), journal.reader().schedules
    for _ in range(150):
        turn = random_turn(rng, twin)
        journal.commit(turn)
        after = (rng.randint(0, 50), rng.randint(0, 50))
        limit, until = rng.randint(1, 9), rng.randint(0, 60)
        assert reader.due(after, until, limit) == twin.due(after, until, limit)
        assert reader.page(after, limit, 1 << 20) == twin.page(after, limit, 1 << 20)
        keys = [*sorted(twin.rows)[:limit], (99, 99)]
        assert reader.read(keys, 1 << 20) == twin.read(keys, 1 << 20)
        number = rng.randint(1, twin.last_id + 1)
        assert reader.find(number) == twin.find(number)
        assert tuple(reader.counts(2)) == tuple(twin.counts(2))
        for owner in OWNERS:
            name = rng.choice("abc")
            assert reader.find_name(name, owner) == twin.find_name(name, owner)
            (rows, following), expected = (
                reader.page(after, limit, 1 << 20, owner),
                twin.page(after, limit, 1 << 20, owner),
            )
            assert rows == expected[0]
            assert following == expected[1] or owner == "local"  # an empty page may follow: it has no index
            assert tuple(reader.counts(9, owner)) == tuple(twin.counts(9, owner))


def random_turn(rng: random.Random, twin: MemorySchedules) -> list[Record]:
    turn: list[Record] = []
    changes: Counter[str] = Counter()
    owned: Counter[tuple[str, str]] = Counter()
    last_id = twin.last_id

    def write(record: SaveSchedule | DropSchedule | CountSchedules) -> None:
        twin.write(record)
        turn.append(record)

    def count(row: SaveSchedule, change: int) -> None:
        changes[row.cron] += change
        if row.owner != "local":
            owned.update({(row.owner, row.cron): change, (row.owner, ""): change})

    def drop(row: SaveSchedule) -> None:
        write(DropSchedule(row.id, row.due_us, row.name, row.owner))
        count(row, -1)

    for _ in range(rng.randint(1, 6)):
        if twin.rows and rng.random() < 0.45:
            drop(rng.choice(list(twin.rows.values())))
            continue
        name, topic, owner = rng.choice(["", "", "a", "b", "c"]), rng.choice(["t", "u", "v.w"]), rng.choice(OWNERS)
        if name and isinstance(old := twin.find_name(name, owner), SaveSchedule):
            drop(old)
        last_id += 1
        # The cron field tells the topic, for the twin.
        write(row := save(last_id, rng.randint(1, 50), name=name, cron=topic, owner=owner))
        count(row, 1)
    write(CountSchedules(last_id, tuple(changes.items()), tuple((*key, change) for key, change in owned.items())))
    return turn
