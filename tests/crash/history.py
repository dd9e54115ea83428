"""The history of one process: one line before a call and one after it, in a file of its own.

A line is written with one system call, so it is in the file after a kill -9. A call without its second line has an
unknown outcome: it may have happened or not.
"""

import json
import os
import zlib
from pathlib import Path
from typing import Any, Final, NamedTuple

FILLER_MAX: Final = 400  # bytes after the id, so that messages differ in length


def body_of(producer: str, number: int) -> bytes:
    """The one right payload of a message: what is received can be compared without asking the sender."""
    head = f"{producer}:{number}:".encode()
    seed = zlib.crc32(head)
    return head + bytes((seed >> shift) & 0xFF for shift in (0, 8, 16, 24)) * (seed % (FILLER_MAX // 4))


def name_of(body: bytes) -> tuple[str, int]:
    """(producer, number) of a payload, as far as it says so; its bytes may still be wrong."""
    producer, number, _ = body.split(b":", 2)
    return producer.decode(), int(number)


def digest(body: bytes) -> int:
    return zlib.crc32(body)


class Log:
    """Written by one process."""

    def __init__(self, path: Path, **about: Any) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.say("start", about)

    def say(self, event: str, *args: Any) -> None:
        os.write(self._fd, json.dumps([event, *args], separators=(",", ":")).encode() + b"\n")


class History(NamedTuple):
    """What one process said."""

    about: dict[str, Any]  # role and name; for consumers the group and whether it is its only member; run
    events: list[list[Any]]


def read(path: Path) -> History:
    lines = path.read_bytes().split(b"\n")
    events = [json.loads(line) for line in lines[:-1]]  # a last line without its end was cut off by the kill
    assert events, f"{path} is empty"
    assert events[0][0] == "start"
    return History(events[0][1], events[1:])


def read_all(folder: Path) -> list[History]:
    """All histories of a run, in the order in which the processes were started."""
    found = [read(path) for path in sorted(folder.glob("*.log")) if path.stat().st_size]
    return sorted(found, key=lambda history: int(history.about["run"]))
