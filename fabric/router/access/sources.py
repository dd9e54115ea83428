"""Sources of the audit: principals, and addresses whose key is not known. The hub bounds the advisories of each source
in a period.

The number of sources in a period is bounded, for principals and for addresses apart: a stranger with many addresses
must not take the places of principals. All further ones are one source.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from fabric.router.access.identity import GUEST_NAME
from fabric.router.clock import Clock

AUDIT: Final = "$sys.audit"
SOURCES_MAX: Final = 256  # principals in a period, and addresses
OTHER_PRINCIPALS: Final = "(other principals)"
OTHER_ADDRESSES: Final = "(other addresses)"
TOLD_MAX: Final = 200  # advisories of one source in a period: a subscriber has credit for those of several sources
PERIOD_S: Final = 60.0

Fields = Mapping[str, Any]


class Sources:
    """The sources of a period."""

    def __init__(self) -> None:
        self._principals: set[str] = set()
        self._addresses: set[str] = set()

    def of(self, fields: Fields) -> str:
        """The source of an advisory."""
        name, names, others = str(fields.get("principal", "")), self._principals, OTHER_PRINCIPALS
        if name in ("", GUEST_NAME):
            name, names, others = str(fields.get("address", "")), self._addresses, OTHER_ADDRESSES
        if not name or (name not in names and len(names) >= SOURCES_MAX):
            return others
        names.add(name)
        return name

    def forget(self, source: str) -> None:
        """The period of a source has ended."""
        self._principals.discard(source)
        self._addresses.discard(source)


class Told:
    """Bounds the advisories of topic `$sys.audit` of each source."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sources = Sources()
        self._counts: Counter[str] = Counter()
        self._end = 0.0

    def admit(self, fields: Fields) -> Fields | None:
        """The fields that are told. The last advisory of a source in a period says that there are more; None: it is
        one of these."""
        if self._clock.now >= self._end:
            self._sources, self._counts, self._end = Sources(), Counter(), self._clock.now + PERIOD_S
        source = self._sources.of(fields)
        self._counts[source] += 1
        if self._counts[source] < TOLD_MAX:
            return fields
        if self._counts[source] > TOLD_MAX:
            return None
        return {
            "kind": "more",
            "source": source,
            "why": f"this source has had {TOLD_MAX - 1} advisories of the audit; the next ones are not told until the "
            f"minute has ended",
        }
