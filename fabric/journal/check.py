"""Looking a journal over before it is trusted.

A damaged file can make LMDB abort the whole process, so the first look happens in a child: it walks the small tables
and the tail of the blocks. If the child dies, the hub says so in one line instead of dying in the same way.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from fabric.errors import JournalDamaged

TAIL_BLOCKS: Final = 256  # blocks looked at from the end: what a crash could have touched, and more
TAIL_BYTES: Final = 64 << 20
_TIMEOUT_S: Final = 120.0  # for a cold disk; usually it takes some 50 ms
_EXIT_DAMAGED: Final = 9


def check_in_child(path: Path) -> None:
    """Raise JournalDamaged when a journal cannot be walked. The caller holds the lock, so nobody writes meanwhile."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    command = [sys.executable, "-S", "-m", "fabric.journal.check", str(path)]
    try:
        child = subprocess.run(command, env=environment, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise JournalDamaged(
            f"the journal in {path} could not be checked within {_TIMEOUT_S:.0f} s", "is the disk failing? see 'dmesg'"
        ) from error
    if child.returncode == 0:
        return
    said = child.stderr.decode(errors="replace").strip().splitlines()
    why = said[-1] if said else f"the check ended with {child.returncode}"
    if child.returncode < 0:
        why = f"reading it kills the process (signal {-child.returncode})"
    raise JournalDamaged(
        f"the journal in {path} is damaged: {why}",
        "restore a backup with 'fabric journal restore', or see what is left with 'fabric journal verify'",
    )


def walk(path: Path) -> None:
    """Read the small tables and the tail of the blocks; damage that a reader can step over is not an error here."""
    import lmdb

    from fabric.journal.environment import Tables, lmdb_errors

    with (
        lmdb_errors(f"cannot read {path}"),
        lmdb.open(str(path), readonly=True, lock=False, max_dbs=len(Tables._fields), lib_version=0) as environment,
    ):
        tables = Tables(*(environment.open_db(name.encode(), create=False) for name in Tables._fields))
        with environment.begin(buffers=True) as txn:
            for table in (tables.meta, tables.groups, tables.producers, tables.chunks):
                for key, value in txn.cursor(table):
                    bytes(key), bytes(value[-1:])
            blocks, size = 0, 0
            for key, value in txn.cursor(tables.blocks).iterprev():
                blocks, size = blocks + 1, size + len(value)
                bytes(key), bytes(value)
                if blocks >= TAIL_BLOCKS or size >= TAIL_BYTES:
                    break


def main() -> int:
    try:
        walk(Path(sys.argv[1]))
    except JournalDamaged as error:
        print(error, file=sys.stderr)
        return _EXIT_DAMAGED
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
