"""Schedules: publishes that are kept on disk and published when they are due.

The block of a schedule has no seq until it is due. Then it is appended like other blocks, in the transaction that
removes the row of the schedule. So the order in the journal is the order of due times, and no crash loses a schedule or
publishes it twice. A schedule that repeats gets its next row in the same transaction.

Due times are wall time, which an administrator may set. A schedule fires when wall time has reached its due time, and
once, because its row is removed then.

A schedule belongs to the principal that has published it: for others without the right `schedules` it does not exist.
When it is due, its owner must still have the right to publish its topics.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fabric.records import CountSchedules, DropSchedule, Record, SaveSchedule
from fabric.router.access.identity import LOCAL_NAME
from fabric.router.access.principal import Principal, Principals
from fabric.router.access.sources import AUDIT
from fabric.router.fields import bounded, is_number
from fabric.router.part import Part
from fabric.router.publish.dedupe.index import Ids
from fabric.router.publish.producers import SCHEDULED
from fabric.router.publish.publishing import PENDING_BYTES_MAX, Publishing
from fabric.router.schedules.due_queue import DueQueue, Key
from fabric.router.schedules.options import Timing, expiry, next_due, shown
from fabric.router.schedules.overlay import Overlay
from fabric.router.schedules.owners import RIGHT, Wanted, audit, described, excess, owner_field, refusal
from fabric.router.sessions.session import Session
from fabric.router.shared import Shared
from fabric.router.timers import NEVER
from fabric.router.turn import Turn
from fabric_protocol import messages as m
from fabric_protocol.block import IDS, Block, expiring
from fabric_protocol.bounds import SCHEDULES_N
from fabric_protocol.errors import Code, ProtocolError

if TYPE_CHECKING:
    from fabric.router.topics.table import TopicTable

# When a hub starts, a million schedules may be due. They fire in steps, so that other work is done in between.
FIRE_MAX: Final = 512  # schedules in one step
FIRE_BYTES_MAX: Final = 4 << 20
TURN_MAX: Final = 4_096  # schedules in one transaction
HOLD_S: Final = 0.1  # wait before schedules that could not fire are tried again
ENDINGS_MAX: Final = 4_096  # ended schedules that are remembered, for the text of an error
PAGE_BYTES_MAX: Final = 1 << 20  # read for one page of INFO
TOPICS_MAX: Final = 500  # with their counts in INFO


class Schedules(Part):
    def __init__(
        self,
        shared: Shared,
        publishing: Publishing,
        topics: "TopicTable",
        ids: Ids,
        principals: Principals | None = None,  # None: the hub has no keys, so there are no rights to check
    ) -> None:
        self._stored = stored = shared.reader.schedules
        self._shared = shared
        self._publishing = publishing
        self._topics = topics
        self._ids = ids
        self._principals = principals
        self._change = shared.change
        self._clock = shared.clock
        self._counters = shared.counters
        self._overlay = Overlay(stored)
        self._due_queue = DueQueue(stored)
        self._last_id = self._saved_id = stored.counts(0).last_id
        self._changes: Counter[str] = Counter()  # of this turn: change of the number of scheduled messages, by topic
        self._owned: Counter[tuple[str, str]] = Counter()  # the same by owner and topic; with topic "", of schedules
        self._fired = 0  # in this turn
        self._hold_until = 0.0
        self._jumps = 0  # jumps of the clock at the last tick
        self._look_at = 0.0  # when `tick` has work to do, unless the clock is set
        self._deadline = 0.0  # when the hub must wake up for it
        self._endings: OrderedDict[int, tuple[str, str]] = OrderedDict()  # owner and what has happened

    # Publishing.

    def publish(
        self, session: Session, publish: m.Publish, window: tuple[int, int], now: float, turn: Turn
    ) -> Block | None:
        """Accept a publish with options; None when it is a duplicate. Raises when it is refused."""
        timing, wall_us = Timing.of(publish.options), self._clock.wall_us(now)
        if not timing.is_later:
            if timing.ttl_ms:
                block = Block(publish.block)
                raw = expiring(block.raw, expiry(wall_us, timing.ttl_ms, block.expires_us))
                publish = publish._replace(block=raw)
            return self._publishing.accept(session, publish, window, turn)
        if publish.options.get("origin") is not None:
            raise ProtocolError(
                Code.BAD_OPTION, "a publish with an origin is not delayed: publish it when the origin has published it"
            )
        block, first = self._publishing.examine(session, publish, window)
        if first is not None:
            self._change.begin()
            _answer(session, publish, self._known(first), turn)
            return None
        if timing.repeats and block.flags & IDS:
            raise ProtocolError(
                Code.BAD_OPTION,
                "a schedule that repeats cannot have ids, because the second publish would be a duplicate: give the "
                "schedule a name",
            )
        due_us = timing.first_due(wall_us)
        if 0 < block.expires_us <= due_us and not timing.repeats:
            raise ProtocolError(
                Code.BAD_OPTION,
                f"the block expires at {block.expires_us}, before it is due at {due_us}: give it a later expiry, or "
                "none",
            )
        self._topics.require_room(block, turn)
        answer = {"schedule": self._last_id + 1, "due_us": due_us}
        owner = session.principal.name
        old = self._overlay.find_name(timing.name, owner) if timing.name else None
        self._change.begin()
        if old is not None:
            answer["replaced"] = self._replace(old, turn)
        self._last_id += 1
        schedule = SaveSchedule(
            self._last_id, due_us, publish.block, timing.ttl_ms, timing.every_ms, timing.cron, timing.name, owner
        )
        self._publishing.take(session, publish, block, SCHEDULED + schedule.id)
        self._save(schedule, turn)
        self._count(block, owner, 1)
        self._counters["schedules_taken"] += 1
        _answer(session, publish, answer, turn)
        return block

    def _known(self, place: int) -> dict[str, Any]:
        """The answer to a duplicate."""
        schedule = self._overlay.find(place - SCHEDULED) if place >= SCHEDULED else None
        if isinstance(schedule, SaveSchedule):
            return {"schedule": schedule.id, "due_us": shown(schedule.due_us), "dup": True}
        return {"schedule": 0, "dup": True}

    def _replace(self, old: SaveSchedule | str, turn: Turn) -> int:
        if isinstance(old, str):
            raise ProtocolError(Code.INTERNAL, f"the schedule of this name is damaged on disk: {old}")
        self._end(old, Block(old.block), "was replaced by a schedule of the same name", turn)
        return old.id

    # Cancelling.

    def cancel(self, session: Session, cancel: m.Cancel, turn: Turn) -> None:
        """Cancel a schedule, by `id`, or by `name` and `owner`. The answer that it has fired waits for the commit, too,
        because the schedule has fired only when that turn is on disk."""
        wanted, principal = Wanted.of(cancel.fields, session.principal), session.principal
        name = wanted.name
        found = self._overlay.find(wanted.number) if name is None else self._overlay.find_name(name, wanted.owner)
        is_foreign = isinstance(found, SaveSchedule) and found.owner != principal.name
        self._change.begin()
        if isinstance(found, SaveSchedule) and (not is_foreign or principal.may_administer(RIGHT)):
            self._end(found, Block(found.block), "was cancelled", turn)
            self._counters["schedules_cancelled"] += 1
            if is_foreign:
                audit(session, "admin", f"cancelled schedule {found.id} of principal {found.owner!r}", turn)
            if cancel.rid:
                answer = {"cancelled": True, "schedule": found.id, "due_us": shown(found.due_us)}
                turn.answer(session.peer, m.Ok(0, cancel.rid, answer))
            return
        self._counters["refused_not_found"] += 1
        if is_foreign:
            assert isinstance(found, SaveSchedule)
            audit(session, "refused", f"schedule {found.id} belongs to principal {found.owner!r}", turn)
        why = found if isinstance(found, str) and principal.may_administer(RIGHT) else self._why_not(wanted, principal)
        if cancel.rid:
            turn.answer(session.peer, m.Err(0, cancel.rid, Code.NOT_FOUND, why, {}))

    def _why_not(self, wanted: Wanted, principal: Principal) -> str:
        """Why a schedule is not found. A principal learns nothing of the schedules of others."""
        number, sees_all = wanted.number, principal.may_administer(RIGHT)
        if wanted.name is not None:
            whose = "" if wanted.owner == principal.name else f" of principal {wanted.owner!r}"
            return f"no schedule{whose} has the name {wanted.name!r}: it has fired, was cancelled, or never existed"
        if number > self._last_id and sees_all:
            return f"schedule {number} never existed; the latest is {self._last_id}"
        owner, ending = self._endings.get(number, ("", ""))
        if ending and (sees_all or owner == principal.name):
            return f"schedule {number} {ending}"
        return f"schedule {number} has fired or was cancelled" + ("" if sees_all else ", or is not of this principal")

    # Listing.

    def describe(self, fields: Mapping[str, Any], principal: Principal) -> dict[str, Any]:
        """For INFO: the number of schedules, and a page of them in the order of due times. A principal without the
        right to see all of them sees its own."""
        limit = bounded(fields, "n", *SCHEDULES_N)
        after = fields.get("after")
        if after is None:
            after = [0, 0]
        elif not (isinstance(after, list) and len(after) == 2 and all(map(is_number, after))):
            raise ProtocolError(Code.BAD_OPTION, f"after is `next` of the page before, [due_us, id], not {after!r:.80}")
        owner = owner_field(fields)
        if not (principal.may_administer(RIGHT) or principal.may_administer("info")):
            if owner not in (None, principal.name):
                raise ProtocolError(
                    Code.FORBIDDEN,
                    f"principal {principal.name!r} sees its own schedules: those of others need the right {RIGHT!r}",
                )
            owner = principal.name
        counts = self._stored.counts(TOPICS_MAX, owner)
        if (name := fields.get("name")) is not None:
            named = self._stored.find_name(name, owner or principal.name) if isinstance(name, str) else None
            rows, following = ([named] if isinstance(named, SaveSchedule) else []), None
        else:
            rows, following = self._stored.page((after[0], after[1]), limit, PAGE_BYTES_MAX, owner)
        return {
            "count": counts.schedules,
            "messages": counts.messages,
            "topics": counts.topics,
            "schedules": [described(row) for row in rows],
            "next": list(following) if following else None,
            "more": following is not None,
        }

    # Time.

    def tick(self, now: float, turn: Turn) -> None:
        """Fire the schedules that are due, as many as one step allows."""
        if now < self._look_at and self._clock.jumps == self._jumps:
            return
        self._jumps = self._clock.jumps
        self._fire_due(now, turn)
        if self._is_held_up():
            self._look_at, self._deadline = 0.0, NEVER  # the hub wakes up when publishes are accepted again
        else:
            self._look_at = self._deadline = max(self._clock.when(self._due_queue.next_us()), self._hold_until)

    def next_deadline(self) -> float:
        return self._deadline

    def _fire_due(self, now: float, turn: Turn) -> None:
        if self._is_held_up() or now < self._hold_until:
            return
        wall_us = self._clock.wall_us(now)
        if self._due_queue.wants_load(wall_us):
            self._due_queue.load(wall_us, self._overlay.keys(), self._overlay.is_gone)
        keys = self._due_queue.take(wall_us, min(FIRE_MAX, TURN_MAX - self._fired))
        if keys and not self._fire(keys, wall_us, turn):
            self._hold_until = now + HOLD_S

    def _is_held_up(self) -> bool:
        publishing = self._publishing
        return (
            publishing.refusal is not None or self._fired >= TURN_MAX or publishing.pending_bytes >= PENDING_BYTES_MAX
        )

    def _fire(self, keys: list[Key], wall_us: int, turn: Turn) -> bool:
        """Fire the schedules of these keys; False when the hub cannot accept them now."""
        rows = self._overlay.read(keys, FIRE_BYTES_MAX)
        self._due_queue.put_back(keys[len(rows) :])
        for at, row in enumerate(rows):
            if isinstance(row, SaveSchedule):
                try:
                    self._fire_one(row, wall_us, turn)
                except ProtocolError:  # BUSY: too many idempotency keys
                    self._due_queue.put_back(keys[at : len(rows)])
                    return False
            elif row is not None:
                self._counters["schedules_damaged"] += 1  # it stays on disk, for an administrator
        return True

    def _fire_one(self, schedule: SaveSchedule, wall_us: int, turn: Turn) -> None:
        block, following = Block(schedule.block), next_due(schedule, wall_us)
        if self._principals is not None and (why := refusal(self._principals, schedule, block)):
            self._refuse(schedule, block, why, turn)
            return
        if following is not None and (why := excess(self._principals, schedule, block, self._clock.now)):
            self._fired += 1
            self._counters["schedules_missed"] += 1
            turn.advise("$sys.refused", code=Code.BUSY.name, why=why)
            self._move(schedule, following, turn)
            return
        expires_us = expiry(schedule.due_us, schedule.ttl_ms, block.expires_us)
        self._append(block if expires_us == block.expires_us else Block(expiring(block.raw, expires_us)), turn)
        self._fired += 1
        self._counters["schedules_fired"] += 1
        if following is None and schedule.cron:
            self._counters["schedules_ended"] += 1
            turn.advise(
                "$sys.schedule.ended",
                schedule=schedule.id,
                name=schedule.name,
                owner=schedule.owner,
                cron=schedule.cron,
                why="the calendar has no later day",
            )
            self._end(schedule, block, f"has fired for the last time: cron {schedule.cron!r} has no later day", turn)
        elif following is None:
            self._end(schedule, block, "has fired", turn)
        else:
            self._move(schedule, following, turn)

    def _move(self, schedule: SaveSchedule, due_us: int, turn: Turn) -> None:
        """A schedule that repeats is due again."""
        self._drop(schedule, turn)
        self._save(schedule._replace(due_us=due_us), turn)

    def _refuse(self, schedule: SaveSchedule, block: Block, why: str, turn: Turn) -> None:
        """End a schedule that is due, because its owner may not publish it any more."""
        self._fired += 1
        self._counters["schedules_ended"] += 1
        named = {"schedule": schedule.id, "name": schedule.name, "owner": schedule.owner}
        turn.advise("$sys.schedule.ended", **named, cron=schedule.cron, why=why)
        who = {"principal": schedule.owner, "code": Code.FORBIDDEN.name, "schedule": schedule.id}
        turn.advise(AUDIT, kind="refused", verb="PUB", why=f"schedule {schedule.id} was due: {why}", **who)
        self._end(schedule, block, f"has ended without a publish: {why}", turn)

    def _append(self, block: Block, turn: Turn) -> None:
        """Append a block that is due. Idempotency keys are checked now: of two schedules, the later is the
        duplicate."""
        if block.flags & IDS:
            checked = self._ids.check(block)
            self._ids.remember(checked, self._shared.next_seq)
            if checked.block is None:
                self._counters["duplicates"] += 1
                return
            block = checked.block
        self._publishing.append(block, turn)

    # Turns.

    def rows(self) -> list[Record]:
        """The counts that this turn has changed. Commands and ticks write the rows of schedules."""
        records: list[Record] = []
        if self._changes or self._last_id != self._saved_id:
            changes = tuple((topic, change) for topic, change in self._changes.items() if change)
            owned = tuple((*key, change) for key, change in self._owned.items() if change)
            if changes or owned or self._last_id != self._saved_id:
                records.append(CountSchedules(self._last_id, changes, owned))
            self._saved_id = self._last_id
            self._changes.clear()
            self._owned.clear()
        if self._fired:
            self._fired = 0
            self._look_at = self._deadline = 0.0
        self._overlay.seal()
        return records

    def committed(self) -> None:
        self._overlay.committed()

    # Rows.

    def _save(self, schedule: SaveSchedule, turn: Turn) -> None:
        turn.write(schedule)
        self._publishing.hold(len(schedule.block))
        self._overlay.saved(schedule)
        self._due_queue.add((schedule.due_us, schedule.id))
        self._look_at = self._deadline = 0.0

    def _drop(self, schedule: SaveSchedule, turn: Turn) -> None:
        drop = DropSchedule(schedule.id, schedule.due_us, schedule.name, schedule.owner)
        turn.write(drop)
        self._overlay.dropped(drop)

    def _end(self, schedule: SaveSchedule, block: Block, ending: str, turn: Turn) -> None:
        self._drop(schedule, turn)
        self._count(block, schedule.owner, -1)
        self._endings[schedule.id] = schedule.owner, ending
        if len(self._endings) > ENDINGS_MAX:
            self._endings.popitem(last=False)

    def _count(self, block: Block, owner: str, sign: int) -> None:
        counts = {block.topics[0]: block.count} if block.n_topics == 1 else Counter(block.topic_names())
        for topic, count in counts.items():
            self._changes[topic] += sign * count
            if owner != LOCAL_NAME:
                self._owned[owner, topic] += sign * count
        if owner != LOCAL_NAME:
            self._owned[owner, ""] += sign


def _answer(session: Session, publish: m.Publish, fields: Mapping[str, Any], turn: Turn) -> None:
    if publish.rid:
        turn.answer(session.peer, m.Ok(0, publish.rid, fields))
