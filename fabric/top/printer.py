"""Printer: views as text or JSON, one after another, for --once, pipes and terminals without a cursor."""

import asyncio
import os
import sys
import time
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console

from fabric.cli.support.tables import document
from fabric.top.document import SCHEMA, fields
from fabric.top.model import Model
from fabric.top.screen import terminal_size
from fabric.top.source import Source
from fabric.top.state import State
from fabric.top.view import Link, printed
from fabric_client.errors import ConnectionLost, Timeout

if TYPE_CHECKING:
    from fabric_client import AsyncClient

PIPE_WIDTH: Final = 200  # room for all columns and a long name


def is_dumb() -> bool:
    """Whether the terminal cannot move its cursor."""
    return os.environ.get("TERM", "") in ("", "dumb", "unknown")


class Printer:
    def __init__(self, fab: "AsyncClient", url: str, state: State, interval_s: float, as_json: bool) -> None:
        self._url = url
        self._state = state
        self._interval_s = interval_s
        self._as_json = as_json
        self._model = Model()
        self._source = Source(fab)

    async def once(self, timeout_s: float) -> None:
        """Print one view. Rates need two answers: the second is asked for after an interval."""
        await self._ask(timeout_s)
        await asyncio.sleep(self._interval_s)
        await self._ask(timeout_s)
        self._print()

    async def run(self, timeout_s: float) -> None:
        """Print a view at each interval. While the hub does not answer, no view is printed."""
        await self._ask(timeout_s)
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self._ask(timeout_s)
            except (Timeout, ConnectionLost) as error:
                click.echo(click.style("warning: ", fg="yellow") + str(error), err=True)
            else:
                self._print()

    async def _ask(self, timeout_s: float) -> None:
        pulse = await self._source.ask(timeout_s)
        if self._source.has_restarted():
            self._model.restart()
        self._model.merge(pulse, time.monotonic())

    def _print(self) -> None:
        assert self._model.merged_s is not None
        now_s = self._model.merged_s
        if self._as_json:
            click.echo(document(SCHEMA, fields(self._model, self._state, self._url, now_s)))
            return
        width = terminal_size(sys.stdout.fileno()).width if sys.stdout.isatty() else PIPE_WIDTH
        console = Console(width=width, highlight=False, markup=False, emoji=False)
        link = Link(self._url, clock=time.strftime("%H:%M:%S"))
        console.print(printed(self._model, self._state, link, now_s, width))
        sys.stdout.flush()
