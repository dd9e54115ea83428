"""Dispatcher: all groups of the hub, the groups that can deliver now, and the timers of leases, groups and fetches.

Any change marks a group as runnable, and `serve` delivers for all runnable groups. So the work of a turn is
proportional to the changes of the turn, not to the number of groups.
"""

from collections.abc import Sequence
from itertools import count
from typing import Any, Final

from fabric.records import DropGroup, GroupSettings, Restored, SaveFailure, SaveSetting
from fabric.router.groups import verdicts
from fabric.router.groups.backlog import takers_of
from fabric.router.groups.dead_letter_writer import DEAD_LETTERS_ALL, DEAD_LETTERS_PER_GO, write_dead_letters
from fabric.router.groups.deliver import deliver
from fabric.router.groups.deliver_by_key import deliver_by_key
from fabric.router.groups.group import Group
from fabric.router.groups.idle_groups import IdleGroups
from fabric.router.groups.key_index import KeyIndex
from fabric.router.groups.lanes import advance
from fabric.router.groups.lease import Lease
from fabric.router.groups.pattern_change import before_change
from fabric.router.groups.positions import Ends, Position, find_position
from fabric.router.groups.recount import Recounts
from fabric.router.groups.rows import COMMIT_DELAY_S, GroupRows, all_handed_out
from fabric.router.groups.subscription import Subscription
from fabric.router.groups.timed import Timed, is_pending
from fabric.router.groups.up_to import settle_up_to
from fabric.router.groups.verdict_rows import Row, checked
from fabric.router.part import Part
from fabric.router.publish.publishing import Publishing
from fabric.router.rounds import SEARCH_WORK, TURN_WORK
from fabric.router.searches import Searches
from fabric.router.sessions.session import Session
from fabric.router.shared import Shared
from fabric.router.timers import NEVER, Timers
from fabric.router.turn import Turn
from fabric_protocol import messages as m
from fabric_protocol.block import Block
from fabric_protocol.errors import Code, ProtocolError

GROUPS_MAX: Final = 10_000
# A FETCH stays open for this time after its deadline while messages for it wait for a commit, as in a group that was
# just created or joined. Without it, a FETCH with a short deadline would end before the first message.
FETCH_GRACE_S: Final = 0.1
PRIORITIES: Final = "priorities"  # the setting of the hub that lists the priorities in use
IDLE_PER_SWEEP: Final = 4  # groups without consumers whose lanes advance; each takes about 2 ms


class Dispatcher(Part):
    def __init__(self, shared: Shared, publishing: Publishing, rows: GroupRows, idle_groups: IdleGroups) -> None:
        self.counters = shared.counters
        self.groups: dict[str, Group] = {}
        self.shared = shared
        self.received_groups = 0  # number of groups of level `received`
        self.timers: Timers[Timed] = Timers(is_pending)
        self.priorities: dict[int, None] = {}  # priorities of stored messages, without the default
        self._publishing, self._rounds = publishing, shared.rounds
        self._searches = Searches(shared.reader, shared.clock)
        self._idle: dict[Group, None] = {}  # groups without consumers whose lanes have not reached their next message
        self.group_rows, self.idle_groups = rows, idle_groups
        self.recounts = shared.recounts = Recounts(shared, rows)
        self._ids = count(1)

    # Groups.

    def restore(self, restored: Restored, now: float, turn: Turn) -> None:
        self.priorities = dict.fromkeys(next((row.value for row in restored.settings if row.name == PRIORITIES), ()))
        failed: dict[str, list[SaveFailure]] = {}
        for failure in restored.failures:
            failed.setdefault(failure.group, []).append(failure)
        for row in restored.groups:
            saved = row if restored.was_clean else all_handed_out(row)
            group = Group.restore(saved, failed.get(row.name, ()), self.shared, now)
            self._register(group)
            self.recounts.restore(group, row.ahead)
            group.trimmed(self.shared.first_seq, turn)
            self._idle[group] = None
            self.idle_groups.note(group)
            self.group_rows.note(group)
            self._set_timer(group)
        self.recounts.restored(was_clean=restored.was_clean)

    def create(self, name: str | None, settings: GroupSettings, start: Any) -> Group:
        """Create a group. Without a name, the group is ephemeral and ends with its only member."""
        if len(self.groups) >= GROUPS_MAX:
            raise ProtocolError(
                Code.BUSY, f"the hub has {GROUPS_MAX} groups, which is the limit; delete a group", retry_ms=1000
            )
        durable = name is not None
        name = name or f"$sub.{next(self._ids)}"
        group = Group(name, settings, self.shared.next_seq, self.shared, durable=durable)
        self._register(group)
        try:
            group.move(self.position(group, start if start is not None else "first" if durable else "new", "start"))
        except ProtocolError:
            self.unregister(group)
            raise
        self.idle_groups.note(group)
        self.group_rows.note(group)
        self.mark_runnable(group)
        return group

    def position(self, group: Group, requested: Any, field: str) -> Position:
        """The requested position for this group."""
        shared = self.shared
        ends = Ends(shared.first_seq, shared.committed_seq, shared.next_seq)
        return find_position(requested, ends, group.patterns, self._searches, field)

    def seek(self, group: Group, to: Position, turn: Turn) -> None:
        """Move a group: all its leases end, and its failures are forgotten."""
        self._write_dead_letters(group, turn, DEAD_LETTERS_ALL)
        verdicts.take_back_all(group, "the group was moved", turn)
        group.move(to)
        self.group_rows.note(group)
        self.mark_runnable(group)

    def settle_up_to(self, group: Group, seq: int, turn: Turn) -> None:
        """Settle all messages of a group up to a seq."""
        self._write_dead_letters(group, turn, DEAD_LETTERS_ALL)
        settle_up_to(group, seq, turn)
        self.follow_up(group, turn)

    def pause(self, group: Group, paused: bool) -> None:
        group.paused, group.dirty = paused, group.durable
        self.group_rows.note(group)
        self.mark_runnable(group)

    def update(self, group: Group, settings: GroupSettings, now: float, turn: Turn) -> None:
        """Change the settings of a group. New patterns hold from the oldest message on that waits for the group."""
        self.mark_runnable(group)  # also if the change is refused as BUSY: the group then searches on
        if settings.patterns != group.settings.patterns:
            before_change(group, self.shared.clock.wall_us(now), turn)
        is_new_wait = settings.expires_ms != group.settings.expires_ms
        self.unregister(group)
        group.use_settings(settings)
        group.dirty = True
        self._register(group)
        self.idle_groups.note(group, anew=is_new_wait)
        self.recounts.wait(group)
        self.shared.reader.forget(group.wants)
        self.follow_up(group, turn)

    def delete(self, group: Group, turn: Turn) -> None:
        """Delete a group. The caller has told its consumers before."""
        self._write_dead_letters(group, turn, DEAD_LETTERS_ALL)
        self.unregister(group)
        self.group_rows.drop(group)
        self.idle_groups.forget(group)
        group.durable = group.leases = False  # later calls for the group change nothing on disk
        turn.write(DropGroup(group.name))

    def use_priority(self, priority: int, seq: int, turn: Turn) -> None:
        """The block at seq is the first of its priority: every group gets a lane for this priority."""
        self.priorities[priority] = None
        turn.write(SaveSetting(PRIORITIES, list(self.priorities)))
        for group in self.groups.values():
            group.add_lane(priority, seq, first=True)

    def _register(self, group: Group) -> None:
        self.groups[group.name] = group
        self.received_groups += group.received
        for priority in self.priorities:
            group.add_lane(priority, group.cursor)
        for pattern in group.patterns:
            self.shared.trie.add(pattern, group)

    def unregister(self, group: Group) -> None:
        del self.groups[group.name]
        self._rounds.drop(group)
        self.recounts.drop(group)
        self._idle.pop(group, None)
        self.received_groups -= group.received
        for pattern in group.patterns:
            self.shared.trie.remove(pattern, group)

    # Delivery.

    @property
    def busy(self) -> bool:
        """Whether a group has more to deliver than one go allows."""
        return bool(self._rounds)

    def mark_runnable(self, group: Group) -> None:
        self.shared.changed.add(group)  # what makes it runnable may have changed its numbers
        if group.is_searching():  # the history before its next message may be long
            self._rounds.again(group)
        else:
            self._rounds.mark_runnable(group)

    def mark_all_runnable(self, session: Session) -> None:
        for sub in session.channels.values():
            self.mark_runnable(sub.group)

    def wake(self, blocks: list[Block], *, received: bool) -> None:
        """Mark the groups of a level as runnable for which blocks are new."""
        for block in blocks:
            for group, matching in takers_of(self.shared, block):
                if group.received == received and (group.wake(block, matching) or group.members or block.expires_us):
                    self.mark_runnable(group)

    def serve(self, now: float, turn: Turn) -> None:
        """Deliver for every runnable group, within the work of one turn."""
        if turn.notices:
            turn.send_notices()
        if self.shared.draining:
            self._rounds.clear()
        if not self._rounds:
            return
        for group in self._rounds:
            self.shared.changed.add(group)
            if group.untold:
                group.tell_gaps(turn)
            sent, leased, more = len(turn.sends), list[Lease](), False
            if not group.paused and group.members:
                if group.keys is not None:
                    leased, more = deliver_by_key(group, group.keys, now, turn)
                    self._set_timer(group)  # another message may be the first behind a lock
                else:
                    leased, more = deliver(group, now, turn)
            # A group without consumers that has more to search goes on in the next sweep.
            advanced = not more and group.is_searching() and (bool(group.members) or group not in self._idle)
            if advanced:
                more = self._advance(group, now, turn)
            if group.throttle is not None or group.expires_us():
                self._set_timer(group)
            if group.dead or group.dirty:
                if group.dead or group.answers:
                    more |= self._write_dead_letters(group, turn)
                self.group_rows.note(group)
            for lease in leased:
                self.timers.set(lease.deadline, lease)
            delivered = len(turn.sends) - sent
            if more:
                self._rounds.again(group)
                if not delivered and not advanced:
                    self._rounds.spent += SEARCH_WORK
            if delivered or not more:
                for sub in group.members:
                    if sub.fetch is not None and sub.has_fetched(all_of_it=more or group.is_held()):
                        self._end_fetch(sub, turn)

    def _advance(self, group: Group, now: float, turn: Turn) -> bool:
        """Advance the lanes of a group without credit; True if the group is to be served again soon."""
        if not advance(group, self.shared.clock.wall_us(now), turn):
            return False
        self._rounds.spent += SEARCH_WORK
        if group.members:
            return True
        self._idle[group] = None
        return False

    def sweep(self, now: float, turn: Turn) -> None:
        """Advance the lanes of some groups without consumers."""
        self._searches.sweep(now)
        self.recounts.sweep(now)
        for group in list(self._idle)[:IDLE_PER_SWEEP]:
            del self._idle[group]
            more = self._advance(group, now, turn)
            if self._write_dead_letters(group, turn) or more:
                self.mark_runnable(group)
            self.group_rows.note(group)
            self._set_timer(group)

    def fetch(self, sub: Subscription, message: m.Fetch, now: float) -> None:
        if sub.fetch is not None:
            raise ProtocolError(Code.BAD_OPTION, f"channel {sub.chan} has an open FETCH: wait for its END")
        if message.count < 1:
            raise ProtocolError(Code.BAD_OPTION, f"FETCH asks for {message.count} messages: ask for 1 or more")
        deadline = now + message.expires_ms / 1000
        self.shared.change.begin()
        sub.begin_fetch(message, deadline)
        self.mark_runnable(sub.group)
        self.timers.set(deadline, sub)

    def _end_fetch(self, sub: Subscription, turn: Turn) -> None:
        if sub.fetch is not None:
            sub.ordinal_max = sub.sent
            turn.send(sub.session.peer, m.End(sub.chan, sub.fetch.rid, sub.sent - sub.fetch.first))
            sub.fetch = None

    # Verdicts.

    def settle(self, sub: Subscription, message: m.Settle, now: float, turn: Turn) -> dict[str, Any]:
        """Apply the verdicts of an ACK. Returns the fields of the answer, which leaves when they are on disk."""
        return self.apply(sub, checked(sub, message.verdicts), now, turn)

    def apply(
        self, sub: Subscription, rows: Sequence[Row], now: float, turn: Turn, *, whole: bool = False
    ) -> dict[str, Any]:
        """Apply checked rows; `whole`: all dead letters of these rows are written with this turn."""
        self.shared.change.begin()
        group, stale, applied = sub.group, [], 0
        sub.key_index = KeyIndex(sub) if len(rows) > 1 else None
        for verdict, first, last, arg in rows:
            late = verdicts.settle(group, sub, verdict, first, last, arg, now, turn)
            stale += [list(pair) for pair in late]
            messages = last - first + 1 - late.size()
            applied += messages
            group.tally.note(verdict, messages, self.counters)
        sub.key_index = None
        if stale:
            self.counters["stale_verdicts"] += 1
        if whole:
            self._write_dead_letters(group, turn, DEAD_LETTERS_ALL)
        self.follow_up(group, turn)
        return {"applied": applied, "stale": stale}

    def follow_up(self, group: Group, turn: Turn) -> None:
        """After messages were settled or taken back: write dead letters, note the row, mark the group as runnable."""
        if group.dead or group.answers:
            letters = DEAD_LETTERS_PER_GO if self._rounds.spent < TURN_WORK else 0
            self._write_dead_letters(group, turn, DEAD_LETTERS_ALL if self.shared.draining else letters)
        self.group_rows.note(group)
        self.mark_runnable(group)
        self._set_timer(group)

    def write_all_dead_letters(self, turn: Turn) -> None:
        """Write the dead letters of all groups with this turn."""
        for group in self.groups.values():
            self._write_dead_letters(group, turn, DEAD_LETTERS_ALL)

    def _write_dead_letters(self, group: Group, turn: Turn, count: int = DEAD_LETTERS_PER_GO) -> bool:
        """Write some dead letters of a group with this turn; True if the group has more."""
        if group.dead and write_dead_letters(group, self._publishing, turn, count):
            return True
        for peer, answer in group.answers:
            turn.answer(peer, answer)
        group.answers.clear()
        return False

    def answer(self, group: Group, peer: m.PeerId, answer: m.Ok, turn: Turn) -> None:
        """Answer verdicts when they and their dead letters are on disk."""
        if group.dead:
            group.answers.append((peer, answer))
        else:
            turn.answer(peer, answer)

    def begins_at(self, first_seq: int) -> None:
        """The journal begins at first_seq and no group has lost a message: groups that have waited for this go on."""
        self.shared.first_seq = first_seq
        for group in self.groups.values():
            if group.is_searching():
                self.mark_runnable(group)

    def trimmed(self, first_seq: int, turn: Turn) -> None:
        """Retention has removed all messages below first_seq."""
        self.shared.first_seq = self.shared.removed_below = first_seq
        for group in self.groups.values():
            group.trimmed(first_seq, turn)
            if group.is_searching():
                self.mark_runnable(group)
            self.group_rows.note(group)

    def committed(self) -> None:
        """The oldest sealed turn is on disk: groups may deliver up to the marks in their rows."""
        for group in self.group_rows.written_marks():
            if self.groups.get(group.name) is group:
                self.mark_runnable(group)

    # Time.

    def tick(self, now: float, turn: Turn) -> None:
        self._rounds.begin_turn()
        while (what := self.timers.pop_due(now)) is not None:
            self._fire(what, now, turn)

    def next_deadline(self) -> float:
        return 0.0 if self._rounds else self.timers.next()

    def _fire(self, what: Timed, now: float, turn: Turn) -> None:
        if isinstance(what, Lease):
            if what.open and what.deadline > now:
                self.timers.set(what.deadline, what)
            elif what.open:
                sub, count = what.sub, what.open.size()
                self.counters["lapsed"] += count
                sub.group.tally.lapsed += count
                turn.advise("$sys.lapsed", group=sub.group.name, count=count, **sub.session.identity)
                verdicts.lapse(sub.group, what, now, turn)
                self.follow_up(what.sub.group, turn)
        elif isinstance(what, Group):
            what.timer_at = NEVER
            if what.due(now, turn):
                self.mark_runnable(what)
            self._set_timer(what)
        elif what.fetch is not None and what.fetch.deadline <= now:
            last = what.fetch.deadline + FETCH_GRACE_S
            self.serve(now, turn)  # messages that are ready at the deadline belong to the FETCH
            if now < last and (what.group.is_held() or what.group in self._rounds):
                self.timers.set(min(now + COMMIT_DELAY_S, last), what)
            else:
                self._end_fetch(what, turn)

    def _set_timer(self, group: Group) -> None:
        """Set a timer for the next message of a group that is due or expires, unless an earlier timer is set."""
        due = group.next_due()
        if due < group.timer_at:
            group.timer_at = due
            self.timers.set(due, group)
