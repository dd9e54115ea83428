"""The calendar, against the standard library and a loop over every minute."""

import random
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from cronsim import CronSim, CronSimError

from fabric.router.schedules.cron import SEARCH_YEARS, Cron, civil_from_days, days_from_civil, days_in_month
from fabric_protocol.errors import Code, ProtocolError
from tests.seeds import seeded

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def us(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def after(cron: str, moment: str) -> str:
    found_us = Cron.parse(cron).after(us(at(moment)))
    assert found_us is not None
    found = EPOCH + timedelta(microseconds=found_us)
    return found.strftime("%Y-%m-%d %H:%M")


def test_days_are_those_of_the_calendar() -> None:
    for day in range(-800, 200_000, 7):
        date = EPOCH.date() + timedelta(days=day)
        assert civil_from_days(day) == (date.year, date.month, date.day)
        assert days_from_civil(date.year, date.month, date.day) == day
    assert [days_in_month(year, 2) for year in (1999, 2000, 2024, 2100)] == [28, 29, 29, 28]


@pytest.mark.parametrize(
    ("cron", "moment", "wanted"),
    [
        ("* * * * *", "2026-03-01 10:00:00", "2026-03-01 10:01"),
        ("* * * * *", "2026-03-01 10:00:59.999999", "2026-03-01 10:01"),
        ("*/15 * * * *", "2026-03-01 10:46", "2026-03-01 11:00"),
        ("5/20 * * * *", "2026-03-01 10:06", "2026-03-01 10:25"),
        ("0 9-17/4 * * *", "2026-03-01 17:00", "2026-03-02 09:00"),
        ("30 2 * * mon-fri", "2026-03-06 02:30", "2026-03-09 02:30"),
        ("0 0 1 jan,JUL *", "2026-01-01 00:00", "2026-07-01 00:00"),
        ("0 0 * * 7", "2026-03-01 00:00", "2026-03-08 00:00"),
        ("0 0 * * 0", "2026-03-01 00:00", "2026-03-08 00:00"),
        ("0 0 * * fri-sun", "2026-03-01 00:00", "2026-03-06 00:00"),
        ("0 0 31 * *", "2026-01-31 00:00", "2026-03-31 00:00"),
        ("0 0 29 2 *", "2026-01-01 00:00", "2028-02-29 00:00"),
        ("0 0 29 2 *", "2096-03-01 00:00", "2104-02-29 00:00"),
        ("0 12 13 * fri", "2026-03-01 00:00", "2026-03-06 12:00"),  # either day is enough
        ("0 12 13 * fri", "2026-03-12 00:00", "2026-03-13 12:00"),
        ("59 23 31 12 *", "2026-12-31 23:59", "2027-12-31 23:59"),
        ("0 0 */31 3 0", "2026-03-01 00:00", "2037-03-01 00:00"),  # a 1st of March that is a Sunday
        ("0 0 29 2 */7", "2088-03-01 00:00", "2128-02-29 00:00"),  # a 29th of February that is a Sunday
        ("0 0 */10 * mon", "2026-03-02 00:00", "2026-05-11 00:00"),  # */10 restricts, together with Monday
    ],
)
def test_what_comes_next(cron: str, moment: str, wanted: str) -> None:
    assert after(cron, moment) == wanted


@pytest.mark.parametrize(
    ("cron", "text"),
    [
        ("", "has 0 fields, not 5"),
        ("* * * *", "has 4 fields, not 5"),
        ("60 * * * *", "minute '60': '60' is not 0-59"),
        ("* 24 * * *", "hour '24': '24' is not 0-23"),
        ("* * 0 * *", "day '0': '0' is not 1-31"),
        ("* * * foo *", "month 'foo': 'foo' is not 1-12 or jan-dec"),
        ("* * * * 8", "weekday '8': '8' is not 0-7 or sun-sat"),
        ("*/0 * * * *", "minute '*/0': '0' is not 1-59"),
        ("5- * * * *", "minute '5-': '' is not 0-59"),
        ("30-10 * * * *", "minute '30-10': the range ends before it begins"),
        (", * * * *", "minute '': '' is not 0-59"),
        ("1.5 * * * *", "minute '1.5'"),
        ("-1 * * * *", "minute '-1'"),
        ("\u0661 * * * *", "minute"),
        ("0 0 30 2 *", "none of these months has such a day"),
        ("0 0 31 apr,jun *", "none of these months has such a day"),
        ("*" * 300, "at most 200 characters"),
    ],
)
def test_a_wrong_calendar_is_refused(cron: str, text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        Cron.parse(cron)
    assert caught.value.code == Code.BAD_OPTION
    assert text in str(caught.value)


def field(rng: random.Random, least: int, most: int) -> tuple[str, set[int]]:
    """A random field, and what it means."""
    if rng.random() < 0.3:
        return "*", set(range(least, most + 1))
    parts, values = [], set()
    for _ in range(rng.randint(1, 3)):
        first = rng.randint(least, most)
        last = rng.randint(first, most)
        step = rng.randint(1, 7)
        match rng.randint(0, 3):
            case 0:
                parts.append(str(first))
                values.add(first)
            case 1:
                parts.append(f"{first}-{last}")
                values |= set(range(first, last + 1))
            case 2:
                parts.append(f"{first}-{last}/{step}")
                values |= set(range(first, last + 1, step))
            case 3:
                parts.append(f"{first}/{step}")
                values |= set(range(first, most + 1, step))
    return ",".join(parts), values


def test_random_calendars_agree_with_a_loop_over_minutes() -> None:
    rng = seeded("cron")
    for _ in range(60):
        fields = [field(rng, *span) for span in ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))]
        minutes, hours, days, months, weekdays = (values for _, values in fields)
        text = " ".join(part for part, _ in fields)
        if not any(day <= (31, 28)[month == 2] - (month in (4, 6, 9, 11)) for month in months for day in days):
            continue  # the 31st of April, or leap years alone: tested above
        both = fields[2][0] != "*" and fields[4][0] != "*"

        def fits(moment: datetime, minutes: set[int] = minutes, hours: set[int] = hours) -> bool:
            return moment.minute in minutes and moment.hour in hours

        def fits_day(
            moment: datetime,
            days: set[int] = days,
            months: set[int] = months,
            weekdays: set[int] = weekdays,
            both: bool = both,
        ) -> bool:
            number, weekday = moment.day in days, bool({moment.isoweekday() % 7, moment.isoweekday()} & weekdays)
            return moment.month in months and ((number or weekday) if both else (number and weekday))

        start = EPOCH + timedelta(seconds=rng.randint(0, 4_000_000_000))
        found_us = Cron.parse(text).after(us(start))
        assert found_us is not None, text
        found = EPOCH + timedelta(microseconds=found_us)
        expected = start.replace(second=0) + timedelta(minutes=1)
        while not (fits_day(expected) and fits(expected)):
            if not fits_day(expected):
                expected = expected.replace(hour=0, minute=0) + timedelta(days=1)
            else:
                expected += timedelta(minutes=1)
        assert found == expected, text


def test_the_longest_wait_of_a_calendar_is_within_the_search() -> None:
    """Of all dates and weekdays, over the 400 years after which the calendar repeats."""
    longest = 0
    for weekday in range(7):
        for month, day in ((2, 29), (3, 1), (12, 31)):
            last, waits = None, list[int]()
            for year in range(2000, 2801):
                if day <= days_in_month(year, month) and (days_from_civil(year, month, day) + 4) % 7 == weekday:
                    waits += [year - last] if last is not None else []
                    last = year
            assert waits, f"{month}-{day} is a weekday {weekday} sometimes"
            longest = max(longest, *waits)
    assert longest == 40 < SEARCH_YEARS


# What both calendars read alike. cronsim takes 4-4/3 for 4/3, so no range here has its ends in one place.
_NUMBERS: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


def common_field(rng: random.Random, least: int, most: int) -> str:
    if rng.random() < 0.4:
        return rng.choice(("*", f"*/{rng.randint(1, most)}"))
    parts = []
    for _ in range(rng.randint(1, 2)):
        first = rng.randint(least, most - 1)
        last = rng.randint(first + 1, most)
        parts.append(rng.choice((str(first), str(last), f"{first}-{last}", f"{first}-{last}/{rng.randint(1, most)}")))
    return ",".join(parts)


def test_random_calendars_agree_with_cronsim() -> None:
    """Another program's reading of the same five fields: rare days, both kinds of days, and what never comes."""
    rng = seeded("cronsim")
    compared = 0
    rare = ["0 0 30 2 *", "0 0 31 4,6 *", "0 0 29 2 */7", "0 0 */31 3 0", "0 0 */28 2 1", "0 0 29 2 3"]
    random_ones = [" ".join(common_field(rng, *span) for span in _NUMBERS) for _ in range(1_000)]
    for text in rare * 20 + random_ones:
        start = EPOCH + timedelta(seconds=rng.randint(0, 4_000_000_000))
        try:
            expected: datetime | None = next(CronSim(text, start))
        except (CronSimError, StopIteration):
            expected = None
        try:
            found_us = Cron.parse(text).after(us(start))
        except ProtocolError:
            assert expected is None, text
            continue
        assert found_us is not None, text
        assert EPOCH + timedelta(microseconds=found_us) == expected, (text, start)
        compared += 1
    assert compared > 900
