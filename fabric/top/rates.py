"""Rates: how fast counters rise, by the difference between two samples that are some seconds apart.

The hub sends a row only when it has changed, so a row without a new sample has the same values as before. A counter
that falls has begun anew, because the hub has started again: all earlier samples are then dropped.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

WINDOW_S: Final = 5.0  # a rate is that of the last seconds: long enough for consumers that ack in batches
STEP_S: Final = 0.5  # between two samples that are kept; so a row has a dozen samples at most


class Sample(NamedTuple):
    at_s: float
    before_s: float  # when the hub was asked before: until then the values of the sample before were right
    values: Mapping[str, float]


class Rates:
    """The samples of the counters of one row."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: list[Sample] = []  # oldest first

    def note(self, now_s: float, before_s: float, values: Mapping[str, float], falls: frozenset[str]) -> None:
        """Add a sample; `before_s` is when the hub was asked before. Counters in `falls` may also fall."""
        samples = self._samples
        if samples and any(
            value < samples[-1].values.get(name, 0) for name, value in values.items() if name not in falls
        ):
            samples.clear()
        if len(samples) > 1 and samples[-1].at_s - samples[-2].at_s < STEP_S:
            before_s = samples.pop().before_s
        samples.append(Sample(now_s, before_s if samples else now_s, values))
        while len(samples) > 2 and samples[1].at_s <= now_s - WINDOW_S:
            del samples[0]

    def clear(self) -> None:
        self._samples.clear()

    def latest(self, name: str) -> float | None:
        """The value of a counter."""
        return self._samples[-1].values.get(name) if self._samples else None

    def grown(self, name: str, now_s: float) -> tuple[float, float] | None:
        """By how much a counter has risen, and in how many seconds; None if too little is known."""
        samples, begin_s = self._samples, now_s - WINDOW_S
        if not samples or name not in samples[-1].values:
            return None
        at = max((i for i, sample in enumerate(samples) if sample.at_s <= begin_s), default=0)
        base = samples[at]
        if base is samples[-1]:
            span_s = now_s - base.at_s
            return (0.0, span_s) if span_s > 0 else None
        start_s = max(base.at_s, min(samples[at + 1].before_s, begin_s))
        if now_s <= start_s or name not in base.values:
            return None
        return samples[-1].values[name] - base.values[name], now_s - start_s

    def per_s(self, name: str, now_s: float) -> float | None:
        """How fast a counter rises; None if too little is known."""
        grown = self.grown(name, now_s)
        return None if grown is None else max(grown[0] / grown[1], 0.0)
