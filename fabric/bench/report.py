"""Prints figures: a line each, with its durability, and a warning if other programs disturbed the run."""

from typing import Any, Final

from fabric.bench import machine
from fabric.bench.figures import JOURNALED, Figure

SCHEMA: Final = "fabric.bench.v1"
DISTURBED: Final = 0.10  # share of the CPU used by other programs, above which a figure is not reliable


def heading(about: dict[str, Any]) -> list[str]:
    return [
        f"fabric bench {about['fabric']}",
        machine.line(about),
        f"durability, unless a line says otherwise: {JOURNALED}",
        "",
    ]


def line(figure: Figure) -> str:
    """The line of a figure."""
    remarks = [figure.note] if figure.note else []
    if len(figure.runs) > 1:
        remarks.append(f"median of {len(figure.runs)}, {shown(min(figure.runs))} to {shown(max(figure.runs))}")
    if figure.durability != JOURNALED:
        remarks.append(figure.durability)
    if figure.foreign > DISTURBED:
        remarks.append(f"DISTURBED: other programs took {figure.foreign:.0%} of the CPU")
    tail = f"   ({'; '.join(remarks)})" if remarks else ""
    return f"{figure.part:8s} {shown(figure.value):>10s} {figure.unit:6s} {figure.what}{tail}"


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def as_json(about: dict[str, Any], settings: dict[str, Any], figures: list[Figure]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "machine": about,
        "settings": settings,
        "figures": [figure.as_json() for figure in figures],
    }
