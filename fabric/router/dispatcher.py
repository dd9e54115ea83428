"""Dispatcher: all groups together. Which of them have something to do, whose lease lapses, whose row is out of date.

Whatever happens to a group stirs it; `serve` lets every stirred group hand out what it can. So the work of a turn is
proportional to what happened in it, not to how many groups there are.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count
from operator import attrgetter
from typing import Any, Final

from fabric import messages as m
from fabric.block import Block
from fabric.errors import Code, ProtocolError
from fabric.names import DEAD
from fabric.router import settling
from fabric.router.commons import Commons
from fabric.router.delivery import Parcel
from fabric.router.group_rows import LAZY_S, GroupRows
from fabric.router.groups import Group
from fabric.router.handing import hand_out, send_again
from fabric.router.intake import Intake
from fabric.router.key_index import KeyIndex
from fabric.router.keyed import hand_out_by_key
from fabric.router.lanes import advance
from fabric.router.ledger import Ledger, Out
from fabric.router.letters import letters
from fabric.router.members import UNLIMITED, FetchOrder, Subscription
from fabric.router.pattern_change import before_change
from fabric.router.positions import Ends, Position, find_position
from fabric.router.rounds import PARCEL_WORK, SEARCH_WORK
from fabric.router.searches import Searches
from fabric.router.sessions import Session
from fabric.router.timers import NEVER, Timers
from fabric.router.verdict_rows import Row, merged, require_few, require_light

GROUPS_MAX: Final = 10_000
# A FETCH is kept open for so long after its deadline when there are messages for it that wait for a commit: those of a
# group that has just been made or joined. Otherwise who asks for what is there now would be given nothing.
FETCH_GRACE_S: Final = 0.1
PRIORITIES: Final = "priorities"  # a setting of the hub: those that were ever used
IDLE_PER_SWEEP: Final = 16  # groups without consumers whose lanes are moved on; each takes some two milliseconds

_Timed = Parcel | Group | Subscription


class Dispatcher:
    def __init__(self, commons: Commons, intake: Intake, ledger: Ledger, first_seq: int) -> None:
        self.counters: Counter[str] = Counter()
        self.groups: dict[str, Group] = {}
        self.commons = commons
        self.first_seq = commons.shelf.first_seq = commons.shelf.begins_at = first_seq
        self.draining = False
        self.hasty_groups = 0  # how many are of level `received`
        self.timers: Timers[_Timed] = Timers(_is_pending)
        self.priorities: dict[int, None] = {}  # those that were ever used, besides the default
        self.away: dict[Session, None] = {}  # sessions whose connection was closed, and whose grace is not over
        self._intake = intake
        self._ledger = ledger
        self._rounds = commons.rounds
        self._searches = Searches(commons.shelf.reader, commons.clock)
        self._idle: dict[Group, None] = {}  # without consumers, and their lanes are not where they belong yet
        self.rows = GroupRows()
        self._ids = count(1)

    # Groups and members.

    def restore(
        self, saved: Iterable[m.SaveGroup], failures: Iterable[m.SaveFailure], priorities: Iterable[int], now: float
    ) -> None:
        self.priorities = dict.fromkeys(priorities)
        failed: dict[str, list[m.SaveFailure]] = {}
        for failure in failures:
            failed.setdefault(failure.group, []).append(failure)
        for row in saved:
            group = Group.restore(row, failed.get(row.name, ()), self.commons, now)
            self._enrol(group)
            group.trimmed(self.first_seq, [])
            self._idle[group] = None
            self.rows.note(group)
            self._set_alarm(group)

    def create(self, name: str | None, settings: m.GroupSettings, start: Any) -> Group:
        """A new group; without a name it is ephemeral, and ends with its only member."""
        if len(self.groups) >= GROUPS_MAX:
            raise ProtocolError(Code.BUSY, f"a hub has at most {GROUPS_MAX} groups", retry_ms=1000)
        durable = name is not None
        name = name or f"$sub.{next(self._ids)}"
        group = Group(name, settings, self._intake.next_seq, self.commons, durable=durable)
        self._enrol(group)
        try:
            group.move(self.position(group, start if start is not None else "first" if durable else "new", "start"))
        except ProtocolError:
            self._strike(group)
            raise
        self.rows.note(group)
        self.stir(group)
        return group

    def position(self, group: Group, wish: Any, field: str) -> Position:
        """The position that someone asks for, as this group sees it."""
        ends = Ends(self.first_seq, self.commons.committed_seq, self._intake.next_seq)
        return find_position(wish, ends, group.patterns, self._searches, field)

    def seek(self, group: Group, to: Position) -> None:
        """Begin again elsewhere: all leases end, all failures are forgotten."""
        settling.take_back_all(group, "the group was moved")
        group.move(to)
        self.rows.note(group)
        self.stir(group)

    def pause(self, group: Group, paused: bool) -> None:
        group.paused, group.dirty = paused, group.durable
        self.rows.note(group)
        self.stir(group)

    def update(self, group: Group, settings: m.GroupSettings, now: float, out: Out) -> None:
        """Other settings from now on. New patterns hold from the oldest message on that waits for the group."""
        self.stir(group)  # also when it has to be asked for again
        if settings.patterns != group.settings.patterns:
            before_change(group, self.commons.clock.wall_us(now), out)
        self._strike(group)
        group.settle_on(settings)
        group.dirty = True
        self._enrol(group)
        self.commons.shelf.reader.forget(group.wants)
        self._follow_up(group)

    def delete(self, group: Group) -> None:
        """The group is no more; its consumers have been told before."""
        self._strike(group)
        self.rows.drop(group)
        group.durable = group.leases = False  # whatever is still said about it changes nothing on disk
        self._ledger.write(m.DropGroup(group.name))

    def is_settled(self, topic: str, seq: int) -> bool:
        """Whether all durable groups that want a topic are done with a message."""
        return all(group.has_settled(seq) for group in self.commons.trie.match(topic) if group.durable)

    def join(self, sub: Subscription) -> None:
        sub.group.members.append(sub)
        sub.group.dirty = sub.group.durable  # it is going to hand out
        self.rows.note(sub.group)
        if self.away:
            self._pass_on(sub.group)
        self.stir(sub.group)

    def leave(self, sub: Subscription, *, lost: bool) -> None:
        sub.fetch = None
        now = self.commons.clock.now
        settling.leave(sub.group, sub, now, lost=lost)
        if sub.group.durable:
            sub.group.dirty |= not sub.group.members  # nothing is handed out from now on
            self._follow_up(sub.group)
        elif sub.group.name in self.groups:
            self._strike(sub.group)

    def detach(self, session: Session) -> None:
        """The connection of a session was closed."""
        self.away[session] = None
        for sub in session.channels.values():
            self._pass_on(sub.group)

    def reattach(self, session: Session) -> None:
        """The client of a session is back."""
        self.away.pop(session, None)
        for sub in session.channels.values():
            if sub.away:
                settling.reattach(sub.group, sub)
            if self.away:
                self._pass_on(sub.group)
            self.stir(sub.group)

    def send_again(self, sub: Subscription, seen: int, room: int, out: Out) -> int:
        """Deliver again, under the same ordinals, what a lost connection swallowed, as far as there is room for it; the
        rest is ready again, for the group. Returns what is left of the room."""
        unseen = sub.parcels[bisect_right(sub.parcels, seen, key=attrgetter("first")) :]
        for at, parcel in enumerate(unseen):
            if room <= 0:
                settling.take_back_unseen(sub.group, sub, unseen[at:])
                self._follow_up(sub.group)
                break
            for peer, message in send_again(sub.group, parcel):
                out.append((peer, message))
                room -= PARCEL_WORK + (len(message.block) if isinstance(message, m.Deliver) else 0)
        return room

    def _pass_on(self, group: Group) -> None:
        """What members without a connection cannot have begun is for the others, if there are any."""
        away = [member for member in group.members if member.session in self.away]
        if away and len(away) < len(group.members):
            for member in away:
                settling.detach(group, member)
            self._follow_up(group)

    def use_priority(self, priority: int, seq: int) -> None:
        """A priority is used for the first time, by the block at seq: every group counts it apart from here on."""
        self.priorities[priority] = None
        self._ledger.write(m.SaveSetting(PRIORITIES, list(self.priorities)))
        for group in self.groups.values():
            group.add_lane(priority, seq, first=True)

    def _enrol(self, group: Group) -> None:
        self.groups[group.name] = group
        self.hasty_groups += group.received
        for priority in self.priorities:
            group.add_lane(priority, group.cursor)
        for pattern in group.patterns:
            self.commons.trie.add(pattern, group)

    def _strike(self, group: Group) -> None:
        del self.groups[group.name]
        self._rounds.drop(group)
        self._idle.pop(group, None)
        self.hasty_groups -= group.received
        for pattern in group.patterns:
            self.commons.trie.remove(pattern, group)

    # Handing out.

    @property
    def busy(self) -> bool:
        """Some group has more to hand out than one go allows."""
        return bool(self._rounds)

    def stir(self, group: Group) -> None:
        if group.is_searching():  # somewhere in a history, which is long or not
            self._rounds.again(group)
        else:
            self._rounds.stir(group)

    def stir_all(self, session: Session) -> None:
        for sub in session.channels.values():
            self.stir(sub.group)

    def wake(self, blocks: list[Block], *, received: bool) -> None:
        """Tell the groups of a level that there are blocks for them."""
        for block in blocks:
            for owners in self.commons.trie.match_all(block.topics):
                for group in owners:
                    if group.received == received and (group.wake(block) or group.members or block.expires_us):
                        self.stir(group)

    def serve(self, now: float, out: Out) -> None:
        """Let every group that something happened to hand out what it can, as far as the work of a turn allows."""
        if self.draining:
            self._rounds.clear()
        for group in self._rounds:
            if group.untold:
                group.tell_gaps()
            if group.mail:
                out += group.mail
                group.mail = []
            sent, leased, more = len(out), list[Parcel](), False
            if not group.paused and group.members:
                if group.keys is not None:
                    leased, more = hand_out_by_key(group, group.keys, now, out)
                    self._set_alarm(group)  # what was first behind a lock may be gone, and the next one have to wait
                else:
                    leased, more = hand_out(group, now, out)
            if not more and group.is_searching():
                more = self._advance(group, now, out)
            if group.expires_us():
                self._set_alarm(group)
            if group.dead or group.dirty:
                self._bury(group)
                self.rows.note(group)
            for parcel in leased:
                self.timers.set(parcel.deadline, parcel)
            if more:
                self._rounds.again(group)
                if len(out) == sent:
                    self._rounds.spent += SEARCH_WORK
            self.counters["deliveries"] += len(out) - sent
            if len(out) > sent or not more:
                for sub in group.members:
                    if sub.fetch is not None and sub.sent >= (
                        sub.fetch.target if more or group.is_held() else sub.fetch.enough
                    ):
                        self._end_fetch(sub, out)

    def _advance(self, group: Group, now: float, out: Out) -> bool:
        """Move a group's lanes on, though nobody has credit; whether to go on soon."""
        if not advance(group, self.commons.clock.wall_us(now), out):
            return False
        if group.members:
            return True
        self._idle[group] = None
        return False

    def sweep(self, now: float, out: Out) -> None:
        """Now and then: groups without consumers move on too, in small steps."""
        self._searches.sweep(now)
        for group in list(self._idle)[:IDLE_PER_SWEEP]:
            del self._idle[group]
            if self._advance(group, now, out):
                self.stir(group)
            self._bury(group)
            self.rows.note(group)
            self._set_alarm(group)

    def fetch(self, sub: Subscription, message: m.Fetch, now: float) -> None:
        if sub.fetch is not None or message.count < 1:
            raise ProtocolError(Code.BAD_OPTION, "one FETCH at a time, of one message or more")
        deadline = now + message.expires_ms / 1000
        self.commons.change.begin()
        sub.ordinal_max = sub.sent + message.count
        sub.bytes_max = UNLIMITED
        enough = sub.sent + min(message.enough or message.count, message.count)
        sub.fetch = FetchOrder(message.rid, sub.sent, sub.ordinal_max, enough, deadline)
        self.stir(sub.group)
        self.timers.set(deadline, sub)

    def _end_fetch(self, sub: Subscription, out: Out) -> None:
        if sub.fetch is not None:
            sub.ordinal_max = sub.sent
            out.append((sub.session.peer, m.End(sub.chan, sub.fetch.rid, sub.sent - sub.fetch.first)))
            sub.fetch = None

    # Settling.

    def settle(self, sub: Subscription, message: m.Settle, now: float) -> dict[str, Any]:
        """Apply verdicts. Returns what to answer when they are on disk."""
        rows: Sequence[Row] = message.verdicts
        highest = rows[0][2] if len(rows) == 1 else max(last for _, _, last, _ in rows)
        if highest > sub.sent:
            raise ProtocolError(Code.BAD_ORDINAL, f"ordinal {highest} was never sent; the last one was {sub.sent}")
        if len(rows) > 1:
            rows = merged(rows)
            require_few(len(rows))
        require_light([(sub, rows)])
        return self.apply(sub, rows, now)

    def apply(self, sub: Subscription, rows: Sequence[Row], now: float) -> dict[str, Any]:
        """Apply rows that were checked."""
        self.commons.change.begin()
        group, stale, applied = sub.group, [], 0
        sub.key_index = KeyIndex(sub) if len(rows) > 1 else None
        for verdict, first, last, arg in rows:
            late = settling.settle(group, sub, verdict, first, last, arg, now)
            stale += [list(pair) for pair in late]
            applied += last - first + 1 - late.size()
        sub.key_index = None
        self.counters["settled"] += applied
        if stale:
            self.counters["stale_verdicts"] += 1
        self._follow_up(group)
        return {"applied": applied, "stale": stale}

    def _follow_up(self, group: Group) -> None:
        """Something was settled or came back: bury the dead, remember the row, look at the group again."""
        if group.dead:
            self._bury(group)
        self.rows.note(group)
        self.stir(group)
        self._set_alarm(group)

    def _bury(self, group: Group) -> None:
        """Dead letters are appended in the turn that settles them: on disk, it is one or the other."""
        dead, group.dead = group.dead, []
        for letter in dead:
            block = self.commons.shelf.at(letter.first)  # a letter comes from one delivery, and so from one block
            if isinstance(block, Block) and block.topics[0].startswith(DEAD):  # letters have none of their own
                self.counters["dead_letters_discarded"] += letter.last - letter.first + 1
            elif isinstance(block, Block):
                for raw in letters(group.name, letter, block, letter.first, letter.last):
                    self._intake.append(Block(raw))
                self.counters["dead_letters"] += letter.last - letter.first + 1
            group.close(letter.first, letter.last)

    def begins_at(self, first_seq: int) -> None:
        """The journal begins later, and nobody misses anything: groups that have waited for the news go on."""
        self.first_seq = self.commons.shelf.begins_at = first_seq
        for group in self.groups.values():
            if group.is_searching():
                self.stir(group)

    def trimmed(self, first_seq: int, out: Out) -> None:
        """Retention moved the start of the journal."""
        self.first_seq = self.commons.shelf.first_seq = self.commons.shelf.begins_at = first_seq
        for group in self.groups.values():
            group.trimmed(first_seq, out)
            if group.is_searching():
                self.stir(group)
            self.rows.note(group)

    def committed(self) -> None:
        """The oldest sealed turn is on disk: groups may hand out as far as their rows say."""
        for group in self.rows.committed():
            if self.groups.get(group.name) is group:
                self.stir(group)

    # Time.

    def tick(self, now: float, out: Out) -> None:
        self._rounds.begin_turn()
        while (what := self.timers.ring(now)) is not None:
            self._ring(what, now, out)

    def _ring(self, what: _Timed, now: float, out: Out) -> None:
        if isinstance(what, Parcel):
            if what.open and what.deadline > now:
                self.timers.set(what.deadline, what)
            elif what.open:
                sub, count = what.sub, what.open.size()
                self.counters["lapsed"] += count
                self.commons.say("$sys.lapsed", group=sub.group.name, count=count, **sub.session.who)
                settling.lapse(sub.group, what, now)
                self._follow_up(what.sub.group)
        elif isinstance(what, Group):
            what.alarm = NEVER
            if what.due(now):
                self.stir(what)
            self._set_alarm(what)
        elif what.fetch is not None and what.fetch.deadline <= now:
            last = what.fetch.deadline + FETCH_GRACE_S
            self.serve(now, out)  # what is there at the deadline still counts
            if now < last and (what.group.is_held() or what.group in self._rounds):
                self.timers.set(min(now + LAZY_S, last), what)
            else:
                self._end_fetch(what, out)

    def _set_alarm(self, group: Group) -> None:
        """See to it that what waits in a group is looked at when it is due; a timer that is set already will do."""
        due = group.next_due()
        if due < group.alarm:
            group.alarm = due
            self.timers.set(due, group)


def _is_pending(what: _Timed) -> bool:
    """Whether a timer still has something to do."""
    if isinstance(what, Parcel):
        return bool(what.open)
    return what.next_due() < NEVER if isinstance(what, Group) else what.fetch is not None
