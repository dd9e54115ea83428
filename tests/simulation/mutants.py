"""Bugs to be planted in the router, one at a time: where, what instead, and in which worlds to look for it."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from fabric import messages as m
from fabric.block import pick
from fabric.messages import SaveGroup
from fabric.router import commands, dispatcher, handing, intake, keys, lanes, letters, pending, settling, transactions
from fabric.router.core import Router, Turn
from fabric.router.deadletters import DeadLetters
from fabric.router.delivery import Backlog, Parcel
from fabric.router.failures import Failures
from fabric.router.groups import Group
from fabric.router.ids import Ids
from fabric.router.ledger import Out
from fabric.router.members import Subscription
from fabric.router.pending import Pending
from fabric.router.producers import Producer
from fabric.router.ranges import Ranges
from fabric.router.schedule import Schedules
from fabric.router.sessions import Session
from fabric.router.topic_keeper import Keeper
from fabric.router.transactions import Transactions
from fabric.router.upcoming import Key, Upcoming
from tests.simulation.plan import Act, Bias


class Mutant(NamedTuple):
    where: Any
    name: str
    instead: Any
    bias: Bias | None = None


def nothing(*args: Any, **kwargs: Any) -> None:
    return None


def empty(*args: Any, **kwargs: Any) -> list[Any]:
    return []


def always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


# When things leave, and what is on disk.


def confirm_before_the_disk(seal: Callable[..., Turn]) -> Callable[..., Turn]:
    def sealed(self: Router, wall_us: int, now: float, out: Out) -> Turn:
        turn = seal(self, wall_us, now, out)
        out += turn.sends
        return Turn(turn.records, [])

    return sealed


def deliver_before_the_disk(seal: Callable[..., Turn]) -> Callable[..., Turn]:
    def sealed(self: Router, wall_us: int, now: float, out: Out) -> Turn:
        turn = seal(self, wall_us, now, out)
        self.commons.committed_seq = self.commons.appended_seq
        for group in self.groups.values():
            group.base.live = False
            self.dispatcher.stir(group)
        return turn

    return sealed


def without(kind: type) -> Callable[[Callable[..., Turn]], Callable[..., Turn]]:
    """Records of a kind never reach the disk."""

    def mutate(seal: Callable[..., Turn]) -> Callable[..., Turn]:
        def sealed(self: Router, wall_us: int, now: float, out: Out) -> Turn:
            turn = seal(self, wall_us, now, out)
            return Turn([record for record in turn.records if type(record) is not kind], turn.sends)

        return sealed

    return mutate


def record_with(**changes: Callable[[SaveGroup], Any]) -> Callable[..., SaveGroup]:
    original = Group.record

    def record(self: Group, *args: Any, **more: Any) -> SaveGroup:
        row = original(self, *args, **more)
        return row._replace(**{name: change(row) for name, change in changes.items()})

    return record


def close_without_a_row(self: Group, first: int, last: int) -> None:
    if first <= last:
        self.open.remove(first, last)


def restore_producer_anew(cls: type[Producer], saved: m.SaveProducer) -> Producer:
    return Producer(saved.name, saved.epoch)


def producer_without_epoch(original: Callable[..., m.SaveProducer]) -> Callable[..., m.SaveProducer]:
    return lambda self, now_us: original(self, now_us)._replace(epoch=0)


def welcome_at_once(original: Callable[..., None]) -> Callable[..., None]:
    def hello(router: Router, message: m.Hello, peer: bytes, now: float, out: Out) -> None:
        waiting = len(router.ledger._sends)
        original(router, message, peer, now, out)
        out += router.ledger._sends[waiting:]
        del router.ledger._sends[waiting:]

    return hello


def claim_and_keep(self: Producer, epoch: int) -> None:
    self.epoch = epoch


def letters_a_turn_later(original: Callable[..., Any]) -> Callable[..., Any]:
    """Dead letters are written, but only with the next one: between them a crash would lose one."""
    kept: list[bytes] = []

    def made(*args: Any) -> list[bytes]:
        late = kept[:]
        kept[:] = list(original(*args))
        return late

    return made


# Leases and verdicts.


def lapse_without_revoking(group: Group, parcel: Parcel, now: float) -> None:
    for a, b in parcel.open_seqs():
        group.pending.put(Backlog(parcel.rank, a, b, parcel.attempt + 1, parcel.failures))


def leave_and_take_along(group: Group, sub: Subscription, now: float, *, lost: bool) -> None:
    group.members.remove(sub)


def ignore_stale(original: Callable[..., Ranges]) -> Callable[..., Ranges]:
    def settle(*args: Any) -> Ranges:
        original(*args)
        return Ranges()

    return settle


def touch_for_ever(original: Callable[..., Ranges]) -> Callable[..., Ranges]:
    def settle(group: Group, sub: Subscription, verdict: int, first: int, last: int, *more: Any) -> Ranges:
        stale = original(group, sub, verdict, first, last, *more)
        for parcel in sub.parcels_in(first, last) if verdict == m.Verdict.TOUCH else ():
            parcel.deadline += 1000
        return stale

    return settle


def count_twice(original: Callable[..., None]) -> Callable[..., None]:
    def fail(group: Group, parcel: Parcel, ordinals: Any, why: Any, now: float) -> None:
        parcel.failures += 1
        original(group, parcel, ordinals, why, now)

    return fail


def count_nothing(original: Callable[..., None]) -> Callable[..., None]:
    def fail(group: Group, parcel: Parcel, ordinals: Any, why: Any, now: float) -> None:
        parcel.failures -= 1
        original(group, parcel, ordinals, why, now)

    return fail


def put_at_once(self: Pending, backlog: Backlog, due: float = 0.0) -> None:
    _put(self, backlog)


_put: Final = Pending.put


def forget_what_waits(self: Pending, now: float) -> list[Backlog]:
    self.waiting.clear()
    return []


def restore_without_failures(original: Callable[..., Group]) -> Any:
    return classmethod(lambda cls, saved, failures, *more: original(saved, (), *more))


def restore_without_pause(original: Callable[..., Group]) -> Any:
    return classmethod(lambda cls, saved, *more: original(saved._replace(paused=False), *more))


# Credit and choice.


def credit_off_by_one(original: Callable[..., int]) -> Callable[..., int]:
    return lambda self: original(self) + 1


def room_whatever_the_bytes(self: Subscription) -> int:
    return self.ordinal_max - self.sent if self.session.reachable and self.alone is None else 0


def room_whatever_the_peer(self: Subscription) -> int:
    return 0 if self.alone is not None else self.ordinal_max - self.sent


def lowest_first(original: Callable[..., None]) -> Callable[..., None]:
    def add_lane(self: Group, priority: int, cursor: int) -> None:
        original(self, priority, cursor)
        self.lanes.sort(key=lambda lane: lane.priority)

    return add_lane


def never_strict(original: Callable[..., None]) -> Callable[..., None]:
    def make(self: Group, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.strict = False

    return make


# Resuming, and other things.


def resend_everything(sub: Subscription, seen: int, out: Out) -> None:
    for parcel in sub.parcels:
        out += handing.send_again(sub.group, parcel)


def lost_without_a_word(self: Group, first: int, last: int, why: str, out: Out) -> None:
    self.close(first, last)


def forget_gaps(self: Group) -> None:
    self.untold = []


def take_too_much(remove: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, first, last: remove(self, first, last + 1)


def fit_what_expired(group: Group, block: Any, first: int, last: int, wall_us: int, out: Out) -> Any:
    return lanes.wanted_runs(group, block, first, last)


def drop_of(schedule: m.SaveSchedule) -> m.DropSchedule:
    return m.DropSchedule(schedule.id, schedule.due_us, schedule.name)


def take_early(take: Callable[..., list[Key]]) -> Callable[..., list[Key]]:
    return lambda self, wall_us, limit: take(self, wall_us + 400_000, limit)


ORDERED_BY_KEY: Final = Bias(settings={"order": "key", "ack": "explicit"}, swarm={"templates": (True, False, False)})
STRICT: Final = Bias(settings={"order": "strict", "ack": "explicit"})
RANKED: Final = Bias(settings={"order": "none"}, swarm={"templates": (False, True, False), "credits": (1, 2, 5)})
CLAIMING: Final = Bias(
    swarm={"shared_producer": True, "retries": True},
    weights={Act.PUBLISH: 20, Act.PUBLISH_AGAIN: 12, Act.CONNECT: 20, Act.DISCONNECT: 14, Act.CRASH: 8},
)
CRASHES: Final = Bias(weights={Act.CRASH: 8})
FAILING: Final = Bias(
    weights={Act.CRASH: 6, Act.VERDICT: 40}, settings={"attempts_max": 3, "order": "none", "ack": "explicit"}
)
LAPSING: Final = Bias(weights={Act.PASS: 12}, settings={"lease_ms": 500, "attempts_max": 3, "ack": "explicit"})
RESUMING: Final = Bias(weights={Act.DISCONNECT: 10, Act.CONNECT: 16})

EXPIRING: Final = Bias(swarm={"ttl_pct": 70, "credits": (1, 2)}, weights={Act.PASS: 16})
LATER: Final = Bias(weights={Act.PUBLISH_LATER: 20, Act.CRASH: 6, Act.CANCEL: 8, Act.PASS: 10})
WITH_IDS: Final = Bias(swarm={"templates": (False, False, True)}, weights={Act.CRASH: 6, Act.CLOCK: 0})
TRANSACTING: Final = Bias(weights={Act.TRANSACT: 24, Act.PASS: 10}, settings={"lease_ms": 500, "ack": "explicit"})
ADMINISTERED: Final = Bias(weights={Act.ADMINISTER: 20, Act.CRASH: 4}, settings={"attempts_max": 2})
LONG_AND_RANKED: Final = RANKED._replace(
    settings={"order": "none", "ack": "auto", "patterns": ("#",)}, weights={Act.PUBLISH: 60, Act.CREDIT: 30}, acts=96
)

MUTANTS: Final = {
    "confirmed before the disk": Mutant(Router, "seal", confirm_before_the_disk(Router.seal)),
    "delivered before the disk": Mutant(Router, "seal", deliver_before_the_disk(Router.seal)),
    "the floor goes down": Mutant(Group, "record", record_with(cursor=lambda row: max(row.cursor - 3, 1))),
    "open seqs are forgotten": Mutant(Group, "record", record_with(open=lambda row: ())),
    "settled groups are not saved": Mutant(Group, "close", close_without_a_row, CRASHES),
    "settling does nothing": Mutant(Group, "close", nothing),
    "producers are not saved": Mutant(Router, "seal", without(m.SaveProducer)(Router.seal), CRASHES),
    "a resend is stored again": Mutant(Producer, "duplicate_of", nothing),
    "pseqs are forgotten on restart": Mutant(Producer, "restore", classmethod(restore_producer_anew), CRASHES),
    "epochs are forgotten on restart": Mutant(Producer, "record", producer_without_epoch(Producer.record), CRASHES),
    "a claim is told before the disk": Mutant(commands, "hello", welcome_at_once(commands.hello), CLAIMING),
    "a claim is not saved": Mutant(intake.Intake, "save", nothing, CLAIMING),
    "any block is a resend": Mutant(Producer, "_is_stored", always(True), CLAIMING),
    "a claim keeps the numbers": Mutant(Producer, "claim", claim_and_keep, CLAIMING),
    "producers are not fenced": Mutant(Session, "fenced", False, Bias(swarm={"shared_producer": True})),
    "dead letters are dropped": Mutant(dispatcher, "letters", empty),
    "dead letters come a turn later": Mutant(dispatcher, "letters", letters_a_turn_later(letters.letters)),
    "lapsed ordinals stay good": Mutant(settling, "lapse", lapse_without_revoking, LAPSING),
    "leases never lapse": Mutant(settling, "lapse", nothing, LAPSING),
    "stale verdicts are called good": Mutant(settling, "settle", ignore_stale(settling.settle)),
    "a lease can be touched for ever": Mutant(settling, "settle", touch_for_ever(settling.settle), LAPSING),
    "a lost member takes along what it held": Mutant(settling, "leave", leave_and_take_along),
    "failures are counted twice": Mutant(settling, "_fail", count_twice(settling._fail), FAILING),
    "failures are not counted": Mutant(settling, "_fail", count_nothing(settling._fail), FAILING),
    "failures are not saved": Mutant(Failures, "take_records", empty, FAILING),
    "failures are forgotten on restart": Mutant(Group, "restore", restore_without_failures(Group.restore), FAILING),
    "what was only prefetched counts as failed": Mutant(Subscription, "started", lambda self: self.sent, LAPSING),
    "suspects are not alone": Mutant(pending, "SUSPECT_FAILURES", 1000, FAILING),
    "what waits is delivered at once": Mutant(Pending, "put", put_at_once, FAILING),
    "what waits is forgotten": Mutant(Pending, "due", forget_what_waits, FAILING),
    "credit is off by one": Mutant(Subscription, "room", credit_off_by_one(Subscription.room)),
    "byte credit is ignored": Mutant(
        Subscription, "room", room_whatever_the_bytes, Bias(swarm={"bytes": (0, 300)}, settings={"ack": "explicit"})
    ),
    "peers that cannot take more get more": Mutant(Subscription, "room", room_whatever_the_peer),
    "keys are not kept in order": Mutant(keys.Keys, "names", lambda self, block: [b""] * block.count, ORDERED_BY_KEY),
    "later ones of a key are not taken back": Mutant(settling, "_take_back_later", nothing, ORDERED_BY_KEY),
    "strict order is not kept": Mutant(Group, "__init__", never_strict(Group.__init__), STRICT),
    "low priorities first": Mutant(Group, "add_lane", lowest_first(Group.add_lane), RANKED),
    "low priorities starve": Mutant(lanes, "STREAK_MAX", 1 << 40, LONG_AND_RANKED),
    "what has expired is delivered": Mutant(lanes, "fit", fit_what_expired, EXPIRING),
    "schedules are not removed when they fire": Mutant(
        Schedules, "_drop", lambda self, schedule: self._unwritten.dropped(drop_of(schedule)), LATER
    ),
    "schedules fire too early": Mutant(Upcoming, "take", take_early(Upcoming.take), LATER),
    "schedules are lost on restart": Mutant(Router, "seal", without(m.SaveSchedule)(Router.seal), LATER),
    "a cancelled schedule fires": Mutant(Schedules, "_end", nothing, LATER),
    "ids are forgotten on restart": Mutant(Ids, "_restore", nothing, WITH_IDS),
    "ids are not saved": Mutant(Router, "seal", without(m.SaveIds)(Router.seal), WITH_IDS),
    "every id is new": Mutant(Ids, "_counts", always(False), WITH_IDS),
    "a TXN is done by halves": Mutant(transactions, "_require_open", nothing, TRANSACTING),
    "a TXN forgets its verdicts": Mutant(Transactions, "_checked", empty, TRANSACTING),
    "a seek leaves the leases": Mutant(settling, "take_back_all", nothing, ADMINISTERED),
    "a seek does not move": Mutant(Group, "move", nothing, ADMINISTERED),
    "a paused group delivers": Mutant(dispatcher.Dispatcher, "pause", nothing, ADMINISTERED),
    "a pause ends with a restart": Mutant(Group, "restore", restore_without_pause(Group.restore), ADMINISTERED),
    "a deleted group comes back": Mutant(Router, "seal", without(m.DropGroup)(Router.seal), ADMINISTERED),
    "letters are redriven to everybody": Mutant(letters, "REDRIVE", "b.", ADMINISTERED),
    "letters are redriven for ever": Mutant(DeadLetters, "remove", nothing, ADMINISTERED),
    "groups are not woken": Mutant(Group, "wake", nothing),
    "nothing is sent again on resume": Mutant(commands, "_resend", nothing, RESUMING),
    "everything is sent again on resume": Mutant(commands, "_resend", resend_everything, RESUMING),
    "nobody is told of gaps": Mutant(Group, "lost", lost_without_a_word, Bias(weights={Act.TRIM: 8})),
    "gaps are forgotten on restart": Mutant(
        Group, "record", record_with(untold=lambda row: ()), Bias(weights={Act.TRIM: 10, Act.CRASH: 8, Act.GOODBYE: 6})
    ),
    "gaps are told by halves": Mutant(Group, "tell_gaps", forget_gaps, Bias(weights={Act.TRIM: 10, Act.GOODBYE: 6})),
    "messages are removed before they are settled": Mutant(
        Keeper,
        "_settled_below",
        lambda self, topic: self._commons.committed_seq + 1,
        Bias(swarm={"until_acked": ("a", "b.c"), "ephemeral_pct": 0, "credits": (0, 1, 2)}, weights={Act.TRIM: 0}),
    ),
    "a FETCH is never closed": Mutant(dispatcher.Dispatcher, "_end_fetch", nothing, Bias(weights={Act.FETCH: 10})),
    "ranges take too much": Mutant(Ranges, "remove", take_too_much(Ranges.remove)),
    "blocks are joined in the wrong order": Mutant(intake, "join", lambda blocks: pick(blocks[-1], [(0, 1)])),
}
