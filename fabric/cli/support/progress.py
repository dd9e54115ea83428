"""Progress of long work, on stderr: on a terminal it is written over, elsewhere it is a new line every few seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

TERMINAL_EVERY_S: Final = 0.2  # how often a line of progress is written over on a terminal
PLAIN_EVERY_S: Final = 5.0  # how often a new line of progress is written when stderr is not a terminal
Progress = Callable[[int, int], None]

no_progress_option = click.option("--no-progress", is_flag=True, help="Do not show progress.")


@contextmanager
def shown(doing: str, unit: str, is_silent: bool) -> Iterator[Progress]:
    """Shows progress: a bar on a terminal, a line every few seconds elsewhere."""
    if is_silent:
        yield lambda done, total: None
        return
    if not sys.stderr.isatty():
        yield _plain_progress(doing, unit)
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _plain_progress(doing: str, unit: str) -> Progress:
    said_s = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal said_s
        if time.monotonic() - said_s >= PLAIN_EVERY_S:
            said_s = time.monotonic()
            click.echo(f"{doing}: {done:,} of {total:,} {unit}", err=True)

    return progress


class RateLine:
    """Shows a growing count and its rate."""

    def __init__(self, *, is_silent: bool) -> None:
        self._is_silent = is_silent
        self._terminal = sys.stderr.isatty()
        self._begun = time.monotonic()
        self._every_s = TERMINAL_EVERY_S if self._terminal else PLAIN_EVERY_S
        self._next = self._begun + self._every_s

    def at(self, count: int) -> None:
        now = time.monotonic()
        if self._is_silent or now < self._next:
            return
        self._next = now + self._every_s
        line = f"sent {count:,}  {count / (now - self._begun):,.0f} msg/s"
        click.echo(f"\r{line}\x1b[K" if self._terminal else line, nl=not self._terminal, err=True)

    def done(self) -> float:
        """Remove the line; returns the seconds since the beginning."""
        if self._terminal and not self._is_silent:
            click.echo("\r\x1b[K", nl=False, err=True)
        return time.monotonic() - self._begun
