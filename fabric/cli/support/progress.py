"""Progress of long work on journals and snapshots, on stderr: a bar on a terminal, else a line every few seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

PLAIN_EVERY_S: Final = 5.0  # a line of progress this often when stderr is not a terminal
Progress = Callable[[int, int], None]

no_progress_option = click.option("--no-progress", is_flag=True, help="Say nothing while at work.")


@contextmanager
def shown(doing: str, unit: str, is_silent: bool) -> Iterator[Progress]:
    """A bar on a terminal, a line every few seconds elsewhere; on stderr."""
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
