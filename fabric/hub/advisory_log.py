"""What the router says about itself, as lines of the log.

The router logs nothing: it says advisories, and the hub hears them here whether or not a client listens. Each kind of
line is bounded: after LINES_MAX lines in a period the rest is counted, and one line at the end of the period says how
many there were. So a client that fails a thousand times a second does not fill the disk with its failures.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from fabric.hub.log import LOGGER, event
from fabric_protocol.errors import Code

LINES_MAX: Final = 20  # of one kind in one period
PERIOD_S: Final = 60.0
TEXT_CHARS_MAX: Final = 300  # of one field; names and reasons come from clients


class Line(NamedTuple):
    level: int
    name: str


ABOUT_CONSUMING: Final = 4  # hundreds of the codes for what does not exist, or is not as a client thinks
REFUSED: Final = Line(logging.WARNING, "refused")
NOT_POSSIBLE: Final = Line(logging.INFO, "refused")
GROUP_CREATED: Final = Line(logging.INFO, "group created")  # by a consumer; by an administrator it is a change
SLOW_COMMIT: Final = Line(logging.WARNING, "slow commit")
JOURNAL_TRIMMED: Final = Line(logging.INFO, "journal trimmed")
# What is not in this table is not logged: `$sys.admin` tells of changes to groups, and who made them.
LINES: Final = {
    "$sys.session.opened": Line(logging.INFO, "session opened"),
    "$sys.session.resumed": Line(logging.INFO, "session resumed"),
    "$sys.session.closed": Line(logging.INFO, "session closed"),
    "$sys.session.lost": Line(logging.WARNING, "session lost"),
    "$sys.group.created": GROUP_CREATED,
    "$sys.group.refresh": Line(logging.INFO, "group refresh"),
    "$sys.admin": Line(logging.INFO, "changed"),
    "$sys.dlq": Line(logging.WARNING, "dead letters"),
    "$sys.lapsed": Line(logging.WARNING, "lease lapsed"),
    "$sys.gap": Line(logging.WARNING, "gap"),
    "$sys.refused": REFUSED,
    "$sys.topic.full": Line(logging.WARNING, "topic full"),
    "$sys.topic.trimmed": Line(logging.WARNING, "topic trimmed"),
    "$sys.schedule.ended": Line(logging.INFO, "schedule ended"),
}


class _Period:
    """The lines of one kind since a moment."""

    __slots__ = ("end", "lines", "messages", "more")

    def __init__(self, end: float) -> None:
        self.end = end
        self.lines = 0
        self.more = 0  # happened, and were not written
        self.messages = 0  # that these were about


class AdvisoryLog:
    def __init__(self) -> None:
        self._now = 0.0
        self._periods: dict[Line, _Period] = {}

    def hear(self, topic: str, fields: Mapping[str, Any]) -> None:
        """An advisory of the router."""
        line = LINES.get(topic)
        if line is REFUSED and Code[fields["code"]] // 100 == ABOUT_CONSUMING:
            line = NOT_POSSIBLE
        if line is not None and (line is not GROUP_CREATED or "session" in fields):
            self.write(line, fields)

    def write(self, line: Line, fields: Mapping[str, Any]) -> None:
        """Log a line, or count it when there were enough of its kind."""
        if not LOGGER.isEnabledFor(line.level):
            return
        period = self._periods.get(line)
        if period is None:
            period = self._periods[line] = _Period(self._now + PERIOD_S)
        if period.lines < LINES_MAX:
            period.lines += 1
            event(line.level, line.name, **{name: _bounded(value) for name, value in fields.items()})
        else:
            period.more += 1
            period.messages += fields.get("count", 0)

    def tick(self, now: float) -> None:
        """Let time pass: what was only counted in a period that is over becomes a line."""
        self._now = now
        for line, period in list(self._periods.items()):
            if now >= period.end:
                self._end(line, period)

    def close(self) -> None:
        for line, period in list(self._periods.items()):
            self._end(line, period)

    def _end(self, line: Line, period: _Period) -> None:
        del self._periods[line]
        if period.more:
            count = {"count": period.messages} if period.messages else {}
            event(line.level, line.name, and_more=period.more, **count)


def _bounded(value: Any) -> Any:
    if isinstance(value, str) and len(value) > TEXT_CHARS_MAX:
        return value[:TEXT_CHARS_MAX] + "…"
    return value
