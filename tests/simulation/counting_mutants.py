"""Planted bugs of counters: each forgets, or counts twice, something that the observer has heard."""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from fabric.records import GroupSettings
from fabric.router import router as core
from fabric.router.groups import group as groups
from fabric.router.groups import members
from fabric.router.groups.deliver import send_again
from fabric.router.groups.group import Group
from fabric.router.groups.lease import Lease
from fabric.router.groups.tally import Tally
from fabric.router.sessions import session_table
from fabric.router.sessions.session import Session
from fabric_protocol import messages as m
from fabric_protocol.messages import Verdict
from tests.simulation.mutants import ADMINISTERED, EXPIRING, FAILING, LAPSING, RESUMING, VERBOSE, Mutant
from tests.simulation.plan import Act, Bias

EXPIRING_TO_LETTERS: Final = EXPIRING._replace(settings={"on_expire": "dead", "order": "none", "ack": "explicit"})
EXPIRING_UNHEARD: Final = EXPIRING._replace(settings={"on_expire": "drop", "order": "none", "ack": "explicit"})
PUBLISHING: Final = Bias(weights={Act.PUBLISH: 30})


def with_rises(base: type, name: str, rise: Callable[[int], int]) -> type:
    """A class whose attribute rises by another number than it should."""
    hidden = f"_{name}"

    def value(self: Any) -> int:
        return int(getattr(self, hidden, 0))

    def change(self: Any, new: int) -> None:
        setattr(self, hidden, value(self) + rise(new - value(self)))

    return type(base.__name__, (base,), {name: property(value, change)})


def forgotten(by: int) -> int:
    return 0


def twice(by: int) -> int:
    return 2 * by


def one_each(by: int) -> int:
    """A delivery of several messages counts as one."""
    return min(by, 1)


def counter_with(name: str, rise: Callable[[int], int]) -> type[Counter[str]]:
    """Counters of the hub, of which one rises by another number than it should."""

    class Wrong(Counter[str]):
        def __setitem__(self, key: str, value: int) -> None:
            before = self.get(key, 0)
            super().__setitem__(key, before + rise(value - before) if key == name else value)

    return Wrong


def note_as(seen: Verdict, counted: Verdict) -> Callable[..., None]:
    """One verdict counts as another."""
    note = Tally.note

    def noted(self: Tally, verdict: int, messages: int, hub: Counter[str]) -> None:
        note(self, counted if verdict == seen else verdict, messages, hub)

    return noted


def note_apart(original: Callable[..., None]) -> Callable[..., None]:
    """The hub as a whole does not count verdicts."""
    return lambda self, verdict, messages, hub: original(self, verdict, messages, Counter())


def send_and_count_again(original: Callable[..., Any]) -> Callable[..., Any]:
    def sent(group: Group, lease: Lease) -> Any:
        frames = original(group, lease)
        group.tally.delivered += sum(lease.open.size() for frame in frames if isinstance(frame, m.Deliver))
        return frames

    return sent


def begin_anew(original: Callable[..., None]) -> Callable[..., None]:
    """New settings begin new counters."""

    def used(self: Group, settings: GroupSettings) -> None:
        original(self, settings)
        if hasattr(self, "tally"):
            self.tally = Tally(self.tally.since_us + 1)

    return used


def tally_mutant(name: str, rise: Callable[[int], int], bias: Bias | None = None) -> Mutant:
    return Mutant(groups, "Tally", with_rises(Tally, name, rise), bias)


def hub_mutant(name: str, rise: Callable[[int], int], bias: Bias | None = None) -> Mutant:
    return Mutant(core, "Counter", counter_with(name, rise), bias)


def session_mutant(name: str, rise: Callable[[int], int]) -> Mutant:
    return Mutant(session_table, "Session", with_rises(Session, name, rise), PUBLISHING)


COUNTING: Final = {
    "a group does not count its deliveries": tally_mutant("delivered", forgotten),
    "a delivery of several messages counts as one": tally_mutant("delivered", one_each),
    "what is sent again counts as delivered": Mutant(members, "send_again", send_and_count_again(send_again), RESUMING),
    "acks are not counted": tally_mutant("acked", forgotten),
    "a touch counts as an ack": Mutant(Tally, "note", note_as(Verdict.TOUCH, Verdict.ACK), VERBOSE),
    "a retry counts as a release": Mutant(Tally, "note", note_as(Verdict.RETRY, Verdict.RELEASE), VERBOSE),
    "a release counts as a retry": Mutant(Tally, "note", note_as(Verdict.RELEASE, Verdict.RETRY), VERBOSE),
    "retries are counted twice": tally_mutant("retried", twice, VERBOSE),
    "releases are counted twice": tally_mutant("released", twice, VERBOSE),
    "rejects are not counted": tally_mutant("rejected", forgotten, VERBOSE),
    "a lease that lapses counts as one message": tally_mutant("lapsed", one_each, LAPSING),
    "expired messages are counted twice": tally_mutant("expired", twice, EXPIRING_UNHEARD),
    "expired messages are not counted": tally_mutant("expired", forgotten, EXPIRING_UNHEARD),
    "expired messages with dead letters are not counted": tally_mutant("expired", forgotten, EXPIRING_TO_LETTERS),
    "dead messages are not counted": tally_mutant("dead", forgotten, FAILING),
    "dead messages are counted twice": tally_mutant("dead", twice, FAILING),
    "counters begin anew with new settings": Mutant(
        Group, "use_settings", begin_anew(Group.use_settings), ADMINISTERED
    ),
    "the hub does not count deliveries": hub_mutant("deliveries", forgotten),
    "the hub does not count verdicts": Mutant(Tally, "note", note_apart(Tally.note)),
    "the hub does not count what is settled": hub_mutant("settled", forgotten),
    "the hub counts blocks, and not messages": hub_mutant("messages_in", one_each),
    "the hub counts leases that lapse, and not messages": hub_mutant("lapsed", one_each, LAPSING),
    "the hub counts twice what expires": hub_mutant("expired", twice, EXPIRING_UNHEARD),
    "the hub does not count what expires": hub_mutant("expired", forgotten, EXPIRING_TO_LETTERS),
    "the hub does not count dead letters": hub_mutant("dead_letters", forgotten, FAILING),
    "the hub counts dead letters twice": hub_mutant("dead_letters", twice, FAILING),
    **{
        f"a session does not count {name}": session_mutant(name, forgotten)
        for name in ("messages_in", "bytes_in", "messages_out", "bytes_out")
    },
}
