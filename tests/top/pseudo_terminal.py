"""A command under a pseudo terminal: keys are typed, and the screen is read as a terminal would show it."""

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from typing import Any, Final

from tests.patience import PATIENCE_S

TOKEN: Final = re.compile(r"\x1b\[([0-9;?]*)([@-~])|\x1b[()].|\x1b.|([\r\n])|([^\x1b\r\n]+)")
ALTERNATE: Final = "\x1b[?1049h", "\x1b[?1049l"
CURSOR: Final = "\x1b[?25l", "\x1b[?25h"


class PseudoTerminal:
    def __init__(self, *arguments: str, width: int = 80, height: int = 24, keys: bool = True) -> None:
        self.master, self.slave = pty.openpty()
        self.width, self.height = width, height
        self._size(width, height)
        self.before = termios.tcgetattr(self.slave)
        self.written = ""
        environment = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        environment.pop("COLUMNS", None)
        environment.pop("LINES", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fabric", *arguments],
            stdin=self.slave if keys else subprocess.DEVNULL,
            stdout=self.slave,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            preexec_fn=self._control,
        )

    def _control(self) -> None:
        """In the child: the pseudo terminal is its controlling terminal, so that Ctrl-C and Ctrl-Z are signals."""
        fcntl.ioctl(1, termios.TIOCSCTTY, 0)

    def _size(self, width: int, height: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def resize(self, width: int, height: int) -> None:
        """As a window does: the kernel sends SIGWINCH."""
        self.width, self.height = width, height
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def read(self) -> None:
        while select.select([self.master], [], [], 0.02)[0]:
            data = b""
            with contextlib.suppress(OSError):
                data = os.read(self.master, 65536)
            if not data:
                return
            self.written += data.decode(errors="replace")

    def lines(self) -> list[str]:
        """The lines of the screen, as the written characters and cursor movements make them."""
        grid = [[" "] * self.width for _ in range(self.height)]
        row = column = 0
        for found in TOKEN.finditer(self.written.rpartition(ALTERNATE[0])[2]):
            arguments, command, newline, text = found.groups()
            if command == "H":
                parts = [int(part or 1) for part in (arguments or "1;1").split(";")]
                row, column = parts[0] - 1, (parts[1] if len(parts) > 1 else 1) - 1
            elif command == "J":
                grid = [[" "] * self.width for _ in range(self.height)]
            elif newline:
                row, column = (row, 0) if newline == "\r" else (row + 1, column)
            for letter in text or "":
                if row < self.height and column < self.width:
                    grid[row][column] = letter
                column += 1
        return ["".join(line).rstrip() for line in grid]

    def wait(self, reached: Callable[[list[str]], Any]) -> list[str]:
        """Wait until the screen is as it should be."""
        end = time.monotonic() + PATIENCE_S
        while True:
            self.read()
            lines = self.lines()
            if reached(lines):
                return lines
            assert time.monotonic() < end, "\n".join(lines)
            assert self.process.poll() is None, f"ended: {self.process.communicate()}"

    def has(self, text: str) -> list[str]:
        return self.wait(lambda lines: text in "\n".join(lines))

    def has_not(self, text: str) -> list[str]:
        return self.wait(lambda lines: text not in "\n".join(lines))

    def end(self) -> int:
        """Wait for the end of the command; returns its exit code. The terminal must be as it was."""
        end = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            self.read()  # the command may wait until its last words are read
            assert time.monotonic() < end
        self.read()
        assert termios.tcgetattr(self.slave) == self.before
        for on, off in (ALTERNATE, CURSOR):
            assert self.written.count(on) == self.written.count(off), "it is not left as often as it is entered"
            assert self.written.rfind(off) >= self.written.rfind(on)
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        assert self.process.stderr is not None
        self.process.stderr.close()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)
