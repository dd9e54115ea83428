"""AdvisoryLog writes the router's advisories to the hub's log.

The router itself logs nothing. It passes each advisory to `hear`, whether or not a subscription matches. The lines of
each kind are bounded: after LINES_MAX lines in a period further lines are counted, and one line at the end of the
period has the count. So a client that fails a thousand times a second does not fill the disk with its failures.

Lines of the audit are bounded for each source: a principal, or an address whose key is not known. So a source that is
refused all the time does not hide the others. The number of sources is bounded, too: all further ones are one source.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from fabric.hub.log import LOGGER, event
from fabric.router.access import sources
from fabric_protocol.errors import Code

LINES_MAX: Final = 20  # of one kind in one period
PERIOD_S: Final = 60.0
TEXT_CHARS_MAX: Final = 300  # of one field; names and reasons come from clients


class Line(NamedTuple):
    level: int
    name: str


CONSUMING_CODES: Final = 4  # hundreds of the codes for commands about groups and deliveries, such as NOT_FOUND
REFUSED: Final = Line(logging.WARNING, "refused")
REFUSED_CONSUMING: Final = Line(logging.INFO, "refused")
GROUP_CREATED: Final = Line(logging.INFO, "group created")  # logged for consumers only: ADMIN logs "changed"
SLOW_COMMIT: Final = Line(logging.WARNING, "slow commit")
AUDIT: Final = Line(logging.INFO, "audit")
AUDIT_REFUSED: Final = Line(logging.WARNING, "audit")
JOURNAL_TRIMMED: Final = Line(logging.INFO, "journal trimmed")
# Other topics are not logged: `$sys.admin` has the changes to groups, with the session that made them.
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
    "$sys.health": Line(logging.WARNING, "health"),
    "$sys.schedule.ended": Line(logging.INFO, "schedule ended"),
}


class _Period:
    """The lines of one kind in one period."""

    __slots__ = ("end", "lines", "messages", "more")

    def __init__(self, end: float) -> None:
        self.end = end
        self.lines = 0
        self.more = 0  # lines that were counted and not written
        self.messages = 0  # sum of `count` over these lines


class AdvisoryLog:
    def __init__(self) -> None:
        self._now = 0.0
        self._periods: dict[tuple[Line, str], _Period] = {}  # by line and source
        self._sources = sources.Sources()  # of the audit, with a period that has not ended

    def hear(self, topic: str, fields: Mapping[str, Any]) -> None:
        """Log an advisory, if its topic is in LINES."""
        if topic == sources.AUDIT:
            is_change = fields.get("kind") in ("admin", "enrolled")
            self.write(AUDIT if is_change else AUDIT_REFUSED, fields, self._sources.of(fields))
            return
        line = LINES.get(topic)
        if line is REFUSED and Code[fields["code"]] // 100 == CONSUMING_CODES:
            line = REFUSED_CONSUMING
        if line is not None and (line is not GROUP_CREATED or "session" in fields):
            self.write(line, fields)

    def write(self, line: Line, fields: Mapping[str, Any], source: str = "") -> None:
        """Log a line; after LINES_MAX lines of its kind and source in the period, count it only."""
        if not LOGGER.isEnabledFor(line.level):
            return
        period = self._periods.get((line, source))
        if period is None:
            period = self._periods[line, source] = _Period(self._now + PERIOD_S)
        if period.lines < LINES_MAX:
            period.lines += 1
            event(line.level, line.name, **{name: _bounded(value) for name, value in fields.items()})
        else:
            period.more += 1
            period.messages += fields.get("count", 0)

    def tick(self, now: float) -> None:
        """End the periods that are over: each one with counted lines logs their number."""
        self._now = now
        for (line, source), period in list(self._periods.items()):
            if now >= period.end:
                self._end(line, source, period)

    def close(self) -> None:
        for (line, source), period in list(self._periods.items()):
            self._end(line, source, period)

    def _end(self, line: Line, source: str, period: _Period) -> None:
        del self._periods[line, source]
        if not any((one, source) in self._periods for one in (AUDIT, AUDIT_REFUSED)):
            self._sources.forget(source)
        if period.more:
            count = {"count": period.messages} if period.messages else {}
            of_source = {"source": _bounded(source)} if source else {}
            event(line.level, line.name, and_more=period.more, **of_source, **count)


def _bounded(value: Any) -> Any:
    if isinstance(value, str) and len(value) > TEXT_CHARS_MAX:
        return value[:TEXT_CHARS_MAX] + "…"
    return value
