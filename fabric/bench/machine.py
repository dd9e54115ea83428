"""The machine on which the benchmark runs."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fabric import __version__
from fabric.journal.directory import file_system


def describe(folder: Path) -> dict[str, Any]:
    """The machine, the file system of `folder`, and the versions of the libraries."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "file_system": file_system(folder) or "unknown file system",
        "python": platform.python_version(),
        "fabric": __version__,
        "libraries": {name: version(name) for name in ("pyzmq", "lmdb", "msgpack")},
    }


def line(about: dict[str, Any]) -> str:
    libraries = " ".join(f"{name} {number}" for name, number in about["libraries"].items())
    return (
        f"{about['cores']} cores of {about['cpu']}, {about['memory_gib']} GiB, {about['file_system']}, "
        f"{about['system']}, Python {about['python']}, {libraries}"
    )


def _cpu_model() -> str:
    try:
        for row in Path("/proc/cpuinfo").read_text().splitlines():
            if row.startswith("model name"):
                return row.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
