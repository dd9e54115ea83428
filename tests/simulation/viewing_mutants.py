"""Planted bugs of the pulse: a change that is not told, a row that stays, a bound or a version that is ignored."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from fabric.router.groups.dispatcher import Dispatcher
from fabric.router.groups.group import Group
from fabric.router.groups.recount import Recounts
from fabric.router.read import pulse
from fabric.router.read.pulse import Place, Pulse
from tests.simulation.mutants import DROPPING, Mutant
from tests.simulation.mutations import always, nothing
from tests.simulation.plan import Act, Bias

WATCHED: Final = Bias(weights={Act.PULSE: 25})
LEAVING: Final = Bias(
    weights={Act.PULSE: 25, Act.GOODBYE: 8, Act.CONNECT: 14, Act.DISCONNECT: 8, Act.PASS: 6},
    swarm={"ephemeral_pct": 50, "ttl_ms": 1000},
)
REDRIVING: Final = Bias(weights={Act.PULSE: 25, Act.ADMINISTER: 25, Act.VERDICT: 40}, settings={"attempts_max": 1})
RARELY: Final = Bias(weights={Act.PULSE: 10, Act.PASS: 20, Act.GOODBYE: 4, Act.UNSUBSCRIBE: 6})


def mark_once(self: Pulse, place: Place) -> None:
    """A row is told when it begins, and no change of it."""
    if place not in self._versions:
        _mark(self, place)


_mark: Final = Pulse._mark


def change_one_less(original: Callable[..., Any]) -> Callable[..., Any]:
    """One of the changed groups is passed over."""

    def changed(self: Recounts) -> Any:
        found = original(self)
        return {group for group in found if group.name != "g0"}

    return changed


def mark_without_a_change(original: Callable[..., None]) -> Callable[..., None]:
    def marked(self: Dispatcher, group: Group) -> None:
        before = set(self.shared.changed)
        original(self, group)
        self.shared.changed = before

    return marked


def note_without_letters(original: Callable[..., None]) -> Callable[..., None]:
    def noted(self: Pulse) -> None:
        self._seen_letters.compare = always(([], []))  # type: ignore[method-assign]
        original(self)

    return noted


def with_all_rows(fields: Mapping[str, Any], name: str, *bounds: Any) -> int:
    """The bound on the rows of an answer is ignored."""
    return 1_000 if name == "n" else int(fields[name])


def without_more(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args: {**original(self, *args), "more": False}


def with_the_last_version(original: Callable[..., Any]) -> Callable[..., Any]:
    """An answer that is cut short has the version of a whole one."""
    return lambda self, *args: {**original(self, *args), "version": self._version}


def keep_the_start(original: Callable[..., None]) -> Callable[..., None]:
    """Rows are forgotten, and viewers of an old version are not told to begin anew."""

    def forgotten(self: Pulse) -> None:
        start, version = self._start, self._version
        original(self)
        self._start, self._version = start, max(version, self._version)

    return forgotten


def begin_always(original: Callable[..., None]) -> Callable[..., None]:
    """Each viewer begins anew with each pulse."""

    def noted(self: Pulse) -> None:
        original(self)
        self._start = self._version + 1

    return noted


VIEWING: Final = {
    "a changed row is not told": Mutant(Pulse, "_mark", mark_once, WATCHED),
    "a changed group is passed over": Mutant(Recounts, "take_changed", change_one_less(Recounts.take_changed), WATCHED),
    "what a command has changed is told a turn later": Mutant(
        Dispatcher, "mark_runnable", mark_without_a_change(Dispatcher.mark_runnable), WATCHED
    ),
    "changes of a session are not told": Mutant(pulse, "_sight_of_session", lambda one: (one.number,), WATCHED),
    "changes of a topic are not told": Mutant(
        pulse, "_sight_of_topic", lambda one: (one.name,), WATCHED._replace(swarm={"topics": DROPPING})
    ),
    "dead letters that come and go are not told": Mutant(
        Pulse, "_note_all", note_without_letters(Pulse._note_all), REDRIVING
    ),
    "a row that has ended stays": Mutant(Pulse, "_end", nothing, LEAVING),
    "an answer has more rows than were asked for": Mutant(pulse, "bounded", with_all_rows, WATCHED),
    "an answer does not tell that there is more": Mutant(Pulse, "_answer", without_more(Pulse._answer), WATCHED),
    "the rows that an answer leaves out are lost": Mutant(
        Pulse, "_answer", with_the_last_version(Pulse._answer), WATCHED
    ),
    "the bound on rows that have ended is forgotten": Mutant(Pulse, "_forget", keep_the_start(Pulse._forget), LEAVING),
    "what a hub without viewers forgets is taken as known": Mutant(
        Pulse, "_clear", keep_the_start(Pulse._clear), RARELY
    ),
    "a version of an earlier run is taken for one of this": Mutant(
        pulse, "_random_start", always(1), WATCHED._replace(weights={Act.PULSE: 25, Act.CRASH: 8, Act.STOP: 6})
    ),
    "every viewer begins anew each time": Mutant(Pulse, "_note_all", begin_always(Pulse._note_all), WATCHED),
}
