"""Dispatcher: all groups together. Which of them have something to do, whose lease lapses, whose row is out of date.

Whatever happens to a group stirs it; `serve` lets every stirred group hand out what it can. So the work of a turn is
proportional to what happened in it, not to how many groups there are.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import count
from typing import Any, Final

from fabric import messages as m
from fabric.block import Block
from fabric.errors import Code, ProtocolError
from fabric.router.delivery import Parcel
from fabric.router.groups import DeadLetter, Group
from fabric.router.intake import Intake
from fabric.router.ledger import Out
from fabric.router.letters import letters
from fabric.router.members import UNLIMITED, FetchOrder, Subscription
from fabric.router.options import start_position
from fabric.router.sessions import Session
from fabric.router.shelf import Shelf
from fabric.router.timers import NEVER, Timers
from fabric.router.topics import Trie

# Settled deliveries may wait this long for a commit of their own; a publish takes them along sooner.
LAZY_S: Final = 0.005
GROUPS_MAX: Final = 10_000

_Timed = Parcel | Group | Subscription


class Dispatcher:
    def __init__(self, shelf: Shelf, intake: Intake, first_seq: int, last_seq: int) -> None:
        self.counters: Counter[str] = Counter()
        self.groups: dict[str, Group] = {}
        self.first_seq = first_seq
        self.committed_seq = last_seq  # on disk
        self.appended_seq = last_seq  # sealed, and on disk soon; what groups of level `received` may have
        self.draining = False
        self.hasty_groups = 0  # how many are of level `received`
        self.timers: Timers[_Timed] = Timers(_is_pending)
        self._shelf = shelf
        self._intake = intake
        self._trie: Trie[Group] = Trie()
        self._stirred: dict[Group, None] = {}
        self._dirty: dict[Group, None] = {}
        self._dirty_since = 0.0  # 0: nothing is dirty, or `settle_down` has not seen it yet
        self._ids = count(1)

    # Groups and members.

    def restore(self, saved: Iterable[m.SaveGroup]) -> None:
        for row in saved:
            self._enrol(Group.restore(row))

    def create(self, name: str | None, settings: m.GroupSettings, start: Any) -> Group:
        """A new group; without a name it is ephemeral, and ends with its only member."""
        if len(self.groups) >= GROUPS_MAX:
            raise ProtocolError(Code.BUSY, f"a hub has at most {GROUPS_MAX} groups", retry_ms=1000)
        durable, next_seq = name is not None, self._intake.next_seq
        group = Group(name or f"$sub.{next(self._ids)}", settings, next_seq, durable=durable)
        self._enrol(group)
        try:
            start = start if start is not None else "first" if durable else "new"
            group.cursor = start_position(start, self.first_seq, next_seq, group.wants, self._shelf.reader)
        except ProtocolError:
            self._strike(group)
            raise
        group.dirty = durable
        self._note(group)
        return group

    def join(self, sub: Subscription) -> None:
        sub.group.members.append(sub)
        self.stir(sub.group)

    def leave(self, sub: Subscription, *, lost: bool) -> None:
        sub.fetch = None
        sub.group.leave(sub, lost=lost)
        if sub.group.durable:
            self.stir(sub.group)
        else:
            self._strike(sub.group)

    def _enrol(self, group: Group) -> None:
        self.groups[group.name] = group
        group.trie = self._trie
        self.hasty_groups += group.received
        for pattern in group.settings.patterns:
            self._trie.add(pattern, group)

    def _strike(self, group: Group) -> None:
        del self.groups[group.name]
        self._stirred.pop(group, None)
        self.hasty_groups -= group.received
        for pattern in group.settings.patterns:
            self._trie.remove(pattern, group)

    # Handing out.

    @property
    def busy(self) -> bool:
        """Some group has more to hand out than one go allows."""
        return bool(self._stirred)

    def stir(self, group: Group) -> None:
        self._stirred[group] = None

    def stir_all(self, session: Session) -> None:
        for sub in session.channels.values():
            self.stir(sub.group)

    def wake(self, blocks: list[Block], *, received: bool) -> None:
        """Tell the groups of a level that there are blocks for them."""
        for block in blocks:
            for owners in self._trie.match_all(block.topics):
                for group in owners:
                    if group.received == received:
                        group.wake(block.base_seq)
                        if group.members:
                            self.stir(group)

    def serve(self, now: float, out: Out) -> None:
        """Let every group that something happened to hand out what it can."""
        if self.draining:
            self._stirred.clear()
        stirred, self._stirred = self._stirred, {}
        for group in stirred:
            horizon = self.appended_seq if group.received else self.committed_seq
            sent = len(out)
            leased, more = group.dispatch(self._shelf, horizon, now + group.settings.lease_ms / 1000, out)
            for parcel in leased:
                self.timers.set(parcel.deadline, parcel)
            if more:
                self.stir(group)
            if len(out) > sent:
                self.counters["deliveries"] += len(out) - sent
                for sub in group.members:
                    if sub.fetch is not None and sub.sent >= sub.fetch.target:
                        self._end_fetch(sub, out)

    def fetch(self, sub: Subscription, message: m.Fetch, now: float) -> None:
        if sub.fetch is not None or message.count < 1:
            raise ProtocolError(Code.BAD_OPTION, "one FETCH at a time, of one message or more")
        deadline = now + message.expires_ms / 1000
        sub.ordinal_max = sub.sent + message.count
        sub.bytes_max = UNLIMITED
        sub.fetch = FetchOrder(message.rid, sub.sent, sub.ordinal_max, deadline)
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
        highest = max(last for _, _, last, _ in message.verdicts)
        if highest > sub.sent:
            raise ProtocolError(Code.BAD_ORDINAL, f"ordinal {highest} was never sent; the last one was {sub.sent}")
        group, stale, applied = sub.group, [], 0
        for verdict, first, last, arg in message.verdicts:
            late, dead = group.settle(sub, verdict, first, last, arg, now)
            stale += [list(pair) for pair in late]
            applied += last - first + 1 - late.size()
            self._bury(group, dead)
        self.counters["settled"] += applied
        if stale:
            self.counters["stale_verdicts"] += 1
        self._note(group)
        self.stir(group)
        self._set_alarm(group)
        return {"applied": applied, "stale": stale}

    def _bury(self, group: Group, dead: list[DeadLetter]) -> None:
        """Dead letters are appended in the turn that settles them: on disk, it is one or the other."""
        for letter in dead:
            block = self._shelf.at(letter.first)  # a letter comes from one delivery, and so from one block
            if isinstance(block, Block):
                for raw in letters(group.name, letter, block, letter.first, letter.last):
                    self._intake.append(Block(raw))
                self.counters["dead_letters"] += letter.last - letter.first + 1
            group.close(letter.first, letter.last)

    def trimmed(self, first_seq: int, out: Out) -> None:
        """Retention moved the start of the journal."""
        self.first_seq = first_seq
        for group in self.groups.values():
            group.trimmed(first_seq, out)
            self._note(group)

    # Rows on disk.

    def _note(self, group: Group) -> None:
        """Remember a group whose row on disk is out of date. Its commit can wait a little for company."""
        if group.dirty:
            self._dirty[group] = None

    def note_all(self) -> None:
        self._dirty.update(dict.fromkeys(group for group in self.groups.values() if group.durable))

    def take_rows(self) -> list[m.Record]:
        """The rows to write with this turn."""
        rows: list[m.Record] = [group.record(self.committed_seq) for group in self._dirty if group.name in self.groups]
        self._dirty, self._dirty_since = {}, 0.0
        return rows

    def settle_down(self, now: float, *, answers: bool) -> None:
        """Start the clock of a lazy commit when there is something for it: a row, or answers that wait for one."""
        if (self._dirty or answers) and not self._dirty_since:
            self._dirty_since = now

    def commit_deadline(self) -> float:
        """When settled deliveries have waited long enough for a commit; never, when there are none."""
        return self._dirty_since + LAZY_S if self._dirty_since else NEVER

    # Time.

    def tick(self, now: float, out: Out) -> None:
        while (what := self.timers.ring(now)) is not None:
            self._ring(what, now, out)

    def _ring(self, what: _Timed, now: float, out: Out) -> None:
        if isinstance(what, Parcel):
            if what.open and what.deadline > now:
                self.timers.set(what.deadline, what)
            elif what.open:
                group = what.sub.group
                self.counters["lapsed"] += what.open.size()
                self._bury(group, group.lapse(what))
                self._note(group)
                self.stir(group)
        elif isinstance(what, Group):
            what.alarm = NEVER
            if what.due(now):
                self.stir(what)
            self._set_alarm(what)
        elif what.fetch is not None and what.fetch.deadline <= now:
            self.serve(now, out)  # what is there at the deadline still counts
            self._end_fetch(what, out)

    def _set_alarm(self, group: Group) -> None:
        """See to it that what waits in a group is looked at when it is due; a timer that is set already will do."""
        if group.waiting and group.waiting[0][0] < group.alarm:
            group.alarm = group.waiting[0][0]
            self.timers.set(group.alarm, group)


def _is_pending(what: _Timed) -> bool:
    """Whether a timer still has something to do."""
    if isinstance(what, Parcel):
        return bool(what.open)
    return bool(what.waiting) if isinstance(what, Group) else what.fetch is not None
