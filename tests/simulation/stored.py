"""The observer's knowledge of the disk: what a turn writes, what a crash takes back, what retention removes."""

from collections import Counter
from collections.abc import Iterable

from fabric.records import Append, SaveFailure, SaveGroup, SaveSchedule, TopicSettings
from fabric.router.router import Transaction
from fabric_protocol.block import verify_stamp
from tests.simulation.blocks import IDENTS, idents_of
from tests.simulation.disk import Disk, stamp_of
from tests.simulation.facts import Counts, Undo
from tests.simulation.ledgers import letters_in
from tests.simulation.numbering import Producer
from tests.simulation.publisher import Publishing


class Stored(Publishing):
    def __init__(self, counts: Counts, settings: Iterable[tuple[str, TopicSettings]]) -> None:
        super().__init__(counts, settings)
        self.producers: dict[str, Producer] = {}
        self.clock_was_set = False
        self.letters: Counter[tuple[str, int]] = Counter()  # dead letters that there are, by group and original seq
        self.redriving: set[str] = set()  # groups whose letters someone asked for in this turn
        self._landed: list[int] = []
        self._undos: list[tuple[list[Undo], int]] = []  # of turns that were sealed, with the last seq of each

    def sealed(self, turn: Transaction) -> None:
        """A turn is closed: what it will write, if it gets to the disk."""
        accepted, self.accepted = self.accepted, []
        before = len(self.log)
        own: list[tuple[str, int]] = []
        new: list[int] = []  # seqs of what clients published
        for record in turn.records:
            if type(record) is Append:
                first, last, ts_us = stamp_of(record.block)
                verify_stamp(record.block)
                assert first == len(self.log) + 1, "J1: seqs have no gap"
                idents = idents_of(record.block)
                assert last - first + 1 == len(idents)
                letters = letters_in(record.block)
                self.log += idents
                if letters is None:
                    self.topics += [IDENTS[ident].topic for ident in idents]
                    new += range(first, last + 1)
                else:
                    for seq, (topic, origin) in enumerate(letters, first):
                        self.topics.append(topic)
                        if topic.startswith("$dlq."):
                            own.append((topic[5:], origin))
                        else:
                            self._redriven(topic[9:], seq, origin)
                if self.settings:
                    self.stored(first, ts_us)
        self.all_stored()
        self.number(accepted, new)
        self.drop_cancelled()
        if own or self.dead:
            self._count_letters(own)
            self.counts["dead letters"] += len(own)
        self.redriving.clear()
        for record in turn.records:
            if type(record) is SaveGroup:
                self._row(record)
            elif type(record) is SaveFailure or type(record) is SaveSchedule:
                assert 0 <= record.due_us < 1 << 63, f"J8: {record} does not fit its row"
        self.undo.append((self._cut, before))
        self._undos.append((self.undo, len(self.log)))
        self.undo = []
        self.turn += 1
        self.turn_wall_us = self.wall_us

    def _count_letters(self, own: list[tuple[str, int]]) -> None:
        """Dead letters are those that this turn owes."""
        owed, self.dead = self.dead, Counter()
        for letter in own:
            if not owed[letter]:
                self._unexpected(*letter)
            owed[letter] -= 1
            self.letters[letter] += 1
            self.undo.append((self._drop_letter, letter))
        missing = [letter for letter in +owed if not self.may_be_removed(letter[1])]  # of what is gone there is none
        assert not missing, f"D6: settled without their dead letters in the same transaction: {missing}"

    def _unexpected(self, name: str, origin: int) -> None:
        """A letter that no verdict asked for: of a message that expired, or that retention took."""
        group = self.groups.get(name)
        if origin < self.first_seq or group is None:
            return
        if group.moved_in == self.turn:  # before a seek, or before it was deleted, it was another life of the group
            return
        expired = (
            group.settings.on_expire == "dead"
            and origin in self.expires
            and self.may_be_dropped(origin)
            and origin not in group.settled
        )
        assert expired, f"D6: a dead letter that nobody expected: {origin} of {name}"
        self.counts["expired to letters"] += 1
        self.settled(group, origin)

    def _drop_letter(self, letter: tuple[str, int]) -> None:
        self.letters[letter] -= 1

    def _redriven(self, name: str, seq: int, origin: int) -> None:
        """A letter is given to its group once more."""
        assert name in self.redriving, "a letter is redriven that nobody asked for"
        assert self.letters[name, origin] > 0, "a letter is redriven once"
        self.letters[name, origin] -= 1
        self.undo.append((self._drop_letter, (name, origin)))
        self.undo[-1] = (self._return_letter, (name, origin))
        self.origin[seq] = origin
        self.counts["redriven"] += 1

    def _return_letter(self, letter: tuple[str, int]) -> None:
        self.letters[letter] += 1

    def _row(self, row: SaveGroup) -> None:
        """A group's position: nothing below its floor may be unsettled."""
        group = self.groups[row.name]
        floor = min(row.cursor, *[cursor for _, cursor in row.lanes], row.open[0][0] if row.open else row.cursor) - 1
        assert floor >= group.floor, f"D5: the floor of {row.name} goes down from {group.floor} to {floor}"
        if floor > group.floor:
            for seq in range(max(group.floor + 1, group.start), min(floor, len(self.log)) + 1):
                assert self.is_done(group, seq), f"D1: {row.name} counts {seq} as settled, and it is not"
            self.undo.append((group.set_floor, group.floor))
            group.floor = floor

    def landed(self) -> None:
        """The oldest sealed turn is on disk."""
        _, self.durable = self._undos.pop(0)
        self._landed.append(self.durable)
        self.landed_turns += 1

    def released(self) -> None:
        """The hub takes notice of the oldest turn that landed."""
        self.served = self._landed.pop(0)

    def crashed(self, disk: Disk, *, clean: bool) -> None:
        """The hub is gone, and with it all that was not on disk."""
        for undo in reversed(self.undo):
            undo[0](*undo[1:])
        for undos, _ in reversed(self._undos):
            for undo in reversed(undos):
                undo[0](*undo[1:])
        self.undo, self._undos, self.accepted, self._alarms = [], [], [], []
        self.all_stored()
        self.dead.clear()
        self.redriving.clear()
        self._hoped = None
        self.turn = self.landed_turns
        self._landed, self.served = [], self.durable
        assert len(self.log) == self.durable == disk.last_seq
        self.groups = {name: group for name, group in self.groups.items() if group.durable}
        assert set(self.groups) == set(disk.groups), "D1: groups outlive a crash"
        for group in self.groups.values():
            group.restored()
            group.restored_to = self.durable
            if group.refresh is not None:
                group.refresh.ready.clear()
            group.unclean = group.unclean or not clean
            group.handed = {seq for seq in group.handed if seq <= self.durable}  # other messages may have these seqs
            if self.clock_was_set:  # what waits by the wall's clock
                group.due.clear()
            if self.clock_was_set or not clean:
                group.forget_pace()
        for name, producer in self.producers.items():
            row = disk.producers.get(name)
            producer.epoch, producer.claimant = row.epoch if row else 0, None
            assert producer.epoch >= producer.proven, "fencing: an epoch outlives a crash"

    def _cut(self, length: int) -> None:
        for seq in range(length + 1, len(self.log) + 1):
            self.expires.pop(seq, None)
            self.origin.pop(seq, None)
        del self.log[length:], self.topics[length:]
        if self.settings:
            self.cut_limits(length)

    def trimmed(self, first_seq: int, now: float) -> None:
        """Retention removes what is below: those who still needed it must be told."""
        for group in self.groups.values():
            floor = group.floor if group.durable else group.last
            gone = [
                seq
                for seq in range(max(self.first_seq, group.start, floor + 1), first_seq)
                if seq not in group.settled and self.topics[seq - 1] in group.wanted
            ]
            owed = {seq for seq in gone if not self.is_optional(group, seq)}
            is_heard = any(sub.session.is_surely_reachable(now) for sub in group.subs)
            group.gap_owed = {(sub.session.peer, sub.chan): set(owed) for sub in group.subs} if is_heard else {}
            if group.durable:
                group.untold |= owed  # until a consumer that can be reached hears of it
            group.settled.update(gone)
            for seq in gone:
                self.undo.append((group.settled.discard, seq)) if group.durable else None
        self.first_seq = first_seq
        self.counts["trims"] += 1

    def trim_told(self) -> None:
        for group in self.groups.values():
            for missing in group.gap_owed.values():
                assert not missing, f"J6: {group.name} lost {sorted(missing)} and is not told"
            group.gap_owed = {}
