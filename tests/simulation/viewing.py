"""Viewers: they ask for the pulse of the hub again and again, and merge the rows that it tells.

    P1  a viewer that has merged all that was told has the rows of the lists of INFO: nothing stale, nothing missing,
        and nothing that has ended
    P2  an answer has so many rows as were asked for at most, and tells when there are more
    P3  a viewer begins anew when its version is of another run of the hub, or of too long ago, and not otherwise

A viewer is known by the version that it gives: what was told up to a version is the same for all who have it. So one
who has lost an answer, or who asks with an old version, is one more viewer.
"""

from collections.abc import Mapping
from typing import Any, Final

from fabric.router.read import pulse
from fabric.router.read.info import offline_info as info
from fabric.router.router import Router
from fabric_protocol import messages as m
from tests.simulation.facts import Counts

NAMES: Final = {pulse.GROUPS: "group", pulse.SESSIONS: "session", pulse.TOPICS: "topic"}
OF_TIME: Final = ("drain_s", "oldest_age_ms")  # they change with time, and are those of the last change
AHEAD: Final = 1_000_000_000  # by so much a version of nowhere is higher

Fields = Mapping[str, Any]
Row = dict[str, Any]
View = dict[str, dict[Any, Row]]


class Views:
    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self.versions: list[int] = []  # that were told in this run, the latest last
        self.former: list[int] = []  # that were told in earlier runs
        self._views: dict[int, View] = {}  # by version, of this run
        self._router: Router | None = None
        self._sure: set[int] = set()  # versions of this run that the hub must know
        self._asked_at = 0.0

    def answered(self, router: Router, asked: m.Info, answer: Fields, ended: int, now: float) -> None:
        """A viewer hears an answer; so many rows have ended in this run of the hub."""
        since, version = asked.fields["since"], answer["version"]
        if router is not self._router:
            self._begin(router)
        self.counts["pulses"] += 1
        if now - self._asked_at > pulse.IDLE_S or ended > pulse.ENDED_MAX:
            self._sure.clear()
        self._check_reset(since, answer)
        self._asked_at = now
        view = self._merge(since, answer)
        told = sum(len(answer[kind]) + len(answer["gone"][kind]) for kind in NAMES)
        assert told <= asked.fields["n"], f"P2: a pulse has {told} rows, and {asked.fields['n']} were asked for"
        assert told or not answer["more"], "P2: a pulse has no rows, and says that there are more"
        self._views[version] = view
        self._sure.add(version)
        if version not in self.versions[-1:]:
            self.versions.append(version)
        if not answer["more"]:
            check_rows(router, view)
        check_totals(router, answer["totals"])

    def _begin(self, router: Router) -> None:
        """The hub was started again."""
        self.former += self.versions
        self.versions, self._views, self._sure, self._router = [], {}, set(), router

    def _check_reset(self, since: int, answer: Fields) -> None:
        if since not in self._views:
            assert answer["reset"], "P3: a version of another run is taken for one of this"
            self.counts["pulses that begin anew"] += 1
        elif answer["reset"]:
            self.counts["pulses of which too little is known"] += 1
            assert since not in self._sure, "P3: a viewer begins anew, and the hub knows what has changed since"

    def _merge(self, since: int, answer: Fields) -> View:
        view: View = {kind: {} for kind in NAMES}
        before = self._views.get(since)
        if before is not None and not answer["reset"]:
            view = {kind: dict(rows) for kind, rows in before.items()}
        for kind, name in NAMES.items():
            for ended in answer["gone"][kind]:
                view[kind].pop(ended, None)
                self.counts["rows that have ended"] += 1
            for row in answer[kind]:
                view[kind][row[name]] = row
        return view


def check_rows(router: Router, view: View) -> None:
    """The rows of a viewer are those of the lists, in the fields that a pulse tells."""
    for kind, name in NAMES.items():
        listed = {row[name]: row for row in info(router, {"what": kind})[kind] if row.get("configured", True)}
        rows = view[kind]
        missing, over = listed.keys() - rows.keys(), rows.keys() - listed.keys()
        assert not missing, f"P1: a viewer does not know {kind} {sorted(missing)}"
        assert not over, f"P1: a viewer still has {kind} {sorted(over)}"
        for its, row in rows.items():
            now = listed[its]
            for field, value in row.items():
                if value != now[field] and field not in OF_TIME and not is_unknown(field, now):
                    raise AssertionError(f"P1: of {kind} {its} a viewer has {field} {value}, and it is {now[field]}")


def is_unknown(field: str, row: Row) -> bool:
    """Whether a list does not know any more when the oldest message of a group was accepted: a consumer has it, and
    retention has removed its block. That is no change of the group."""
    return field == "oldest_us" and not row["oldest_us"] and row["in_flight"] + row["retrying"] > 0


def check_totals(router: Router, totals: Row) -> None:
    hub, counters = info(router, {"what": "hub"}), info(router, {"what": "counters"})
    listed = {name: value for name, value in hub.items() if name in totals}
    listed |= {name: counters.get(name, 0) for name in pulse.COUNTERS}
    assert totals == totals | listed, f"P1: the totals are {totals}, not {listed}"
