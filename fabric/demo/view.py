"""The view of the demo: a live table on a terminal, plain lines elsewhere."""

import itertools
import sys
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fabric.demo.run import GROUPS, Figures, GroupFigures, Verdict

SPARKS: Final = "▁▂▃▄▅▆▇█"
HISTORY: Final = 30  # past figures in a bar chart, ten a second; fits a terminal of 100 columns
EVENTS_KEPT: Final = 8
LINE_EVERY_S: Final = 1.0


class View(Protocol):
    def __enter__(self) -> "View": ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def show(self, figures: Figures) -> None: ...
    def tell(self, sentence: str) -> None: ...


def view_for_terminal() -> View:
    return LiveView(Console()) if sys.stdout.isatty() else PlainView(lambda line: print(line, flush=True))


class PlainView:
    """Prints a line every second and a line for each event."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._next_s = 0.0
        self._now_s = 0.0

    def __enter__(self) -> "PlainView":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show(self, figures: Figures) -> None:
        self._now_s = figures.elapsed_s
        if figures.elapsed_s < self._next_s:
            return
        self._next_s = figures.elapsed_s + LINE_EVERY_S
        groups = "  ".join(f"{name} {group.seen:,}" for name, group in figures.groups.items())
        self._write(f"{figures.elapsed_s:5.1f} s  hub {figures.hub}  confirmed {figures.confirmed:,}  {groups}")

    def tell(self, sentence: str) -> None:
        self._write(f"{self._now_s:5.1f} s  * {sentence}")


class LiveView:
    """A table that is drawn over, with a bar chart of the last rates, and the events below."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=10, transient=False)
        self._events: deque[Text] = deque(maxlen=EVENTS_KEPT)
        self._history: dict[str, deque[tuple[float, int]]] = {}
        self._last: Figures | None = None
        self._now_s = 0.0

    def __enter__(self) -> "LiveView":
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, figures: Figures) -> None:
        self._now_s = figures.elapsed_s
        self._note("confirmed", figures.elapsed_s, figures.confirmed)
        for name, group in figures.groups.items():
            self._note(name, figures.elapsed_s, sum(group.by_consumer.values()))
        self._last = figures
        self._draw()

    def tell(self, sentence: str) -> None:
        style = "bold red" if sentence.startswith("kill") else "default"
        self._events.append(Text(f"{self._now_s:5.1f} s  {sentence}", style=style))
        self._draw()

    def _note(self, name: str, when_s: float, count: int) -> None:
        self._history.setdefault(name, deque(maxlen=HISTORY + 1)).append((when_s, count))

    def _rates(self, name: str) -> list[float]:
        points = list(self._history.get(name, ()))
        return [(n1 - n0) / max(t1 - t0, 0.001) for (t0, n0), (t1, n1) in itertools.pairwise(points)]

    def _draw(self) -> None:
        parts: list[Panel | Group] = []
        if self._last is not None:
            parts.append(Panel(self._table(self._last), title=self._title(self._last), border_style="cyan"))
        parts.append(Group(*self._events))
        self._live.update(Group(*parts))

    def _title(self, figures: Figures) -> str:
        colour = "red" if figures.hub == "DOWN" else "green"
        return f"fabric demo   [{colour}]hub {figures.hub}[/]   {figures.elapsed_s:.1f} s"

    def _table(self, figures: Figures) -> Table:
        table = Table(box=None, expand=True)
        table.add_column("")
        table.add_column("messages", justify="right")
        table.add_column("again", justify="right")
        table.add_column("msg/s", justify="right")
        table.add_column("the last seconds", no_wrap=True)
        table.add_column("consumers")
        in_flight = figures.sent - figures.confirmed
        table.add_row(
            "confirmed", f"{figures.confirmed:,}", "", *self._speed("confirmed"), f"{in_flight:,} waiting for the disk"
        )
        for name, group in figures.groups.items():
            table.add_row(
                f"{name} [dim]{GROUPS[name][0]}[/]",
                f"{group.seen:,}",
                f"{group.again:,}",
                *self._speed(name),
                _shares(group),
            )
        return table

    def _speed(self, name: str) -> tuple[str, str]:
        rates = self._rates(name)
        recent = rates[-5:]
        return (f"{sum(recent) / len(recent):,.0f}" if recent else "0", sparkline(rates))


def sparkline(rates: list[float]) -> str:
    top = max(rates, default=0.0)
    if top <= 0:
        return SPARKS[0] * len(rates)
    return "".join(SPARKS[min(len(SPARKS) - 1, max(0, round(rate / top * (len(SPARKS) - 1))))] for rate in rates)


def _shares(group: GroupFigures) -> str:
    return "  ".join(f"{name} {count:,}" for name, count in sorted(group.by_consumer.items()))


def summary(verdict: Verdict) -> list[str]:
    """The lines at the end of the demo."""
    lines = ["", f"confirmed   {verdict.confirmed:,} messages, each after the fsync that covers it"]
    for name, group in verdict.groups.items():
        came_again = f", {group.again:,} came again" if group.again else ""
        lines.append(f"{name:10s}  {group.seen:,} seen, {verdict.lost[name]:,} lost{came_again}   ({_shares(group)})")
    for waiting, recovery_s in zip(verdict.unconfirmed_at_kill, verdict.recovery_s, strict=False):
        lines.append(
            f"kill -9     {waiting:,} messages were unconfirmed then, and are among the confirmed now; "
            f"back and confirming {recovery_s * 1000:,.0f} ms after the restart"
        )
    lines.append(f"journal     {verdict.stored_twice:,} messages stored twice")
    if verdict.passed:
        lines.append(f"Nothing was lost. ({verdict.seconds:.1f} s)")
    else:
        lines.append("SOMETHING WAS LOST. Please report this, with the lines above.")
    return lines
