"""Output of commands: a table or a sentence for people, a JSON document for programs.

A table shows some of the fields of the JSON. Times are RFC 3339 in JSON and relative in tables.
"""

import functools
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar

import click

from fabric.cli import EXIT_CONFLICT
from fabric.cli.support.values import shown_ago, shown_span, shown_time
from fabric.cli.support.variables import prevailing

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=Callable[..., Any])
Row = Mapping[str, Any]
FOLDED_MIN: Final = 16  # characters that a folding column keeps
MOMENTS: Final = (
    "created_us",
    "due_us",
    "time_us",
    "expires_us",
    "since_us",
)  # other fields in microseconds are durations
GAP: Final = 2  # spaces between columns
_GAP: Final = " " * GAP
NARROWEST: Final = 4  # width of a column on a very narrow terminal
PIPE_WIDTH: Final = 100_000  # a table in a pipe is as wide as it needs


class Column(NamedTuple):
    """`key` is the name in JSON. On a narrow terminal, columns that fold take several lines, and columns of the highest
    `rank` are omitted first; rank 0 stays. A column is omitted if every row has its `usual` value."""

    title: str
    key: str
    shown: Callable[[Any], str] | None = None
    folds: bool = False
    usual: Any = ...
    rank: int = 2


class Unconfirmed(click.ClickException):
    exit_code = EXIT_CONFLICT


class Failed(click.ClickException):
    """The command failed, or did a part of its work."""

    def __init__(self, message: str, hint: str, exit_code: int) -> None:
        super().__init__(f"{message}\nhint: {hint}")
        self.exit_code = exit_code  # type: ignore[misc]  # a class variable in click


def output_options(command: F) -> F:
    """`-o table|json` and `--json`, which become one `as_json`."""

    @functools.wraps(command)
    def wrapped(*args: Any, output: str | None, as_json: bool, **rest: Any) -> Any:
        wanted = prevailing(output=output, as_json=as_json)
        chosen = "json" if wanted["as_json"] else wanted["output"]
        return command(*args, as_json=chosen == "json" or (chosen is None and not sys.stdout.isatty()), **rest)

    choice = click.option(
        "-o", "--output", type=click.Choice(["table", "json"]), help="Default: a table on a terminal, else JSON."
    )
    short = click.option("--json", "as_json", is_flag=True, help="Same as -o json.")
    return choice(short(wrapped))  # type: ignore[return-value]


yes_option = click.option("--yes", is_flag=True, help="Do it without asking.")


def confirm(question: str, yes: bool) -> None:
    """Ask the user on a terminal; elsewhere --yes is required. Raises Unconfirmed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Unconfirmed(f"not done: {question}\nhint: confirm with --yes")
    if not click.confirm(f"{question}?", err=True):
        raise Unconfirmed("not done")


def usage(message: str) -> NoReturn:
    raise click.UsageError(message, click.get_current_context(silent=True))


# Answers.


def say(schema: str, fields: Row, sentence: str, as_json: bool) -> None:
    """Print what was done."""
    click.echo(document(schema, fields) if as_json else sentence)


def note(text: str) -> None:
    """Print a line beside the answer, on standard error."""
    click.echo(click.style("note: ", fg="cyan") + text, err=True)


def show_rows(
    schema: str, name: str, rows: Sequence[Row], columns: Sequence[Column], as_json: bool, nothing: str, **besides: Any
) -> None:
    """Print a list. `nothing` is the text for an empty list; `besides` are more fields of the JSON."""
    if as_json:
        click.echo(document(schema, {name: [readable(row) for row in rows], **besides}))
    elif not rows:
        click.echo(nothing)
    else:
        print_table(rows, columns)


def show_fields(schema: str, fields: Row, columns: Sequence[Column], as_json: bool) -> None:
    """Print an object, a line for each field."""
    if as_json:
        click.echo(document(schema, fields))
        return
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for column in columns:
        if column.key in fields:
            table.add_row(column.title, _cell(column, fields))
    _console().print(table)


def print_table(rows: Iterable[Row], columns: Sequence[Column]) -> None:
    """Print a table, at most as wide as the terminal. In a pipe no column is omitted. A table of rich would be the
    same, but takes half a millisecond for each row."""
    rows = list(rows)
    telling = [column for column in columns if any(row.get(column.key) != column.usual for row in rows)]
    if not telling:
        return
    cells = {column: [_cell(column, row) for row in rows] for column in telling}
    terminal = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH
    wanted = {column: max(len(column.title), *map(_width, shown)) for column, shown in cells.items()}
    chosen = _fitting(wanted, terminal)
    shaped = [_shaped(column, width, rows, cells[column]) for column, width in chosen.items()]
    titles, *lines = zip(*shaped, strict=True)
    click.secho(_line(titles), bold=True)
    if lines:
        click.echo("\n".join(map(_line, lines)))
    if missing := [column.title for column in telling if column not in chosen]:
        click.echo(f"not shown: {', '.join(missing)}; a wider terminal or --json shows them", err=True)


def _shaped(column: Column, width: int, rows: Sequence[Row], cells: Sequence[str]) -> list[str]:
    """The title and the cells of a column, filled up to its width. A cell that does not fit has several lines."""
    numbers = all(type(row.get(column.key)) in (int, float, type(None)) for row in rows) and column.shown is None
    fill = f"{{:{'>' if numbers else '<'}{width}}}".format
    shaped = []
    for cell in (column.title, *cells):
        if cell.isascii() and len(cell) <= width:
            shaped.append(fill(cell))
        else:
            shaped.append("\n".join(_padded(part, width, numbers) for part in _folded(cell, width)))
    return shaped


def _padded(text: str, width: int, at_right: bool) -> str:
    fill = " " * (width - _width(text))
    return fill + text if at_right else text + fill


def _folded(text: str, width: int) -> list[str]:
    """The lines of a cell: broken between words, or within a word that is too long."""
    from rich.console import Console
    from rich.text import Text

    return [line.plain for line in Text(text).wrap(Console(), width, overflow="fold")]


def _line(cells: Sequence[str]) -> str:
    """A row of the table; it has several lines if a cell has."""
    line = _GAP.join(cells)
    if "\n" not in line:
        return line.rstrip()
    parts = [cell.split("\n") for cell in cells]
    blanks = [" " * _width(part[0]) for part in parts]
    lines = range(max(map(len, parts)))
    return "\n".join(
        _GAP.join(part[at] if at < len(part) else blank for part, blank in zip(parts, blanks, strict=True))
        for at in lines
    )


def _fitting(wanted: Mapping[Column, int], width: int) -> dict[Column, int]:
    """The columns that fit, with their widths; `wanted` are the widths without folding. The highest rank is omitted
    first, the first column never."""
    least = {column: _least(column, wide) for column, wide in wanted.items()}
    first = next(iter(least), None)
    while _total(least) > width and (spare := [column for column in least if column.rank and column != first]):
        del least[max(reversed(spare), key=lambda column: column.rank)]
    room = width - _total(least)
    fitting = {}
    for column, narrow in least.items():
        more = max(min(wanted[column] - narrow, room), 0)
        fitting[column], room = narrow + more, room - more
    while room < 0 and (widest := max(fitting, key=lambda column: fitting[column])) and fitting[widest] > NARROWEST:
        fitting[widest], room = fitting[widest] - 1, room + 1
    return fitting


def _total(widths: Mapping[Column, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def _width(text: str) -> int:
    """How many places a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _least(column: Column, width: int) -> int:
    return max(len(column.title), min(width, FOLDED_MIN)) if column.folds else width


def document(schema: str, fields: Row) -> str:
    return json.dumps({"schema": schema, **readable(fields)}, ensure_ascii=False, default=str)


def readable(row: Row) -> dict[str, Any]:
    """A row with its times, such as `due_us`, as RFC 3339 in `due`."""
    if not any(name in row for name in MOMENTS):
        return dict(row)
    return {
        name.removesuffix("_us") if name in MOMENTS else name: _time(value) if name in MOMENTS else value
        for name, value in row.items()
    }


def _time(value: float | None) -> str | None:
    return shown_time(value / 1e6) if value else None


def _console() -> "Console":
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False, emoji=False)


def _cell(column: Column, row: Row) -> str:
    value = row.get(column.key)
    if value is None or value == "":
        return "-"
    if column.shown is not None:
        return column.shown(value)
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case list() | tuple():
            return " ".join(map(str, value)) or "-"
    return tidy(str(value))


# Values in tables.


def tidy(text: str) -> str:
    """Printable text: control characters are escaped, so that they cannot change the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def short(text: str) -> str:
    """The beginning of a long text."""
    tidied = tidy(text)
    return tidied if len(tidied) <= 60 else tidied[:59] + "…"


def ago(time_us: int) -> str:
    return shown_ago(time_us / 1e6, time.time())


def span(ms: int) -> str:
    return shown_span(ms / 1000)


def waited(ms: int) -> str:
    """How long the oldest message waits; 0: none waits."""
    return span(ms) if ms else "-"


def limit(shown: Callable[[int], str] = "{:,}".format) -> Callable[[int], str]:
    """A number for which 0 means that there is no limit."""
    return lambda value: shown(value) if value else "no limit"


def counted(value: int) -> str:
    """A number; negative while the hub is still counting."""
    return f"{value:,}" if value >= 0 else "counting"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def some(values: Sequence[str]) -> str:
    """The first value, and the number of the others."""
    return tidy(values[0]) + (f" +{len(values) - 1}" if len(values) > 1 else "") if values else "-"
