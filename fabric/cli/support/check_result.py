"""The result of `fabric check`: a word, an exit code, and one line as monitoring systems read it.

The line has the format of Nagios plug-ins: `FABRIC OK - text | label=value;warn;crit …`. A value is compared with two
thresholds; the worst result of all values counts.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

from fabric.cli.support.values import shown_bytes, shown_seconds, shown_span

TEXTS_MAX: Final = 8  # reasons in the line


class Result(IntEnum):
    """The exit codes of a plug-in."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


# Fields of `measured` in the hub's answer, with the labels and units of the figures.
MEASURED: Final = (
    ("commit_p99_s", "commit", "s"),
    ("loop_lag_s", "lag", "s"),
    ("disk_free_bytes", "disk_free", "B"),
    ("memory_bytes", "memory", "B"),
)
OF_HEALTH: Final = {"HEALTHY": Result.OK, "DEGRADED": Result.WARNING, "UNHEALTHY": Result.CRITICAL}


class Figure(NamedTuple):
    """A value with its thresholds; None: there is no threshold."""

    label: str
    value: float
    unit: str = ""  # s, B or empty
    warn: float | None = None
    crit: float | None = None

    @property
    def result(self) -> Result:
        for result, bound in ((Result.CRITICAL, self.crit), (Result.WARNING, self.warn)):
            if bound is not None and self.value >= bound:
                return result
        return Result.OK

    @property
    def text(self) -> str:
        shown = {"s": shown_span, "B": shown_bytes}.get(self.unit, "{:,.0f}".format)
        bound = self.crit if self.result is Result.CRITICAL else self.warn
        passed = f" (threshold {shown(bound)})" if self.result and bound is not None else ""
        return f"{self.label} {shown(self.value)}{passed}"

    @property
    def perf(self) -> str:
        """`'label'=value[unit];[warn];[crit];0`; a quote in a label is doubled."""
        label = self.label.replace("'", "''").replace("=", "_")
        bounds = [_number(bound) if bound is not None else "" for bound in (self.warn, self.crit)]
        return f"'{label}'={_number(self.value)}{self.unit};{bounds[0]};{bounds[1]};0"


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def health_figures(answer: Mapping[str, Any]) -> list[Figure]:
    """What the hub has measured of itself. Its own thresholds are in the judgement of the hub."""
    measured = answer.get("measured", {})
    return [Figure(label, measured[name], unit) for name, label, unit in MEASURED if name in measured]


def line_of(result: Result, texts: Iterable[str], figures: Iterable[Figure] = ()) -> str:
    """The line of a plug-in."""
    told = list(texts)
    more = [f"and {len(told) - TEXTS_MAX} more"] if len(told) > TEXTS_MAX else []
    text = ", ".join(told[:TEXTS_MAX] + more).replace("|", "/").replace("\n", " ")
    perf = " ".join(figure.perf for figure in figures)
    return f"FABRIC {result.name} - {text}" + (f" | {perf}" if perf else "")


def judged(answer: Mapping[str, Any], figures: list[Figure], summary: str) -> tuple[Result, str]:
    """The result and the line for the hub's health and for figures of groups."""
    health = OF_HEALTH.get(str(answer.get("health")), Result.UNKNOWN)
    bad = sorted((figure for figure in figures if figure.result), key=lambda figure: -figure.result)
    result = max([health, *(figure.result for figure in bad)])
    reasons = [str(reason["text"]) for reason in answer.get("reasons", ())]
    texts = [str(answer.get("health")), *reasons, *(figure.text for figure in bad)] if result else [
        "HEALTHY", summary, f"commits take {shown_seconds(answer.get('measured', {}).get('commit_p99_s', 0.0))}",
    ]  # fmt: skip
    return result, line_of(result, texts, [*health_figures(answer), *figures])
