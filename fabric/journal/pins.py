"""Pins: an outside reader, such as a Spark query, keeps the journal from removing messages that it has not read yet.

A pin is a file `pins/<name>.json` in the journal's directory, {"seq": n, "until_us": t}: messages at or above that seq
stay until that time. A pin ends at its time, so that a reader that never comes back does not fill the disk. Retention
of the whole journal obeys pins; limits of single topics do not.

Any program that may write to the directory may pin. The hub only reads the files, and ignores a file that is no pin.
"""

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from fabric.errors import JournalError
from fabric.journal.directory import DIR_MODE, FILE_MODE
from fabric.journal.rows import SEQ_MAX

PINS_DIR: Final = "pins"
PINS_MAX: Final = 1000  # more are ignored
LOOK_US: Final = 1_000_000  # how long a look at the files counts
NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
_FILE_BYTES_MAX: Final = 4096


def set_pin(journal: str | os.PathLike[str], name: str, seq: int, until_us: int) -> None:
    """Pin all messages from `seq` on until a time. Replaces the pin of the same name."""
    folder = Path(journal) / PINS_DIR
    target = folder / f"{name}.json"
    fresh = folder / f".{name}.{os.getpid()}"
    try:
        folder.mkdir(mode=DIR_MODE, exist_ok=True)
        fresh.write_text(json.dumps({"seq": seq, "until_us": until_us}))
        fresh.chmod(FILE_MODE)
        os.replace(fresh, target)
    except OSError as error:
        raise JournalError(
            f"cannot write the pin {target}: {error.strerror}",
            "a pin needs write access to the journal's directory; run as the hub's user, or do without a pin",
        ) from error


def drop_pin(journal: str | os.PathLike[str], name: str) -> None:
    (Path(journal) / PINS_DIR / f"{name}.json").unlink(missing_ok=True)


def pinned(journal: str | os.PathLike[str], now_us: int) -> int:
    """The lowest pinned seq; SEQ_MAX without a pin. Raises OSError when the process has no free descriptor."""
    lowest = SEQ_MAX
    try:
        with os.scandir(Path(journal) / PINS_DIR) as entries:
            names = [entry.path for _, entry in zip(range(PINS_MAX), entries, strict=False)]
    except OSError as error:
        if error.errno in NO_DESCRIPTOR:
            raise
        return lowest
    for name in names:
        if name.endswith(".json"):
            lowest = min(lowest, _seq_of(name, now_us))
    return lowest


def _seq_of(file: str, now_us: int) -> int:
    try:
        with open(file, "rb") as opened:
            pin = json.loads(opened.read(_FILE_BYTES_MAX))
        seq, until_us = pin["seq"], pin["until_us"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:
            raise
        return SEQ_MAX
    if type(seq) is not int or type(until_us) is not int or until_us <= now_us:
        return SEQ_MAX
    return max(seq, 0)


class Pins:
    """The lowest pinned seq, looked up at most once a second."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._looked_us = 0
        self.seq = SEQ_MAX

    def lowest(self, now_us: int) -> int:
        if not 0 <= now_us - self._looked_us < LOOK_US:
            self._looked_us = now_us
            with suppress(OSError):  # no descriptor is free: the last known pins count
                self.seq = pinned(self._journal, now_us)
        return self.seq
