"""Keeps the hub small: gives back the pages of the data file that reading and writing have mapped.

LMDB reads through a memory map, and every page that was ever looked at stays in the process's resident size although
it is only the system's file cache, seen from here. A hub with a long backlog would look like a hub that leaks, and a
memory limit would kill it. Letting go of the pages costs nothing but a soft fault for those that are read again.
"""

import ctypes
import os
from pathlib import Path
from typing import Final

RELEASE_EVERY_BYTES: Final = 32 << 20
_MADV_DONTNEED: Final = 4
_MAPS: Final = Path("/proc/self/maps")


class Residence:
    def __init__(self, data_file: Path) -> None:
        self._name = os.fsencode(data_file.resolve())
        self._touched = 0
        self._rested = True
        libc = ctypes.CDLL(None, use_errno=True)
        self._malloc_trim = getattr(libc, "malloc_trim", None)  # glibc has it, others may not
        self._madvise = getattr(libc, "madvise", None) if _MAPS.exists() else None
        if self._madvise is not None:
            self._madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def touched(self, size: int) -> None:
        """So many bytes of the file were read or written. Called by two threads; a lost count does no harm."""
        self._touched += size
        self._rested = False
        if self._touched >= RELEASE_EVERY_BYTES:
            self._touched = 0
            self.release()

    def rest(self) -> None:
        """Nothing was asked for a while: give back also what the allocator keeps of past transactions and blocks."""
        if not self._rested:
            self._rested = True
            self.release()
            if self._malloc_trim is not None:
                self._malloc_trim(0)

    def release(self) -> None:
        """Unmap what is resident. The map is read-only and shared, so nothing is lost and readers go on unharmed."""
        if self._madvise is None:
            return
        try:
            maps = _MAPS.read_bytes()
        except OSError:  # no descriptor is free; the pages are given back the next time
            return
        for line in maps.splitlines():
            if line.endswith(self._name):
                first, _, last = line.split(b" ", 1)[0].partition(b"-")
                start, stop = int(first, 16), int(last, 16)
                self._madvise(start, stop - start, _MADV_DONTNEED)
