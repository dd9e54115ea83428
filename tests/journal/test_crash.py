"""A process that is killed while it writes: confirmed turns are there, and each turn is whole or absent.

This shows little about power loss, because the page cache outlives the process; tests/power is about that.
"""

import signal
from pathlib import Path

from fabric.journal.journal import Journal
from tests.journal.sample import Pen, rows_in, run_python, start_python
from tests.seeds import seeded

CYCLES = 8
TURN_BLOCKS = 6

WRITE_FOR_EVER = f"""
journal = Journal.open(path)
restored = journal.load()
pen = Pen(restored.last_seq + 1, restored.last_ts_us)
while True:
    turn = pen.blocks({TURN_BLOCKS}, count=4, size=2000)
    journal.commit([*turn, SaveGroup("g", GroupSettings(("#",)), pen.seq, ())])
    print(pen.seq - 1, flush=True)
"""


def test_nothing_confirmed_is_lost_and_no_turn_is_torn_when_the_writer_is_killed(tmp_path: Path) -> None:
    rng, path = seeded("kills"), tmp_path / "j"
    for _ in range(CYCLES):
        writer = start_python(WRITE_FOR_EVER, path)
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(rng.randint(1, 25))]
        writer.send_signal(signal.SIGKILL)
        lines += writer.communicate()[0].splitlines()
        confirmed = int(lines[-1])
        journal = Journal.open(path)
        restored = journal.load()
        assert restored.last_seq >= confirmed
        assert not restored.was_clean
        assert restored.last_seq % (TURN_BLOCKS * 4) == 0
        assert [group.cursor for group in restored.groups] == [restored.last_seq + 1]
        assert [row.seq for row in rows_in(journal)] == list(range(1, restored.last_seq + 1))
        journal.close()


DISK_FULL = """
import resource
pen, journal = Pen(), Journal.open(path)
journal.commit(pen.blocks(3))
resource.setrlimit(resource.RLIMIT_FSIZE, ((path / "data.mdb").stat().st_size, resource.RLIM_INFINITY))
try:
    journal.commit(pen.blocks(8, size=20_000))
except JournalError as error:
    print("failed:", error, error.hint)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for use in (lambda: journal.commit([]), lambda: journal.trim_step(0), journal.load, journal.pressure):
    try:
        use()
    except JournalError as error:
        print("refused:", error)
journal.close()
"""


def test_after_a_failed_write_nothing_is_accepted_any_more_and_the_next_start_is_whole(tmp_path: Path) -> None:
    """The disk is full for one commit and has room again: the journal still refuses, because its state is unknown."""
    said = run_python(DISK_FULL, tmp_path / "j")
    assert "failed: cannot write to the journal" in said
    assert "disk may be full" in said
    assert said.count("refused: the journal has failed before") == 4
    journal = Journal.open(tmp_path / "j")
    restored = journal.load()
    assert (restored.last_seq, restored.was_clean) == (12, False)
    pen = Pen(restored.last_seq + 1, restored.last_ts_us)
    journal.commit([pen.block()])
    assert [row.seq for row in rows_in(journal)] == list(range(1, 17))
    journal.close()
