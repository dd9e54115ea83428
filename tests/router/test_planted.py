"""The random lives must find bugs: each of these, planted in the router, has to be noticed within a few hundred."""

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final

import pytest

from fabric.block import pick
from fabric.messages import SaveGroup
from fabric.router import dispatcher, intake
from fabric.router.core import Router, Turn
from fabric.router.delivery import Backlog, Parcel
from fabric.router.groups import Group
from fabric.router.ledger import Out
from fabric.router.members import Subscription
from fabric.router.producers import Producer
from fabric.router.ranges import Ranges
from tests.router.test_properties import live

LIVES_MAX: Final = 1500


def credit_off_by_one(self: Subscription) -> int:
    return self.ordinal_max - self.sent + 1 if self.session.reachable else 0


def nothing(*args: Any, **kwargs: Any) -> None:
    return None


def no_letters(*args: Any) -> list[bytes]:
    return []


def forget_what_waited(self: Group, now: float) -> bool:
    while self.waiting and self.waiting[0][0] <= now:
        heappop(self.waiting)
    return True


def leave_and_take_along(self: Group, sub: Subscription, *, lost: bool) -> None:
    self.members.remove(sub)


def forget_what_is_open(self: Group, horizon: int) -> SaveGroup:
    self.dirty = False
    return SaveGroup(self.name, self.settings, self.cursor, ())


def settle_before_it_is_closed(self: Group, first: int, last: int) -> None:
    if self.open.remove(first, last):
        self.dirty = False


def lapse_without_revoking(self: Group, parcel: Parcel) -> Any:
    return self._failed(parcel, parcel.open_seqs(), "lease lapsed", 0.0)


def failures_are_not_counted(self: Group, parcel: Parcel, seqs: Any, reason: str, due: float) -> Any:
    for a, b in seqs:
        heappush(self.ready, Backlog(a, b, parcel.attempt + 1, parcel.failures))
    return []


def gaps_are_not_closed(self: Group, parcel: Parcel) -> None:
    if not parcel.open:
        parcel.sub.forget(parcel)


def every_publish_is_new(self: Producer, pseq: int, count: int) -> None:
    return None


def resend_everything(self: Router, sub: Subscription, seen: int, out: Out) -> None:
    for parcel in sub.parcels:
        out += sub.group.again(parcel, self.shelf)


def confirm_before_the_disk(seal: Callable[..., Turn]) -> Callable[..., Turn]:
    def sealed(self: Router, wall_us: int, now: float, out: Out) -> Turn:
        turn = seal(self, wall_us, now, out)
        out += turn.sends
        return Turn(turn.records, [])

    return sealed


def deliver_before_the_disk(seal: Callable[..., Turn]) -> Callable[..., Turn]:
    def sealed(self: Router, wall_us: int, now: float, out: Out) -> Turn:
        turn = seal(self, wall_us, now, out)
        self.dispatcher.committed_seq = self.dispatcher.appended_seq
        for group in self.groups.values():
            self.dispatcher.stir(group)
        return turn

    return sealed


def take_too_much(remove: Callable[..., Any]) -> Callable[..., Any]:
    def removed(self: Ranges, first: int, last: int) -> Any:
        return remove(self, first, last + 1)

    return removed


PLANTED: Final = {
    "credit off by one": (Subscription, "room", credit_off_by_one),
    "dead letters are dropped": (dispatcher, "letters", no_letters),
    "a lost member takes along what it held": (Group, "leave", leave_and_take_along),
    "open seqs are not saved": (Group, "record", forget_what_is_open),
    "settled groups are not saved": (Group, "close", settle_before_it_is_closed),
    "settling does nothing": (Group, "close", nothing),
    "lapsed ordinals stay good": (Group, "lapse", lapse_without_revoking),
    "failures are not counted": (Group, "_failed", failures_are_not_counted),
    "gaps are not closed": (Group, "_finish", gaps_are_not_closed),
    "groups are not woken": (Group, "wake", nothing),
    "waiting messages are forgotten": (Group, "due", forget_what_waited),
    "a resend is stored again": (Producer, "duplicate_of", every_publish_is_new),
    "nothing is sent again on resume": (Router, "_resend", nothing),
    "everything is sent again on resume": (Router, "_resend", resend_everything),
    "confirmed before the disk": (Router, "seal", confirm_before_the_disk(Router.seal)),
    "delivered before the disk": (Router, "seal", deliver_before_the_disk(Router.seal)),
    "ranges take too much": (Ranges, "remove", take_too_much(Ranges.remove)),
    "blocks are joined in the wrong order": (intake, "join", lambda blocks: pick(blocks[-1], [(0, 1)])),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, mutant = PLANTED[bug]
    monkeypatch.setattr(where, name, mutant)
    rng = random.Random(bug)
    found = 0
    for _ in range(LIVES_MAX):
        try:
            live(rng.getrandbits(48))
        except AssertionError:
            found += 1
            break
    assert found, f"{LIVES_MAX} lives did not notice: {bug}"
