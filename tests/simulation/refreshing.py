"""The observer's knowledge of refreshes: a group begins again, and is told when all up to the target is settled."""

from typing import Any

from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from tests.simulation.judge import Judge
from tests.simulation.ledgers import GroupBook, Session, Sub


class Refresh:
    """One that is not ready yet."""

    __slots__ = ("has_ended", "moved", "number", "ready", "start", "target")

    def __init__(self, number: int, target: int, start: Any) -> None:
        self.number = number
        self.target = target
        self.start = start  # as it was asked for
        self.has_ended = False
        self.moved = False  # elsewhere, by an administrator: without consumers, its end is not told
        self.ready: set[Sub] = set()


class Refreshing(Judge):
    refreshing = False  # a refresh was asked for in this life

    def refresh(self, session: Session, rid: int, group: GroupBook, start: Any) -> None:
        """ADMIN group.refresh: all members begin again."""
        self.refreshing = True
        self.seek(group, start)
        number = group.refreshes + 1
        self.undo.append((set_refresh, group, group.refreshes, group.refresh))
        group.refreshes, group.refresh = number, Refresh(number, self.served, start)
        session.expect(rid, self.turn, {"refresh": number, "target": self.served, "cursor": group.start})

    def joined(self, group: GroupBook) -> None:
        """The first consumer of a group in a refresh begins it again."""
        refresh = group.refresh
        if refresh is not None and len(group.subs) == 1:
            self.counts["refreshes started over"] += 1
            self.seek(group, refresh.start)
            self.undo.append((setattr, refresh, "has_ended", refresh.has_ended))
            refresh.has_ended = False
            refresh.ready.clear()

    def reset(self, session: Session, message: m.Reset) -> None:
        """The hub tells a consumer where a refresh is."""
        sub = session.subs.get(message.chan)
        if sub is None or sub.group.refresh is None:
            return  # gone meanwhile
        group, refresh = sub.group, sub.group.refresh
        assert message.fields["refresh"] == refresh.number, "R1: the latest refresh is told"
        assert message.fields["target"] == refresh.target, "R1: a refresh keeps its target"
        if message.fields["phase"] == "end" and not refresh.has_ended:
            self.counts["refreshes ended"] += 1
            for seq in range(group.start, refresh.target + 1):
                assert self.is_done(group, seq), f"R2: the refresh of {group.name} ends, and {seq} is not settled"
            self.undo.append((setattr, refresh, "has_ended", False))
            refresh.has_ended = True

    def say_ready(self, session: Session, message: m.Ready) -> int:
        sub = session.subs.get(message.chan)
        if sub is None:
            return Code.NOT_FOUND
        group, refresh = sub.group, sub.group.refresh
        if message.refresh != group.refreshes or not group.refreshes:
            return Code.NOT_FOUND if message.refresh > group.refreshes or not message.refresh else Code.STALE
        if refresh is not None and not refresh.has_ended:
            return Code.CONFLICT
        if refresh is not None:
            refresh.ready.add(sub)
            self.look_at_refresh(group)
        return 0

    def look_at_refresh(self, group: GroupBook) -> None:
        """A refresh is over when all members are ready; members come and go."""
        refresh = group.refresh
        if refresh is not None and refresh.has_ended and group.subs and refresh.ready.issuperset(group.subs):
            self.undo.append((set_refresh, group, group.refreshes, refresh))
            group.refresh = None

    def is_refreshed(self, group: GroupBook) -> bool:
        """Whether nothing more can come of a refresh."""
        return group.refresh is None or group.refresh.has_ended or not group.far <= group.settled

    def look_at_refreshes(self) -> None:
        for group in self.groups.values():
            if group.refresh is not None:
                self.look_at_refresh(group)

    def is_done(self, group: GroupBook, seq: int) -> bool:
        """Whether a group need not have a message any more."""
        if seq in group.settled or seq < self.first_seq or self.topics[seq - 1] not in group.wanted:
            return True
        return self.is_optional(group, seq)


def set_refresh(group: GroupBook, refreshes: int, refresh: Refresh | None) -> None:
    group.refreshes, group.refresh = refreshes, refresh
