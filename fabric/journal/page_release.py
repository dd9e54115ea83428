"""Releases the mapped pages of the data file, so that the hub's resident memory stays small.

LMDB reads through a memory map. Each page that was read counts as resident memory of the process, although it is file
cache that the kernel can take back. A hub with a long backlog would look like a leak, and a memory limit would kill
it. A released page that is read again costs a soft page fault.
"""

import ctypes
import os
from pathlib import Path
from typing import Final

RELEASE_EVERY_BYTES: Final = 32 << 20
_MADV_DONTNEED: Final = 4
_MAPS: Final = Path("/proc/self/maps")


class PageRelease:
    def __init__(self, data_file: Path) -> None:
        self._name = os.fsencode(data_file.resolve())
        self._touched = 0
        self._rested = True
        libc = ctypes.CDLL(None, use_errno=True)
        self._malloc_trim = getattr(libc, "malloc_trim", None)  # in glibc; other C libraries may lack it
        self._madvise = getattr(libc, "madvise", None) if _MAPS.exists() else None
        if self._madvise is not None:
            self._madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def touched(self, size: int) -> None:
        """Count bytes of the file that were read or written. Called by two threads; a lost count does no harm."""
        self._touched += size
        self._rested = False
        if self._touched >= RELEASE_EVERY_BYTES:
            self._touched = 0
            self.release()

    def rest(self) -> None:
        """Release the pages, and memory that the allocator keeps. Called when the journal was idle for a while."""
        if not self._rested:
            self._rested = True
            self.release()
            if self._malloc_trim is not None:
                self._malloc_trim(0)

    def release(self) -> None:
        """Release all resident pages. The map is read-only and shared: nothing is lost, and readers go on."""
        if self._madvise is None:
            return
        try:
            maps = _MAPS.read_bytes()
        except OSError:  # no descriptor is free; the pages are released the next time
            return
        for line in maps.splitlines():
            if line.endswith(self._name):
                first, _, last = line.split(b" ", 1)[0].partition(b"-")
                start, stop = int(first, 16), int(last, 16)
                self._madvise(start, stop - start, _MADV_DONTNEED)
