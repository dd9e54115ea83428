"""The range of every number that a peer sends, in one place.

A number is compared with its range where it enters the hub, before any arithmetic. So each sum and product that the
hub derives from it fits the 64 bits of the wire and of the journal's rows.
"""

from typing import Final

YEAR_MS: Final = 366 * 86_400_000
HORIZON_MS: Final = 10 * YEAR_MS  # the longest wait; a longer one is a mistake, most likely of units
TIME_US_MAX: Final = 253_402_300_799_000_000  # the last second of the year 9999: what calendars of clients can show
