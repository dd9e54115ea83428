"""What a planted bug does in place of what the router does."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from fabric.records import DropSchedule, Record, SaveGroup, SaveProducer, SaveSchedule, SaveSetting
from fabric.router.access.identity import Identity
from fabric.router.clock import Clock
from fabric.router.event_recorder import Events
from fabric.router.groups import deliver as handing
from fabric.router.groups import lanes
from fabric.router.groups import verdicts as settling
from fabric.router.groups.dispatcher import Dispatcher
from fabric.router.groups.group import Group
from fabric.router.groups.idle_groups import IdleGroups
from fabric.router.groups.lease import Lease, Redelivery
from fabric.router.groups.members import Members
from fabric.router.groups.redelivery import Pending
from fabric.router.groups.subscription import Subscription
from fabric.router.groups.throttle import Pace, Throttle
from fabric.router.groups.verdict_rows import merged
from fabric.router.patterns.trie import Trie
from fabric.router.publish.producers import NO_OPTIONS, Options, Producer
from fabric.router.publish.sources import Source
from fabric.router.ranges import Ranges
from fabric.router.requests.requests import OpenRequest, Requests
from fabric.router.rounds import Rounds
from fabric.router.router import Router, Transaction
from fabric.router.schedules.due_queue import Key
from fabric.router.timers import NEVER
from fabric.router.topics.retention import TopicRetention
from fabric.router.topics.topic import Counting, Topic
from fabric.router.turn import Turn
from fabric_protocol import messages as m
from fabric_protocol.block import Block
from tests.router.world import MemoryReader

Seal = Callable[..., Transaction]

_groups: Final = Rounds.__iter__  # as it is without a planted bug


def nothing(*args: Any, **kwargs: Any) -> None:
    return None


def empty(*args: Any, **kwargs: Any) -> list[Any]:
    return []


def always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


# When things leave, and what is on disk.


def confirm_before_the_disk(seal: Seal) -> Seal:
    def sealed(self: Router, wall_us: int, now: float) -> Transaction:
        turn = seal(self, wall_us, now)
        for peer, message in turn.sends:
            self.turn.send(peer, message)
        turn.sends.clear()
        return turn

    return sealed


def deliver_before_the_disk(seal: Seal) -> Seal:
    def sealed(self: Router, wall_us: int, now: float) -> Transaction:
        turn = seal(self, wall_us, now)
        self.shared.committed_seq = self.shared.appended_seq
        for group in self.groups.values():
            group.base.live = False
            self.dispatcher.mark_runnable(group)
        return turn

    return sealed


def without(kind: type) -> Callable[[Seal], Seal]:
    """Records of a kind never reach the disk."""

    def mutate(seal: Seal) -> Seal:
        def sealed(self: Router, wall_us: int, now: float) -> Transaction:
            turn = seal(self, wall_us, now)
            return turn._replace(records=[record for record in turn.records if type(record) is not kind])

        return sealed

    return mutate


def without_starts(seal: Seal) -> Seal:
    """Where a refresh was told to begin never reaches the disk."""

    def sealed(self: Router, wall_us: int, now: float) -> Transaction:
        turn = seal(self, wall_us, now)
        return turn._replace(
            records=[
                record
                for record in turn.records
                if type(record) is not SaveSetting or not record.name.startswith("refresh:")
            ]
        )

    return sealed


def is_emptied_setting(record: Record) -> bool:
    return type(record) is SaveSetting and record.value is None


def last_of_all(
    is_last: Callable[[Record], bool],
) -> Callable[[Seal], Seal]:
    """Some records of a turn are written behind all others."""

    def mutate(seal: Seal) -> Seal:
        def sealed(self: Router, wall_us: int, now: float) -> Transaction:
            turn = seal(self, wall_us, now)
            return turn._replace(records=sorted(turn.records, key=is_last))

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


def restore_producer_anew(self: Producer, saved: SaveProducer) -> None:
    self.epoch = saved.epoch


def producer_without_epoch(original: Callable[..., SaveProducer]) -> Callable[..., SaveProducer]:
    return lambda self, now_us: original(self, now_us)._replace(epoch=0)


def welcome_at_once(original: Callable[..., None]) -> Callable[..., None]:
    def hello(router: Router, message: m.Hello, peer: bytes, identity: Identity, now: float, turn: Turn) -> None:
        before = turn.take_answers()
        original(router, message, peer, identity, now, turn)
        early = turn.take_answers()
        for waiting in before:
            turn.answer(*waiting)
        for welcome in early:
            turn.send(*welcome)

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


def lapse_without_revoking(group: Group, lease: Lease, now: float, turn: Turn) -> None:
    for a, b in lease.open_seqs():
        group.pending.put(Redelivery(lease.rank, a, b, lease.attempt + 1, lease.failures))


def leave_and_take_along(group: Group, sub: Subscription, now: float, turn: Turn, *, lost: bool) -> None:
    group.members.remove(sub)


def ignore_stale(original: Callable[..., Ranges]) -> Callable[..., Ranges]:
    def settle(*args: Any) -> Ranges:
        original(*args)
        return Ranges()

    return settle


def touch_for_ever(original: Callable[..., Ranges]) -> Callable[..., Ranges]:
    def settle(group: Group, sub: Subscription, verdict: int, first: int, last: int, *more: Any) -> Ranges:
        stale = original(group, sub, verdict, first, last, *more)
        for lease in sub.leases_in(first, last) if verdict == m.Verdict.TOUCH else ():
            lease.deadline += 1000
        return stale

    return settle


def count_twice(original: Callable[..., None]) -> Callable[..., None]:
    def fail(group: Group, lease: Lease, ordinals: Any, why: Any, now: float, turn: Turn) -> None:
        lease.failures += 1
        original(group, lease, ordinals, why, now, turn)

    return fail


def count_nothing(original: Callable[..., None]) -> Callable[..., None]:
    def fail(group: Group, lease: Lease, ordinals: Any, why: Any, now: float, turn: Turn) -> None:
        lease.failures -= 1
        original(group, lease, ordinals, why, now, turn)

    return fail


def put_at_once(self: Pending, redelivery: Redelivery, due: float = 0.0) -> None:
    _put(self, redelivery)


_put: Final = Pending.put


def forget_what_waits(self: Pending, now: float) -> list[Redelivery]:
    self.waiting.clear()
    return []


def restore_without_failures(original: Callable[..., Group]) -> Any:
    return classmethod(lambda cls, saved, failures, *more: original(saved, (), *more))


def restore_without_pause(original: Callable[..., Group]) -> Any:
    return classmethod(lambda cls, saved, *more: original(saved._replace(paused=False), *more))


def apply_though_it_fails(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Dispatcher, sub: Subscription, rows: Any, now: float, turn: Turn) -> Any:
        try:
            return original(self, sub, rows, now, turn)
        except Exception:
            for verdict, first, last, arg in rows:
                settling.settle(sub.group, sub, verdict, first, last, arg, now, turn)
            raise

    return apply


def merged_with_the_first(rows: Any) -> Any:
    return merged([(verdict, first, last, rows[0][3]) for verdict, first, last, _ in rows])


def unheard_turn() -> Turn:
    """For a bug in a place that has no turn at hand: what it says is lost."""
    return Turn(Trie(), Events(clock := Clock(), MemoryReader()), Counter(), None, clock)


def move_and_tell(meaning: Callable[..., Any]) -> Callable[..., Any]:
    def told(group: Group, *more: Any) -> Any:
        settling.take_back_all(group, "the group was moved", unheard_turn())
        return meaning(group, *more)

    return told


# Credit and choice.


def credit_off_by_one(original: Callable[..., int]) -> Callable[..., int]:
    return lambda self: original(self) + 1


def room_whatever_the_bytes(self: Subscription) -> int:
    return self.ordinal_max - self.sent if self.session.reachable and self.suspect is None else 0


def room_whatever_the_peer(self: Subscription) -> int:
    return 0 if self.suspect is not None else self.ordinal_max - self.sent


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


# Requests.


def close_without_a_word(self: Requests, request: OpenRequest, *args: Any, **kwargs: Any) -> None:
    self._close(request)


def leave_and_keep(self: Requests, responder: Any, why: str, turn: Turn) -> None:
    self.services.leave(responder)


def fail_as_unseen(original: Callable[..., None]) -> Callable[..., None]:
    def fail(self: Requests, request: OpenRequest, code: Any, why: str, turn: Turn, **more: Any) -> None:
        original(self, request, code, why, turn, sent=False)

    return fail


def the_last_is_not_final(original: Callable[..., None]) -> Callable[..., None]:
    def reply(self: Requests, session: Any, message: m.Reply, turn: Turn) -> None:
        request = self._open.get(message.rid)
        if request is not None:
            request.replies_left += 1
        original(self, session, message, turn)

    return reply


# Resuming, and other things.


def forget_the_rest(self: Rounds) -> Iterator[Group]:
    yield from _groups(self)
    self.clear()


def resend_nothing(self: Members, sub: Subscription, seen: int, room: int, turn: Turn) -> int:
    return room


def resend_everything(self: Members, sub: Subscription, seen: int, room: int, turn: Turn) -> int:
    for lease in sub.leases:
        for message in handing.send_again(sub.group, lease):
            turn.send(sub.session.peer, message)
    return room


def lost_without_a_word(self: Group, first: int, last: int, why: str, turn: Turn) -> None:
    self.close(first, last)


def lost_and_kept(lost: Callable[..., None]) -> Callable[..., None]:
    def told(self: Group, first: int, last: int, why: str, turn: Turn) -> None:
        lost(self, first, last, why, turn)
        if self.members and not any(member.session.reachable for member in self.members):
            for member in self.members:
                turn.send(member.session.peer, m.Gap(member.chan, first, last, why))

    return told


def search_past_gaps(deliverable_runs: Callable[..., Any]) -> Callable[..., Any]:
    """All gaps of a block are told, and the group has passed the first of them."""

    def found(group: Group, block: Block, first: int, last: int, wall_us: int, turn: Turn) -> Any:
        runs, rest = deliverable_runs(group, block, first, last, wall_us, turn)
        if rest is not None:
            deliverable_runs(group, block, block.base_seq + rest, last, wall_us, turn)
        return runs, rest

    return found


def forget_gaps(self: Group, turn: Turn) -> None:
    self.untold = []


def take_too_much(remove: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, first, last: remove(self, first, last + 1)


def fit_what_expired(group: Group, block: Any, first: int, last: int, wall_us: int, turn: Turn) -> Any:
    return lanes.wanted_runs(group, block, first, last), None


def below_the_position(self: Group, seq: int) -> bool:
    return not self.open.holds(seq) and seq < self.position()


def one_too_many(uncount: Callable[..., Any]) -> Callable[..., Any]:
    def uncounted(self: Topic, *args: Any, **kwargs: Any) -> Any:
        self.msgs += 1
        gone = uncount(self, *args, **kwargs)
        self.msgs -= 1
        return gone

    return uncounted


def count_what_is_on_disk(count: Callable[..., int]) -> Callable[..., int]:
    def counted(self: TopicRetention, topic: Topic, counting: Counting) -> int:
        on_disk = counting.at <= self._shared.committed_seq
        return count(self, topic, counting) if on_disk else counting.stop

    return counted


def get_no_more(get: Callable[..., Any]) -> Callable[..., Any]:
    def got(*args: Any) -> Any:
        answer = get(*args)
        return answer._replace(fields={**answer.fields, "more": False})

    return got


def get_from_the_second(get: Callable[..., Any]) -> Callable[..., Any]:
    def got(self: Any, rid: int, fields: Any, *more: Any) -> Any:
        return get(self, rid, {**fields, "seq": fields["seq"] + 1}, *more)

    return got


def one_by_one(take: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, many, *args: [take(self, [one], *args) for one in many]


def a_minute_late(after: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, wall_us: after(self, wall_us) + 60_000_000


def drop_of(schedule: SaveSchedule) -> DropSchedule:
    return DropSchedule(schedule.id, schedule.due_us, schedule.name, schedule.owner)


def take_early(take: Callable[..., list[Key]]) -> Callable[..., list[Key]]:
    return lambda self, wall_us, limit: take(self, wall_us + 400_000, limit)


def write_without_the_rest(write: Callable[..., bool]) -> Callable[..., bool]:
    """What begins below the first seq is dropped, also what lies above."""

    def written(self: Dispatcher, group: Group, *args: Any) -> bool:
        for letter in group.dead:
            if letter.first < group.shared.removed_below:
                group.close(letter.first, letter.last)
        group.dead = [letter for letter in group.dead if letter.first >= group.shared.removed_below]
        return write(self, group, *args)

    return written


# Groups that end by themselves.


def end_with_consumers(note: Callable[..., None]) -> Callable[..., None]:
    """A group ends some time after a consumer has come."""

    def noted(self: IdleGroups, group: Group, *, anew: bool = False) -> None:
        note(self, group, anew=anew)
        if group.members and group.settings.expires_ms:
            self._ends[group] = self._shared.clock.now + group.settings.expires_ms / 1000
            self._timers.set(self._ends[group], group)

    return noted


def restore_without_the_wait(original: Callable[..., Group]) -> Any:
    """When the last consumer of a group left is forgotten on restart."""
    return classmethod(lambda cls, saved, *more: original(saved._replace(idle_us=0), *more))


# Rates.


def forget_the_wait(self: Throttle, now: float) -> bool:
    """The time for the next message has come, and the group is not served."""
    if self.due <= now:
        self.due = NEVER
    return False


def charge_half(take: Callable[[Pace, int], None]) -> Callable[[Pace, int], None]:
    return lambda self, count: take(self, (count + 1) // 2)


# Numbered sources.


def record_without_the_cursor(record: Callable[[Source, int], SaveProducer]) -> Callable[[Source, int], SaveProducer]:
    """The row of a source has the cursor that the source had when it was claimed."""
    return lambda self, now_us: record(self, now_us)._replace(last_pseq=self.since_pseq - 1)


def restore_without_blocks(restore: Callable[[Source, SaveProducer], None]) -> Callable[[Source, SaveProducer], None]:
    """After a restart, a source does not know its latest blocks."""
    return lambda self, saved: restore(self, saved._replace(blocks=b"", spans=b""))


def without_option(name: str) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """An option of a publish is not looked at when the block is compared."""

    def mutate(duplicate_of: Callable[..., int | None]) -> Callable[..., int | None]:
        def compared(self: Source, pseq: int, count: int, crc: int, options: Options = NO_OPTIONS) -> int | None:
            return duplicate_of(self, pseq, count, crc, {key: options[key] for key in options if key != name})

        return compared

    return mutate


def take_what_is_stored_in_part(back_to: Callable[..., int]) -> Callable[..., int | None]:
    """A block that reaches beyond the cursor is new, though it begins below."""

    def compared(self: Source, pseq: int, count: int, crc: int, options: Options = NO_OPTIONS) -> int | None:
        if options.get("last", pseq + count - 1) > self.last_pseq:
            return None
        return self._seq_of(back_to(self, (pseq, options.get("last", pseq + count - 1), count, crc))) or 0

    return compared
