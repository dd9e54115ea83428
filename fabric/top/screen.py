"""Screen: the alternate screen of a terminal, which is left as it was found, also after an exception."""

import os
import sys
from types import TracebackType
from typing import Final

from rich.console import Console, ConsoleDimensions, RenderableType

USUAL: Final = ConsoleDimensions(80, 24)  # of a terminal that does not know its size, such as a serial line


def terminal_size(fd: int) -> ConsoleDimensions:
    """The present size of a terminal. COLUMNS and LINES are not read: they do not change when the window does."""
    try:
        width, height = os.get_terminal_size(fd)
    except OSError:
        return USUAL
    return ConsoleDimensions(width or USUAL.width, height or USUAL.height)


class Screen:
    def __init__(self) -> None:
        self._fd = sys.stdout.fileno()
        self._console = Console(highlight=False, markup=False, emoji=False)

    def size(self) -> ConsoleDimensions:
        return terminal_size(self._fd)

    def enter(self) -> None:
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)

    def leave(self) -> None:
        self._console.show_cursor(True)
        self._console.set_alt_screen(False)

    def draw(self, lines: RenderableType, size: ConsoleDimensions) -> None:
        """Write all lines in one go."""
        self._console.size = size
        self._console.update_screen(lines)

    def __enter__(self) -> "Screen":
        self.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
