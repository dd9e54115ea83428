"""Model: what is known about a hub, put together from its answers. It reads no clock: each method is told the time.

The hub answers with the rows that have changed. The model keeps the latest state of each row, with samples of its
counters for the rates.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from rich.cells import cell_len

from fabric.cli.support.tables import tidy
from fabric.top.rates import Rates

GROUPS: Final = "groups"
TOPICS: Final = "topics"
SESSIONS: Final = "sessions"
PAGES: Final = (GROUPS, TOPICS, SESSIONS)
ROWS_MAX: Final = 100_000  # rows of a page that are kept, some 200 MB; rows beyond are left out, and the view says so
FALLS: Final = frozenset({"arrived"})  # a seek or a purge makes it smaller, so its fall is no restart of the hub

Fields = Mapping[str, Any]


class Change(NamedTuple):
    """The new state of a row: its fields, and those of them that only rise."""

    key: str
    label: str  # as the user reads it
    fields: Fields
    counters: Mapping[str, float]


class Pulse(NamedTuple):
    """An answer of the hub, as `source` has understood it."""

    hub: Fields
    counters: Mapping[str, float]
    now_us: int  # the time of the hub's clock
    rows: Mapping[str, Sequence[Change]]  # by page
    ended: Mapping[str, Sequence[str]] = {}  # keys of rows that no longer exist, by page
    is_whole: bool = False  # rows that are not in the answer do not exist


class Row:
    """The state of a group, a topic or a session."""

    __slots__ = ("changed_s", "fields", "key", "label", "rates", "width")

    def __init__(self, key: str, label: str) -> None:
        self.key = key
        self.label = tidy(label)  # clients choose their names: control characters must not reach the terminal
        self.width = cell_len(self.label)
        self.fields: Fields = {}
        self.rates = Rates()
        self.changed_s = 0.0


class Model:
    def __init__(self) -> None:
        self.hub: Fields = {}
        self.rates = Rates()  # of the hub
        self.rows: dict[str, dict[str, Row]] = {page: {} for page in PAGES}
        self.left_out = dict.fromkeys(PAGES, 0)  # rows beyond ROWS_MAX
        self.now_us = 0
        self.merged_s: float | None = None  # when the last answer came

    def merge(self, pulse: Pulse, now_s: float) -> None:
        """Take over an answer of the hub."""
        before_s = now_s if self.merged_s is None else self.merged_s
        self.hub, self.now_us, self.merged_s = pulse.hub, pulse.now_us, now_s
        self.rates.note(now_s, before_s, pulse.counters, FALLS)
        for page, rows in self.rows.items():
            changes = pulse.rows.get(page, ())
            if pulse.is_whole:
                present = {change.key for change in changes}
                for key in [key for key in rows if key not in present]:
                    del rows[key]
                self.left_out[page] = 0
            for key in pulse.ended.get(page, ()):
                rows.pop(key, None)
            for change in changes:
                self._change(page, change, now_s, before_s)

    def _change(self, page: str, change: Change, now_s: float, before_s: float) -> None:
        rows = self.rows[page]
        row = rows.get(change.key)
        if row is None:
            if len(rows) >= ROWS_MAX:
                self.left_out[page] += 1
                return
            row = rows[change.key] = Row(change.key, change.label)
        row.fields, row.changed_s = change.fields, now_s
        row.rates.note(now_s, before_s, change.counters, FALLS)

    def restart(self) -> None:
        """The hub has started again: its counters begin anew, also those that are higher by now."""
        self.rates.clear()
        for rows in self.rows.values():
            for row in rows.values():
                row.rates.clear()
