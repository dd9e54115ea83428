"""Power cuts by simulation: records what a writer does to its file, and makes the files that a power cut could leave.

The model: a write is on disk for certain once a sync that began after it is done, or at once when its descriptor is
O_DSYNC. Of all later writes, each page is there or not, at random with a seed; a page may also be torn at a sector.
"""

import os
import random
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

SOURCE: Final = Path(__file__).with_name("powerlog.c")
PAGE: Final = 4096
SECTOR: Final = 512
_HEAD: Final = struct.Struct("<cBIQ")


class Event(NamedTuple):
    kind: str  # as powerlog.c names them
    is_dsync: bool
    offset: int
    data: bytes


def build(directory: Path, compiler: str) -> Path:
    library = directory / "powerlog.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
    subprocess.run(command, check=True, capture_output=True)
    return library


def record(library: Path, script: str, path: Path, log: Path) -> list[Event]:
    """Run a writer to its end and return what it did. It promises with `promise(seq)`."""
    prologue = f"import ctypes; promise = ctypes.CDLL({str(library)!r}).powerlog_promise; "
    prologue += "promise.argtypes = [ctypes.c_uint64]\n"
    environment = dict(
        os.environ,
        LD_PRELOAD=str(library),
        POWERLOG=str(log),
        PYTHONPATH=os.pathsep.join(p for p in sys.path if p),
    )
    subprocess.run([sys.executable, "-c", prologue + script, str(path)], env=environment, check=True)
    return _parse(log.read_bytes())


def _parse(log: bytes) -> list[Event]:
    events, at = [], 0
    while at < len(log):
        kind, is_dsync, size, offset = _HEAD.unpack_from(log, at)
        at += _HEAD.size
        events.append(Event(kind.decode(), bool(is_dsync), offset, log[at : at + size]))
        at += size
    return events


def promised(events: Sequence[Event], cut: int) -> int:
    """What was promised before the cut."""
    return max((event.offset for event in events[:cut] if event.kind == "A"), default=0)


def image(events: Sequence[Event], cut: int, keep: float, rng: random.Random) -> bytes:
    """The file after a power cut before event `cut`; each page that is not certain is kept with probability `keep`."""
    certain = 0  # events before this one are covered by a sync that is done
    begun = 0
    for place, event in enumerate(events[:cut]):
        if event.kind == "b":
            begun = place
        elif event.kind == "S":
            certain = begun
    file = bytearray()
    for place, event in enumerate(events[:cut]):
        if event.kind == "T":
            del file[event.offset :]
        elif event.kind == "W":
            for start in range(0, len(event.data), PAGE):
                page = event.data[start : start + PAGE]
                if place < certain or event.is_dsync or rng.random() < keep:
                    _put(file, event.offset + start, page)
                elif len(page) == PAGE and rng.random() < 0.1:  # torn: some of its first sectors made it
                    _put(file, event.offset + start, page[: SECTOR * rng.randrange(1, PAGE // SECTOR)])
    return bytes(file)


def _put(file: bytearray, offset: int, data: bytes) -> None:
    if len(file) < offset:
        file.extend(bytes(offset - len(file)))
    file[offset : offset + len(data)] = data
