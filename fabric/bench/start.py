"""The time of a start: a hub with a new journal, a hub after kill -9, its clients, and `fabric --help`.

Times are from the start of the process, so they include the start of Python and all imports. Without cached bytecode
(PYTHONDONTWRITEBYTECODE, or a read-only directory) each start compiles all modules; the first figure says whether
bytecode was cached.
"""

import importlib.util
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import fabric.hub
import fabric_client
from fabric.bench.crew import Watch
from fabric.bench.figures import JOURNALED, NO_JOURNAL, Figure, median_figure
from fabric.bench.parts import Bench
from fabric.cli.support.hub_process import HubProcess

RUNS_MIN: Final = 5  # a start is short, and single starts differ by half
DOWN_S: Final = 1.0  # then the pause of clients between two attempts to connect is longest


def part_start(bench: Bench) -> Iterator[Figure]:
    runs, watch = max(bench.settings.repeats, RUNS_MIN), Watch()
    fresh, fresh_cpu = zip(*(_fresh(bench) for _ in range(runs)), strict=True)
    note = f"CPU {min(fresh_cpu):.2f} s at least; {_bytecode()}"
    yield median_figure("start", "hub ready, new journal", "s", JOURNALED, list(fresh), note=note)
    again, back = zip(*(_again(bench) for _ in range(runs)), strict=True)
    yield median_figure("start", "hub ready, after kill -9", "s", JOURNALED, list(again))
    note = f"from the start of the new hub, after {DOWN_S:.0f} s without one"
    what = "first confirm of a client that reconnects"
    yield median_figure("start", what, "s", JOURNALED, list(back), note=note)
    helped = [_help() for _ in range(runs)]
    yield median_figure("start", "fabric --help", "s", NO_JOURNAL, helped, foreign=watch.foreign())


def _fresh(bench: Bench) -> tuple[float, float]:
    """Seconds until a hub on an empty directory is ready, and its CPU seconds until then."""
    hub, begun = HubProcess(bench.folder / bench.fresh("journal")), time.monotonic()
    with hub:
        return time.monotonic() - begun, hub.cpu_s()


def _again(bench: Bench) -> tuple[float, float]:
    """Seconds until a killed hub is ready again, and until it has confirmed a publish of its old client."""
    with fabric_client.connect(bench.url) as fab:
        fab.publish("bench.start", b"before")
        bench.hub.kill()
        fab.publish_nowait("bench.start", b"after")
        time.sleep(DOWN_S)
        begun = time.monotonic()
        bench.hub.start()
        ready_s = time.monotonic() - begun
        fab.flush()
        return ready_s, time.monotonic() - begun


def _help() -> float:
    begun = time.monotonic()
    subprocess.run([sys.executable, "-m", "fabric", "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - begun


def _bytecode() -> str:
    is_cached = Path(importlib.util.cache_from_source(fabric.hub.__file__)).exists()
    return "cached bytecode" if is_cached else "no cached bytecode: each start compiles"
