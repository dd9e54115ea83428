"""The calendar of repeated publishes: five fields, UTC, and which minute comes next.

    minute 0-59 | hour 0-23 | day of month 1-31 | month 1-12 or jan-dec | day of week 0-7 or sun-sat (0 and 7: Sunday)

Each field is `*`, a value, a range `a-b`, or a list of these, each with an optional step: `*/5`, `10-40/10`. Where both
days are restricted, a day that matches one of them is enough, as in every cron. Days are counted from 1970 by
arithmetic, because the router reads no clock and needs no time zones.
"""

from bisect import bisect_left
from typing import Final, NamedTuple

from fabric_protocol.errors import Code, ProtocolError

CRON_CHARS_MAX: Final = 200
_MINUTE_US: Final = 60_000_000
_DAY_MINUTES: Final = 1_440
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LONGEST: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
# The longest wait of a calendar is 40 years, for a 29th of February on one weekday, across 2100.
SEARCH_YEARS: Final = 50
_SUNDAY: Final = 4  # days after 1970-01-01, a Thursday, to a Sunday: weekday of day d is (d + 4) % 7


class Cron(NamedTuple):
    """A parsed calendar. All values ascend."""

    minutes: tuple[int, ...]  # of the day
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool  # the day of the month is not restricted
    any_weekday: bool  # the day of the week is not restricted

    @classmethod
    def parse(cls, text: str) -> "Cron":
        if len(text) > CRON_CHARS_MAX:
            raise _error(f"cron has at most {CRON_CHARS_MAX} characters, not {len(text)}")
        fields = text.lower().split()
        if len(fields) != 5:
            raise _error(f"cron {text!r} has {len(fields)} fields, not 5: minute hour day month weekday")
        minutes = _values("minute", fields[0], 0, 59)
        hours = _values("hour", fields[1], 0, 23)
        days = _values("day", fields[2], 1, 31)
        months = _values("month", fields[3], 1, 12, dict(zip(_MONTHS, range(1, 13), strict=True)))
        weekdays = frozenset(
            day % 7 for day in _values("weekday", fields[4], 0, 7, dict(zip(_DAYS, range(7), strict=True)))
        )
        cron = cls(
            tuple(hour * 60 + minute for hour in sorted(hours) for minute in sorted(minutes)),
            days,
            months,
            weekdays,
            any_day=fields[2].startswith("*"),
            any_weekday=fields[4].startswith("*"),
        )
        if cron.any_weekday and not any(day <= _LONGEST[month - 1] for month in months for day in days):
            raise _error(f"cron {text!r}: none of these months has such a day")
        return cron

    def after(self, us: int) -> int | None:
        """The first time of the calendar after `us`, in microseconds since 1970 UTC; None when there is none."""
        day, minute = divmod(us // _MINUTE_US + 1, _DAY_MINUTES)
        year, month, day_of_month = civil_from_days(day)
        for _ in range(12 * SEARCH_YEARS):
            if month in self.months:
                first = days_from_civil(year, month, 1)
                for number in range(day_of_month, days_in_month(year, month) + 1):
                    today = first + number - 1
                    at = bisect_left(self.minutes, minute) if today == day else 0
                    if at < len(self.minutes) and self._has(today, number):
                        return (today * _DAY_MINUTES + self.minutes[at]) * _MINUTE_US
            year, month, day_of_month = (year, month + 1, 1) if month < 12 else (year + 1, 1, 1)
        return None

    def _has(self, day: int, number: int) -> bool:
        by_number, by_weekday = number in self.days, (day + _SUNDAY) % 7 in self.weekdays
        if self.any_day or self.any_weekday:  # `*/2` does not count as restricted here, but it must match
            return by_number and by_weekday
        return by_number or by_weekday


def days_from_civil(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01. Years begin in March here, so that the leap day is the last day of a year."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def civil_from_days(days: int) -> tuple[int, int, int]:
    """(year, month, day) of a day since 1970-01-01."""
    era, of_era = divmod(days + 719_468, 146_097)
    years = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * years + years // 4 - years // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return years + era * 400 + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1


def days_in_month(year: int, month: int) -> int:
    following = (year, month + 1) if month < 12 else (year + 1, 1)
    return days_from_civil(*following, 1) - days_from_civil(year, month, 1)


def _values(field: str, text: str, least: int, most: int, names: dict[str, int] | None = None) -> frozenset[int]:
    """All values that a field allows."""
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step_text = part.partition("/")
        step = _number(field, part, step_text, 1, most) if slash else 1
        low, dash, high = span.partition("-")
        if span == "*":
            first, last = least, most
        else:
            first = _number(field, part, low, least, most, names)
            last = _number(field, part, high, least, most, names) if dash else most if slash else first
        if first > last == 0 and most == 7:  # fri-sun
            last = 7
        if first > last:
            raise _error(f"cron {field} {part!r}: the range ends before it begins")
        found.update(range(first, last + 1, step))
    return frozenset(found)


def _number(field: str, part: str, text: str, least: int, most: int, names: dict[str, int] | None = None) -> int:
    if names and text in names:
        return names[text]
    if text.isascii() and text.isdigit() and len(text) <= 4 and least <= int(text) <= most:
        return int(text)
    also = f" or {next(iter(names))}-{list(names)[-1]}" if names else ""
    raise _error(f"cron {field} {part!r}: {text!r} is not {least}-{most}{also}")


def _error(text: str) -> ProtocolError:
    return ProtocolError(Code.BAD_OPTION, text)
