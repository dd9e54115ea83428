"""The answer of a job as Python rows, which can be printed, drawn and written.

Tables are read once, however many outputs there are. Output for people is cut after some rows, with a note; output for
programs (`--out`, as Parquet or JSON) is complete.
"""

import json
import math
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from fabric_spark.errors import SourceError
from fabric_spark.jobs.base import Job, Settings, Tables

ROWS_SHOWN: Final = 40
ROWS_DRAWN: Final = 20_000
CELL_MAX: Final = 60
_RAISED: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Lost|Timeout): ")
_BYTE_UNITS: Final = ("B", "KB", "MB", "GB", "TB")


class Table(NamedTuple):
    name: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    more: bool  # there are more rows than these

    def values(self, column: str) -> list[Any]:
        at = self.columns.index(column)
        return [row[at] for row in self.rows]


class Answer(NamedTuple):
    job: Job
    settings: Settings
    tables: dict[str, Table]
    made: datetime


def ask(
    spark: SparkSession, job: Job, settings: Settings, out: str = "", form: str = "parquet", rows: int = ROWS_DRAWN
) -> Answer:
    """Run a job; its tables are written to `out`, when that is given, and read."""
    try:
        frames = job.run(spark, settings)
        if out:
            _write(frames, out, form)
        tables = {name: _table(name, frame, rows) for name, frame in frames.items()}
    except PySparkException as error:
        raise explained_error(error) from error
    return Answer(job, settings, tables, datetime.now(UTC).replace(microsecond=0))


def _table(name: str, frame: DataFrame, rows: int) -> Table:
    found = frame.limit(rows + 1).collect()
    return Table(name, tuple(frame.columns), [tuple(map(_utc, row)) for row in found[:rows]], len(found) > rows)


def _utc(value: Any) -> Any:
    """Spark gives Python times in the zone of this machine, without the zone."""
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) else value


def _write(frames: Tables, out: str, form: str) -> None:
    """Write the tables, each into a folder of its name. They are kept, so that nothing is computed twice."""
    for name, frame in frames.items():
        frame.cache().write.mode("overwrite").format(form).save(f"{out.rstrip('/')}/{name.replace('_', '-')}")


def explained_error(error: PySparkException) -> SourceError:
    """The error text of this package, without the lines that Spark adds around it."""
    text = str(error)
    for line in text.splitlines():
        _, mark, said = line.partition("fabric_spark.errors.SourceError: ")
        if mark:
            what, _, hint = said.partition(". What to do: ")
            return SourceError(what, hint.rstrip(". "))
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    raised = [line for line in lines if _RAISED.match(line)]  # the error of a Python worker is below its traceback
    return SourceError(f"Spark: {raised[-1] if raised else lines[0]}", "FABRIC_DEBUG=1 shows all of it")


# For people.


def text(answer: Answer) -> str:
    """All tables as text."""
    parts = [f"{answer.job.title}: {answer.job.about}"]
    parts += [table_text(table, answer.job.units) for table in answer.tables.values()]
    return "\n\n".join(parts) + "\n"


def table_text(table: Table, units: Mapping[str, str]) -> str:
    """A table with aligned columns; numbers to the right."""
    title = table.name.replace("_", " ")
    if not table.rows:
        return f"{title}: nothing"
    heads = [column.replace("_", " ") for column in table.columns]
    shown = [
        [shown_value(value, units.get(column, "")) for column, value in zip(table.columns, row, strict=True)]
        for row in table.rows[:ROWS_SHOWN]
    ]
    right = [all(isinstance(row[i], int | float | None) for row in table.rows) for i in range(len(heads))]
    widths = [max(map(_width, column)) for column in zip(heads, *shown, strict=True)]
    lines = [title, _line(heads, widths, right), "  ".join("─" * width for width in widths)]
    lines += [_line(row, widths, right) for row in shown]
    if len(table.rows) > ROWS_SHOWN or table.more:
        lines.append(
            f"… {'over ' if table.more else ''}{len(table.rows) - ROWS_SHOWN:,} more; --out writes all of them"
        )
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = []
    for cell, width, is_right in zip(cells, widths, right, strict=True):
        space = " " * (width - _width(cell))
        padded.append(space + cell if is_right else cell + space)
    return "  ".join(padded).rstrip()


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def shown_value(value: Any, unit: str = "") -> str:
    """A value as people read it: with its unit, times without what is always zero, control characters spelt out."""
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int() | float() if unit == "B":
            return shown_bytes(value)
        case int():
            return f"{value:,}" + _suffix(unit)
        case float():
            return shown_float(value) + _suffix(unit)
        case datetime():
            return shown_time(value)
        case date():
            return value.isoformat()
        case bytes() | bytearray():
            return shown_value(bytes(value).decode(errors="backslashreplace"))
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))
    return line if len(line) <= CELL_MAX else line[: CELL_MAX - 1] + "…"


def _suffix(unit: str) -> str:
    return "" if not unit else unit if unit in ("%", "/s") else f" {unit}"


def shown_bytes(value: float) -> str:
    place = 0
    while abs(value) >= 1000 and place < len(_BYTE_UNITS) - 1:
        value, place = value / 1000, place + 1
    return (
        f"{value:.0f} B"
        if not place
        else f"{value:.3g} {_BYTE_UNITS[place]}"
        if value < 999.5
        else f"{value:.0f} {_BYTE_UNITS[place]}"
    )


def shown_float(value: float) -> str:
    if math.isnan(value) or math.isinf(value):
        return "–"
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def shown_time(value: datetime) -> str:
    if value.microsecond:
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    return value.strftime("%Y-%m-%d %H:%M:%S")


# For programs.


def document(answer: Answer) -> dict[str, Any]:
    """The answer as one JSON document."""
    return {
        "schema": f"fabric.spark.{answer.job.name}.v1",
        "job": answer.job.name,
        "made": answer.made.isoformat().replace("+00:00", "Z"),
        "settings": {name: value for name, value in answer.settings.items() if value not in (None, "")},
        "tables": {
            name: [dict(zip(table.columns, map(plain, row), strict=True)) for row in table.rows]
            for name, table in answer.tables.items()
        },
        "cut": [name for name, table in answer.tables.items() if table.more],
    }


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    match value:
        case datetime():
            return value.replace(tzinfo=value.tzinfo or UTC).isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case bytes() | bytearray():
            return bytes(value).decode(errors="backslashreplace")
        case float() if math.isnan(value) or math.isinf(value):
            return None
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case tuple() | list():
            return [plain(item) for item in value]
    return value


def write_json(answer: Answer) -> str:
    return json.dumps(document(answer), ensure_ascii=False)


def write_file(path: str, content: str) -> None:
    """Whole or not at all."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    partial.write_text(content, encoding="utf-8")
    partial.replace(target)
