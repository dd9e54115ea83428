"""Charts as inline SVG: bars and lines, drawn here so that a report needs no network and no script.

Colours are CSS classes, so that the page defines them for light and dark. Every bar and every point has a
title: a browser shows it when the mouse rests there.
"""

import html
import math
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from fabric_spark.jobs.answer import Table, shown_value
from fabric_spark.jobs.base import Chart

WIDTH: Final = 860
LINE_HEIGHT: Final = 260
BAR_ROW: Final = 26
BARS_MAX: Final = 20
SERIES_MAX: Final = 8  # as many as there are colours that can be told apart
POINTS_MAX: Final = 400  # of one line
LEFT: Final = 70
LABEL: Final = 210  # of bars
TOP: Final = 12
BOTTOM: Final = 30


def draw(chart: Chart, table: Table) -> str:
    """The SVG of a chart; empty when there is nothing to draw."""
    if not table.rows or any(column not in table.columns for column in (*chart.x.split(","), *chart.y)):
        return ""
    return _bars(chart, table) if chart.kind == "bars" else _lines(chart, table)


def _series(chart: Chart, table: Table) -> tuple[dict[str, list[tuple[Any, float]]], int]:
    """Points by the name of their series, as many series as there are colours, the largest; and how many are left."""
    found: dict[str, list[tuple[Any, float]]] = {}
    names = table.values(chart.series) if chart.series in table.columns else None
    hubs = table.values("hub") if names and "hub" in table.columns else None
    xs = _places(chart, table)
    for column in chart.y:
        for i, (x, y) in enumerate(zip(xs, table.values(column), strict=True)):
            name = str(names[i]) if names else column.replace("_", " ")
            if hubs:
                name = f"{hubs[i]} / {name}"
            if y is not None and x is not None and not math.isnan(float(y)):
                found.setdefault(name, []).append((x, float(y)))
    largest = sorted(found, key=lambda name: -sum(y for _, y in found[name]))[:SERIES_MAX]
    return {name: points for name, points in found.items() if name in largest}, len(found) - len(largest)


def _places(chart: Chart, table: Table) -> list[Any]:
    """Where on the x axis each row is; a bar may be named by several columns."""
    columns = chart.x.split(",")
    if chart.kind == "bars" and not chart.series and "hub" in table.columns:
        columns.insert(0, "hub")
    if len(columns) == 1:
        return table.values(columns[0])
    return [" / ".join(map(str, row)) for row in zip(*(table.values(column) for column in columns), strict=True)]


# Bars are horizontal, so that names have room.


def _bars(chart: Chart, table: Table) -> str:
    series, left = _series(chart, table)
    everything = list(dict.fromkeys(x for points in series.values() for x, _ in points))
    labels = everything[:BARS_MAX]
    if not labels:
        return ""
    sums = {name: _summed(points) for name, points in series.items()}
    top = max((value for values in sums.values() for value in values.values()), default=0.0) or 1.0
    thick = max(6, BAR_ROW // len(series)) if len(series) > 1 else BAR_ROW - 10
    row = max(BAR_ROW, thick * len(series) + 8)
    height = TOP + row * len(labels) + 4
    room = WIDTH - LABEL - 90
    parts = []
    for i, label in enumerate(labels):
        y = TOP + i * row
        name = shown_value(label)
        parts.append(
            f'<text class="label" x="{LABEL - 8}" y="{y + row / 2:.0f}" text-anchor="end">{_short(name, 30)}</text>'
        )
        for k, (what, values) in enumerate(sums.items()):
            value = values.get(label, 0.0)
            at = y + 4 + k * thick
            told = shown_value(_whole(value), chart.unit)
            parts.append(
                f'<rect class="c{k}" x="{LABEL}" y="{at}" width="{max(1.0, room * value / top):.1f}"'
                f' height="{thick - 1}" rx="2"><title>{_escaped(name)}, {_escaped(what)}: {told}</title></rect>'
            )
            if len(sums) == 1 or thick >= 12:
                x = LABEL + room * value / top + 6
                parts.append(f'<text class="value" x="{x:.1f}" y="{at + thick / 2:.0f}">{told}</text>')
    more = f"{len(labels)} of {len(everything)} are shown" if len(everything) > len(labels) else _smaller(left)
    return _framed(chart.title, height, parts, list(series) if len(series) > 1 else [], more)


def _summed(points: Sequence[tuple[Any, float]]) -> dict[Any, float]:
    sums: dict[Any, float] = {}
    for x, y in points:
        sums[x] = sums.get(x, 0.0) + y
    return sums


# Lines.


def _lines(chart: Chart, table: Table) -> str:
    found, left = _series(chart, table)
    series = {name: _thinned(sorted(points)) for name, points in found.items()}
    points = [point for line in series.values() for point in line]
    if not points:
        return ""
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    step, top = _ticks(max(y for _, y in points))
    place = _scale(first, last)
    room = LINE_HEIGHT - TOP - BOTTOM
    parts = []
    for n in range(round(top / step) + 1):
        y = TOP + room * (1 - n * step / top)
        told = shown_value(_whole(n * step), chart.unit)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 16}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y:.1f}" text-anchor="end">{told}</text>')
    for n in range(5):
        x = first + (last - first) * (n / 4)
        anchor = "start" if n == 0 else "end" if n == 4 else "middle"
        parts.append(
            f'<text class="tick" x="{place(x):.1f}" y="{LINE_HEIGHT - 10}" text-anchor="{anchor}">'
            f"{_moment(x, last - first)}</text>"
        )
        if first == last:
            break
    for k, (name, line) in enumerate(series.items()):
        spots = [(place(x), TOP + room * (1 - y / top)) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        if len(series) == 1 and len(spots) > 1:
            floor = TOP + room
            parts.append(
                f'<polygon class="area c{k}" points="{spots[0][0]:.1f},{floor} {path} {spots[-1][0]:.1f},{floor}"/>'
            )
        parts.append(f'<polyline class="line s{k}" points="{path}"/>')
        for (x, y), (moment, value) in zip(spots, line, strict=True):
            told = f"{name}, {shown_value(moment)}: {shown_value(_whole(value), chart.unit)}"
            size = 3 if len(spots) == 1 else 5
            parts.append(
                f'<circle class="{"c" if len(spots) == 1 else "spot c"}{k}" cx="{x:.1f}" cy="{y:.1f}" r="{size}">'
                f"<title>{_escaped(told)}</title></circle>"
            )
    names = list(series) if len(series) > 1 or chart.series else []
    return _framed(chart.title, LINE_HEIGHT, parts, names, _smaller(left))


def _thinned(points: list[tuple[Any, float]]) -> list[tuple[Any, float]]:
    """Fewer points: of neighbours the highest stays, because peaks matter most."""
    size = -(-len(points) // POINTS_MAX)
    if size <= 1:
        return points
    return [max(points[i : i + size], key=lambda point: point[1]) for i in range(0, len(points), size)]


def _ticks(highest: float) -> tuple[float, float]:
    """A round step, and the end of the axis, for about four lines."""
    if highest <= 0:
        return 1.0, 1.0
    raw = highest / 4
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * n for n in (1, 2, 2.5, 5, 10) if unit * n >= raw * 0.999)
    return step, step * math.ceil(highest / step - 1e-9)


def _scale(first: Any, last: Any) -> Callable[[Any], float]:
    room = WIDTH - LEFT - 16
    width = (last - first) / timedelta(microseconds=1) if isinstance(first, datetime) else float(last - first)

    def place(x: Any) -> float:
        if not width:
            return LEFT + room / 2
        part = (x - first) / timedelta(microseconds=1) if isinstance(first, datetime) else float(x - first)
        return LEFT + room * part / width

    return place


def _moment(x: Any, span: Any) -> str:
    """A time on the axis, as long as it must be."""
    if not isinstance(x, datetime):
        return shown_value(x)
    if span >= timedelta(days=3):
        return x.strftime("%d %b")
    return x.strftime("%d %b %H:%M") if span >= timedelta(hours=20) else x.strftime("%H:%M:%S")


# Around them.


def _smaller(left: int) -> str:
    return f"{left} smaller ones are not shown" if left else ""


def _framed(title: str, height: float, parts: list[str], names: list[str], more: str) -> str:
    legend = "".join(f'<span><i class="k{k}"></i>{_short(name, 40)}</span>' for k, name in enumerate(names))
    if more:
        legend += f"<span>{_escaped(more)}</span>"
    return (
        f"<figure><figcaption>{_escaped(title)}</figcaption>{f'<p class=legend>{legend}</p>' if legend else ''}"
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{_escaped(title)}">'
        f"{''.join(parts)}</svg></figure>"
    )


def _whole(value: float) -> int | float:
    return int(value) if value == int(value) and abs(value) < 1e15 else value


def _short(text: str, limit: int) -> str:
    return _escaped(text if len(text) <= limit else text[: limit - 1] + "…")


def _escaped(text: str) -> str:
    return html.escape(text, quote=True)
