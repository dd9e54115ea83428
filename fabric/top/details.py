"""Details: all that is known about one row, a line for each field, with exact numbers."""

from typing import Any, Final

from rich.text import Text

from fabric.cli.support.tables import tidy
from fabric.top import columns
from fabric.top.model import Model, Row

LABEL_WIDTH: Final = 24
LIST_MAX: Final = 20  # values of a list that are shown


def details(model: Model, page: str, row: Row, now_s: float, width: int) -> list[Text]:
    """The columns of the page with their meanings, then all other fields."""
    title = Text(f"{page.removesuffix('s')} {row.label}", style="bold", no_wrap=True, overflow="ellipsis")
    lines = [title, Text("")]
    known = set()
    for column in columns.BY_PAGE[page][1:]:
        value = column.value(model, row, now_s)
        known.add(column.key)
        lines.append(_pair(column.title.lower(), f"{_exact(column, value)}  ({column.meaning})", width))
    for name, value in row.fields.items():
        if name not in known and name != columns.BY_PAGE[page][0].key:
            lines.append(_pair(name.replace("_", " "), written(value), width))
    return lines


def _exact(column: columns.Column, value: Any) -> str:
    if isinstance(value, columns.Ready):
        return f"{'' if value.is_exact else 'at most '}{value.messages:,}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else column.shown(value)


def written(value: Any) -> str:
    """A field as text."""
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return f"{value:,}"
        case list() | tuple():
            more = f" … and {len(value) - LIST_MAX:,} more" if len(value) > LIST_MAX else ""
            return " ".join(written(each) for each in value[:LIST_MAX]) + more if value else "-"
        case dict():
            return "  ".join(f"{tidy(str(name))} {written(each)}" for name, each in value.items()) or "-"
    return tidy(str(value))


def _pair(label: str, value: str, width: int) -> Text:
    line = Text.assemble((f"  {tidy(label):<{LABEL_WIDTH}}", "dim"), value, no_wrap=True, overflow="crop")
    line.truncate(max(width, 1), overflow="ellipsis")
    return line
