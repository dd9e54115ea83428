"""After a power cut every confirmed message is there; and the test can find a loss.

A killed process shows nothing here, because the page cache outlives it. FABRIC_POWER_IMAGES=1000 makes it thorough.
"""

import os
import random
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.power.recorder import Event, build, image, promised, record
from tests.seeds import seeded

COMPILER = shutil.which("gcc") or shutil.which("cc")
pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="the recorder of power cuts needs gcc"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the recorder of power cuts needs LD_PRELOAD"),
]

IMAGES = int(os.environ.get("FABRIC_POWER_IMAGES") or 40)
CONTROL_IMAGES = 12
KEEPS = (0.0, 0.2, 0.5, 0.8, 1.0)

WRITER = """
import sys
from fabric.journal.journal import Journal, Limits
from fabric.records import GroupSettings, SaveGroup
from tests.journal.sample import Pen
journal, pen = Journal.open(sys.argv[1], Limits(max_messages=400)), Pen()
for turn in range(60):
    size = (20, 900, 6000)[turn % 3]
    journal.commit([*pen.blocks(3, count=2, size=size), SaveGroup("g", GroupSettings(("#",)), pen.seq, ())])
    promise(pen.seq - 1)
    if turn % 10 == 9:
        journal.trim_step(0)
"""

# The same writer on a weaker foundation. These must lose something, or the test would not see a loss at all.
WEAKENED = """
import lmdb
_open = lmdb.open
lmdb.open = lambda *args, **options: _open(*args, **{{**options, {setting!r}: False}})
"""

CHECKER = """
import os, sys
from pathlib import Path
from fabric.journal.journal import Journal
from tests.journal.sample import Pen, rows_in

def check(path, promised):
    try:
        journal = Journal.open(path)
        restored = journal.load()
        if restored.last_seq < promised:
            return "lost"
        rows = rows_in(journal)
        assert not restored.findings, restored.findings
        assert [row.seq for row in rows] == list(range(restored.first_seq, restored.last_seq + 1))
        assert all(row.payload.startswith(b"%d:" % row.seq) for row in rows)
        assert [group.cursor for group in restored.groups] == [restored.last_seq + 1] * (restored.last_seq > 0)
        journal.commit([Pen(restored.last_seq + 1, restored.last_ts_us).block()])
        journal.close()
        return "whole"
    except Exception as error:
        print(type(error).__name__, error, file=sys.stderr)
        return "corrupt"

for line in sys.stdin:  # a child for each image, because a corrupt one may kill its reader
    path, promised = line.rsplit(None, 1)
    child = os.fork()
    if child == 0:
        outcome = check(Path(path), int(promised))
        print(outcome, flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print("died", flush=True)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert COMPILER is not None
    return build(tmp_path_factory.mktemp("powerlog"), COMPILER)


def outcomes(events: list[Event], cuts: Iterator[tuple[int, float]], rng: random.Random, path: Path) -> Counter[str]:
    """Make the images and look at each in a process of its own."""
    lines = []
    for number, (cut, keep) in enumerate(cuts):
        directory = path / f"image{number}"
        directory.mkdir()
        (directory / "data.mdb").write_bytes(image(events, cut, keep, rng))
        lines.append(f"{directory} {promised(events, cut)}")
    checker = subprocess.run(
        [sys.executable, "-c", CHECKER],
        input="\n".join(lines),
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = checker.stdout.split()
    assert len(found) == len(lines)
    return Counter(found)


def first_promise(events: list[Event]) -> int:
    return next(place for place, event in enumerate(events) if event.kind == "A")


def test_nothing_promised_is_lost_in_a_power_cut(tmp_path: Path, library: Path) -> None:
    rng = seeded("power cuts")
    events = record(library, WRITER, tmp_path / "j", tmp_path / "log")
    kinds = Counter(event.kind for event in events)
    assert kinds["A"] == 60
    assert kinds["S"] >= 60
    assert any(event.is_dsync for event in events)
    # Anywhere, and more often just before and after a promise or a sync, where a mistake would show.
    near = [place for place, event in enumerate(events) if event.kind in "AbS"]
    places = [rng.randrange(len(events) + 1) for _ in range(IMAGES // 2)]
    places += [min(rng.choice(near) + rng.randint(-2, 3), len(events)) for _ in range(IMAGES - IMAGES // 2)]
    start = first_promise(events)
    cuts = ((max(place, start), rng.choice(KEEPS)) for place in places)
    assert outcomes(events, cuts, rng, tmp_path) == {"whole": IMAGES}


@pytest.mark.parametrize(("setting", "seen"), [("metasync", {"lost"}), ("sync", {"lost", "corrupt", "died"})])
def test_a_weaker_foundation_is_seen_to_lose(tmp_path: Path, library: Path, setting: str, seen: set[str]) -> None:
    rng = seeded("weakened")
    script = textwrap.dedent(WEAKENED.format(setting=setting)) + WRITER
    events = record(library, script, tmp_path / "j", tmp_path / "log")
    promises = [place for place, event in enumerate(events) if event.kind == "A"]
    cuts = ((rng.choice(promises) + 1, rng.choice(KEEPS[:3])) for _ in range(CONTROL_IMAGES))
    found = outcomes(events, cuts, rng, tmp_path)
    assert sum(found[outcome] for outcome in seen) > 0, found
