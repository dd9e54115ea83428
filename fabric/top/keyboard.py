"""Keyboard: bytes of a terminal become names of keys. Signals such as Ctrl-C stay signals.

A terminal sends a key like PgDn as several bytes that begin with ESC. ESC without more bytes is the key Esc; only time
can tell the two apart, so the caller waits ESCAPE_S and then calls `rest`.
"""

import codecs
import os
import re
import termios
import tty
from types import TracebackType
from typing import Any, Final

ESCAPE_S: Final = 0.05  # bytes of one key come together, also over a network
READ_BYTES: Final = 1024
PENDING_MAX: Final = 32  # bytes of a sequence that has no end; no key has as many
SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O[A-Za-z])")
BEGINNING: Final = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*|O)?")
NAMES: Final = {
    **{f"\x1b{kind}{letter}": name for kind in "[O" for letter, name in zip("ABCDHF", (
        "up", "down", "right", "left", "home", "end"), strict=True)},
    "\x1b[1~": "home", "\x1b[7~": "home", "\x1b[4~": "end", "\x1b[8~": "end",
    "\x1b[5~": "pgup", "\x1b[6~": "pgdn", "\x1b[Z": "backtab", "\x1bOM": "enter",
    "\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\x08": "backspace", "\x15": "clear",
    "\x06": "pgdn", "\x02": "pgup",  # Ctrl-F and Ctrl-B, as in less
}  # fmt: skip


class Keys:
    """Turns bytes into names of keys: `a`, `é`, `up`, `enter`, `esc`. Unknown sequences are passed over."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""  # the beginning of a sequence

    @property
    def is_open(self) -> bool:
        """Whether more bytes of a key may follow."""
        return bool(self._pending)

    def feed(self, data: bytes) -> list[str]:
        text, found = self._pending + self._decoder.decode(data), list[str]()
        self._pending = ""
        while text:
            if text[0] != "\x1b":
                found.append(NAMES.get(text[0], text[0]))
                text = text[1:]
            elif sequence := SEQUENCE.match(text):
                found += [NAMES[sequence[0]]] if sequence[0] in NAMES else []
                text = text[sequence.end() :]
            elif BEGINNING.fullmatch(text) and len(text) < PENDING_MAX:
                self._pending, text = text, ""
            else:
                found.append("esc")
                text = text[1:]
        return [key for key in found if len(key) > 1 or key.isprintable()]

    def rest(self) -> list[str]:
        """No more bytes follow: what has come is the key Esc, or a sequence without an end."""
        is_escape, self._pending = self._pending == "\x1b", ""
        return ["esc"] if is_escape else []


class Keyboard:
    """A terminal that gives each key at once and does not show it; `leave` restores its settings."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.keys = Keys()
        self._settings: list[Any] | None = None

    def enter(self) -> None:
        self._settings = termios.tcgetattr(self.fd)
        tty.setcbreak(self.fd, termios.TCSADRAIN)  # not raw: Ctrl-C and Ctrl-Z remain signals

    def leave(self) -> None:
        if self._settings is not None:
            termios.tcsetattr(self.fd, termios.TCSADRAIN, self._settings)
            self._settings = None

    def read(self) -> list[str] | None:
        """The keys that were pressed; None when the terminal is gone."""
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        return self.keys.feed(data) if data else None

    def __enter__(self) -> "Keyboard":
        self.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
