"""One page for people: figures, charts and tables of a job, in one file that needs nothing else."""

import html
import json
from datetime import datetime
from typing import Any, Final

from fabric_spark.jobs.answer import Answer, Table, shown_value
from fabric_spark.jobs.charts import draw

ROWS_SHOWN: Final = 200
FIGURES_MAX: Final = 6
_COLOURS: Final = ("#2f6fde", "#e07a1f", "#2a9d6f", "#c2418e", "#7a5cd6", "#b39412", "#178f9e", "#c8453b")
_DARK: Final = ("#6ea0ff", "#ffa257", "#5fd0a0", "#f07fc0", "#ab94ff", "#e0c24a", "#53c6d6", "#ff8277")
_SUMMED: Final = frozenset(
    (
        *("messages", "bytes", "rows", "files", "letters", "duplicates", "findings", "published", "settled"),
        *("deliveries", "redeliveries", "sessions", "stored", "distinct", "duplicate_bytes"),
        *("retry", "release", "lapse", "lost", "dead", "expired"),
    )
)
_STYLE: Final = """
:root { color-scheme: light dark; --paper: #fbfbfa; --card: #fff; --ink: #1c1f23; --soft: #667079; --rule: #e4e6e8;
  --accent: #2f6fde; --stripe: #f5f7f9; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --card: #1b1f23; --ink: #e7eaed; --soft: #97a1aa;
  --rule: #2d3339; --accent: #6ea0ff; --stripe: #20252a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 40px 20px 60px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -.01em; }
h2 { font-size: 18px; margin: 36px 0 10px; text-transform: capitalize; }
.about { color: var(--soft); margin: 0 0 4px; font-size: 17px; }
.origin { color: var(--soft); font-size: 13px; margin: 0; overflow-wrap: anywhere; }
.figures { display: flex; flex-wrap: wrap; gap: 12px; margin: 26px 0 8px; }
.figures div { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 12px 18px;
  min-width: 130px; flex: 1; }
.figures b { display: block; font-size: 23px; font-weight: 600;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.figures span { color: var(--soft); font-size: 13px; }
figure { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; margin: 18px 0;
  padding: 16px 18px; }
figcaption { font-weight: 600; margin-bottom: 4px; }
.legend { margin: 0 0 4px; font-size: 13px; color: var(--soft); display: flex; flex-wrap: wrap; gap: 2px 16px; }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font-size: 12px; fill: var(--soft); dominant-baseline: middle; font-variant-numeric: tabular-nums; }
svg text.label { fill: var(--ink); }
.grid { stroke: var(--rule); stroke-width: 1; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.area { opacity: .14; } .spot { opacity: 0; } .spot:hover { opacity: 1; } rect:hover { opacity: .8; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { padding: 7px 14px; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--rule); }
th { font-weight: 600; color: var(--soft); font-size: 13px; }
tbody tr:nth-child(even) { background: var(--stripe); } tbody tr:last-child td { border-bottom: 0; }
.n { text-align: right; font-variant-numeric: tabular-nums; }
.none { color: var(--soft); } footer { color: var(--soft); font-size: 13px; margin-top: 40px; }
details { margin-top: 30px; } summary { cursor: pointer; color: var(--soft); }
pre { white-space: pre-wrap; font-size: 13px; }
@media print { figure, .scroll { break-inside: avoid; } }
"""


def page(answer: Answer) -> str:
    """The whole page."""
    job = answer.job
    charts = "".join(draw(chart, answer.tables[chart.table]) for chart in job.charts if chart.table in answer.tables)
    tables = "".join(_section(answer, table) for table in answer.tables.values())
    origin = f"{_origin(str(answer.settings.get('snapshot', '')))} · {answer.made:%Y-%m-%d %H:%M} UTC"
    settings = {name: value for name, value in answer.settings.items() if value not in (None, "")}
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_escaped(job.title)} – Fabric</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}{_palette()}</style></head>"
        f'<body><main><header><h1>{_escaped(job.title)}</h1><p class="about">{_escaped(job.about)}</p>'
        f'<p class="origin">{_escaped(origin)}</p></header>{_figures(answer)}{charts}{tables}'
        f"<details><summary>How this was made</summary><pre>fabric spark run {_escaped(job.name)}\n"
        f"{_escaped(json.dumps(settings, indent=2, default=str, ensure_ascii=False))}</pre></details>"
        f"<footer>Made by Fabric. Times are UTC.</footer></main></body></html>\n"
    )


def _origin(snapshot: str) -> str:
    """Where the data was, without the marks of JSON."""
    if not snapshot.startswith("{"):
        return snapshot
    return ", ".join(str(path) for path in json.loads(snapshot).values())


def _palette() -> str:
    def rules(colours: tuple[str, ...]) -> str:
        return "".join(
            f"svg .c{k}{{fill:{c}}}svg .s{k}{{stroke:{c}}}.legend .k{k}{{background:{c}}}"
            for k, c in enumerate(colours)
        )

    return f"{rules(_COLOURS)}@media (prefers-color-scheme: dark){{{rules(_DARK)}}}"


def _figures(answer: Answer) -> str:
    """The sums of the first table."""
    table = next(iter(answer.tables.values()), None)
    if table is None or not table.rows:
        return ""
    cards = [] if len(table.rows) == 1 else [(shown_value(len(table.rows)) + ("+" if table.more else ""), table.name)]
    for column in table.columns:
        values = [value for value in table.values(column) if value is not None]
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if not numbers or len(numbers) < len(values) or column.endswith("seq"):
            continue
        unit = answer.job.units.get(column, "")
        told, what = _digest(column, numbers, unit)
        cards.append((shown_value(told, unit), what))
    shown = "".join(
        f"<div><b>{_escaped(value)}</b><span>{_escaped(name)}</span></div>" for value, name in cards[:FIGURES_MAX]
    )
    return f'<div class="figures">{shown}</div>' if shown else ""


def _digest(column: str, numbers: list[Any], unit: str) -> tuple[Any, str]:
    """The figure of a column: the sum if its values can be added, else the greatest value."""
    name = column.replace("_", " ")
    if len(numbers) == 1:
        return numbers[0], name
    is_sum = column in _SUMMED
    return (sum(numbers), name) if is_sum else (max(numbers), f"{name}, at most")


def _section(answer: Answer, table: Table) -> str:
    title = f"<h2>{_escaped(table.name.replace('_', ' '))}</h2>"
    if not table.rows:
        return f'{title}<p class="none">Nothing.</p>'
    right = [_is_number(table, i) for i in range(len(table.columns))]
    heads = "".join(
        f"<th{' class=n' if is_right else ''}>{_escaped(column.replace('_', ' '))}</th>"
        for column, is_right in zip(table.columns, right, strict=True)
    )
    units = answer.job.units
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td{' class=n' if is_right else ''}>{_escaped(shown_value(value, units.get(column, '')))}</td>"
            for column, value, is_right in zip(table.columns, row, right, strict=True)
        )
        + "</tr>"
        for row in table.rows[:ROWS_SHOWN]
    )
    rest = len(table.rows) - ROWS_SHOWN
    more = f'<p class="none">{rest:,}{"+" if table.more else ""} more rows are not shown.</p>' if rest > 0 else ""
    return f'{title}<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>{more}'


def _is_number(table: Table, at: int) -> bool:
    return all(
        value is None or (isinstance(value, int | float) and not isinstance(value, bool | datetime))
        for value in (row[at] for row in table.rows)
    )


def _escaped(text: str) -> str:
    return html.escape(text, quote=True)
