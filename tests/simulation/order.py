"""The observer's knowledge of order: which message may be delivered before which."""

from typing import Final

from tests.simulation.blocks import IDENTS
from tests.simulation.ledgers import GroupBook, Sub
from tests.simulation.limits import Limits

STREAK_MAX: Final = 64  # so many of higher priorities in a row, then one of the lowest that waits
SUSPECT: Final = 2  # failures after which a message is delivered alone; fewer where fewer are allowed


def is_suspect(group: GroupBook, seq: int) -> bool:
    return group.failures.get(seq, 0) >= min(SUSPECT, group.settings.attempts_max or SUSPECT)


class Order(Limits):
    def _line_up(self, group: GroupBook) -> None:
        """Put what came since the last time into lines: by key where keys are kept in order, else by priority."""
        horizon = len(self.log) if group.received else self.served
        order, wanted = group.settings.order, group.wanted
        for seq in range(max(group.lined + 1, group.start, self.first_seq), horizon + 1):
            if self.topics[seq - 1] in wanted and seq not in group.settled:
                ident = IDENTS[self.log[seq - 1]]
                line: bytes | int = ident.priority if order == "none" else ident.key if order == "key" else b"all"
                group.lines.setdefault(line, []).append(seq)
        group.lined = max(group.lined, horizon)

    def check_order(self, group: GroupBook, sub: Sub, seqs: list[int]) -> None:
        self._line_up(group)
        order = group.settings.order
        if order == "none":
            if len(group.lines) > 1:
                self._check_priority(group, seqs)
            group.streak += len(seqs)
            return
        mine = set(seqs)
        for seq in seqs:
            key = b"all" if order == "strict" else IDENTS[self.log[seq - 1]].key
            if not key:
                continue
            line = group.lines[key]
            at = 0
            while at < len(line) and line[at] < seq:
                earlier = line[at]
                if earlier in group.settled or earlier < self.first_seq:
                    del line[at]
                    continue
                at += 1
                if earlier in mine or earlier in group.optional or self.may_be_dropped(earlier):
                    continue
                held = group.leased.get(earlier)
                assert held is not None, f"D10: {group.name}: {seq} before {earlier} of the same key"
                assert held.sub is sub, f"D10: {group.name}: {seq} and {earlier} of one key with two consumers"

    def _check_priority(self, group: GroupBook, seqs: list[int]) -> None:
        """No message that was never delivered is passed over for one of a lower priority, except to keep it alive."""
        self.counts["deliveries by priority"] += 1
        mine = IDENTS[self.log[seqs[0] - 1]].priority
        if is_suspect(group, seqs[0]):
            return
        lower = passed = 0
        for priority, line in group.lines.items():
            assert isinstance(priority, int)
            if priority == mine:
                continue
            while line and (line[0] in group.attempts or line[0] in group.settled or self.is_optional(group, line[0])):
                del line[0]
            if line and line[0] >= self.first_seq:
                if priority < mine:
                    lower = line[0]
                elif line[0] > group.restored_to:
                    passed = line[0]
        if passed:
            self.counts["passed over"] += 1
            assert group.streak >= STREAK_MAX, f"D9: {seqs[0]} passes over {passed} in {group.name}"
            group.streak = 0
        group.starved = group.starved + len(seqs) if lower else 0
        assert group.starved <= STREAK_MAX, f"D9: {lower} starves in {group.name}"
