"""Refresh: the consumers of a group reload their local copies, and the phase of the group tells how far they are.

                 RESET begin                  all up to the target is settled             all have sent READY
    (requested) ------------> SYNCING ------------------------------> ENDED ---------------------> READY
                                 '------ DEGRADED: not ready in time; the refresh goes on -----------^
                                                                     RESET end

A refresh seeks the group back, and its target is the last seq at that time. Later messages have higher seqs, so they
come after the target: a copy that was dropped at `begin` is complete at `end`, and is used from then on. Number, target
and phase are in the group's row, so a refresh goes on after a restart.

RESET begin promises that every message up to the target comes again. So a refresh that is not ready starts over when a
consumer joins a group without members, after a restart or the loss of the last consumer: messages that were settled
before are only in a copy that may be gone.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, Final

from fabric.records import SaveSetting
from fabric.router.fields import bounded
from fabric.router.groups.dispatcher import Dispatcher
from fabric.router.groups.group import Group
from fabric.router.groups.subscription import Subscription
from fabric.router.part import Part
from fabric.router.ranges import Ranges
from fabric.router.timers import NEVER
from fabric.router.turn import Turn
from fabric_protocol import messages as m
from fabric_protocol.bounds import REFRESH_MS
from fabric_protocol.errors import Code, ProtocolError

FEW: Final = 64  # up to so many running refreshes are checked in every turn;
PAUSE_S: Final = 0.25  # above that, they are checked after this time
FIELDS: Final = ("op", "group", "from", "timeout_ms")
START: Final = "first"  # the position at which a refresh begins if `from` is missing
ROW: Final = "refresh:"  # with the group's name: the setting that has the position of a refresh


class Phase(IntEnum):
    NONE = 0  # the group had no refresh
    SYNCING = 1  # messages up to the target are delivered
    ENDED = 2  # they are settled; the hub waits for READY
    READY = 3
    DEGRADED = 4  # not ready in time


class _Refresh:
    """A running refresh: it is not ready yet."""

    __slots__ = ("deadline", "group", "has_ended", "ready", "start", "timeout_s")

    def __init__(self, group: Group, start: Any, timeout_s: float, *, has_ended: bool) -> None:
        self.group = group
        self.start = start  # a position, as requested
        self.timeout_s = timeout_s
        self.deadline: float | None = None  # None: the next tick sets it
        self.has_ended = has_ended
        self.ready: set[Subscription] = set()

    @property
    def number(self) -> int:
        return self.group.refresh[0]

    @property
    def target(self) -> int:
        return self.group.refresh[1]

    @property
    def is_at_target(self) -> bool:
        return self.group.floor >= self.target

    @property
    def is_ready(self) -> bool:
        """Whether the group has members and all of them have sent READY."""
        members = self.group.members
        return bool(members) and all(sub in self.ready for sub in members)


class Refreshes(Part):
    def __init__(self, dispatcher: Dispatcher, saved: Iterable[SaveSetting], turn: Turn) -> None:
        self._dispatcher = dispatcher
        self._running: dict[Group, _Refresh] = {}
        self._look_at = 0.0  # when `tick` checks next, if nothing arrives
        starts = {setting.name: setting.value for setting in saved if setting.name.startswith(ROW)}
        for group in dispatcher.groups.values():
            if group.refresh[2] in (Phase.SYNCING, Phase.ENDED, Phase.DEGRADED):
                start, has_ended = starts.pop(ROW + group.name, START), group.refresh[2] == Phase.ENDED
                self._running[group] = _Refresh(group, start, REFRESH_MS[1] / 1000, has_ended=has_ended)
        for name in starts:  # settings of deleted groups
            turn.write(SaveSetting(name, None))

    def begin(self, group: Group, fields: Mapping[str, Any], now: float, turn: Turn) -> dict[str, Any]:
        """ADMIN group.refresh: start a refresh, in place of a running refresh of the group."""
        if unknown := [name for name in fields if name not in FIELDS]:
            raise ProtocolError(Code.BAD_OPTION, f"group.refresh takes {', '.join(FIELDS)}, not {unknown[0]!r}")
        if not group.durable:
            raise ProtocolError(
                Code.NOT_FOUND, f"{group.name!r} is a subscription without a group: only groups can be refreshed"
            )
        timeout_s = bounded(fields, "timeout_ms", *REFRESH_MS) / 1000
        dispatcher = self._dispatcher
        target = dispatcher.shared.committed_seq
        start = fields.get("from", START)
        to = dispatcher.position(group, start, "from")
        number = group.refresh[0] + 1
        dispatcher.shared.change.begin()
        for sub in group.members:  # before messages are delivered again
            turn.send(sub.session.peer, _reset(sub, number, "begin", target))
        dispatcher.seek(group, to, turn)
        self.forget(group, turn)
        refresh = self._running[group] = _Refresh(group, start, timeout_s, has_ended=False)
        refresh.deadline = now + timeout_s
        if start != START:
            turn.write(SaveSetting(ROW + group.name, start))
        self._look_at = now
        self._move(group, (number, target, Phase.SYNCING), turn)
        return {"group": group.name, "refresh": number, "target": target, "cursor": to.cursor}

    def require_start(self, group: Group) -> None:
        """Raise BUSY while the search goes on for the position at which a join starts the refresh over."""
        refresh = self._running.get(group)
        if refresh is not None and not group.members:
            self._dispatcher.position(group, refresh.start, "from")

    def require_all(self, group: Group, skipped: Ranges) -> None:
        """Raise CONFLICT if the group would skip messages that a refresh has promised to its consumers. Without them,
        the copies would be incomplete at RESET end; and a refresh that starts over would deliver them all the same."""
        refresh = self._running.get(group)
        if refresh is not None and not refresh.has_ended and skipped and skipped.first <= refresh.target:
            raise ProtocolError(
                Code.CONFLICT,
                f"refresh {refresh.number} of group {group.name!r} delivers all messages up to seq {refresh.target}, "
                f"and seq {skipped.first} would not come: wait for its end, or begin a refresh at a later position",
            )

    def joined(self, sub: Subscription, turn: Turn) -> None:
        """Send the phase of the refresh to a new member. The refresh starts over if it is the only member."""
        refresh = self._running.get(sub.group)
        if refresh is not None:
            if len(sub.group.members) == 1:
                self._start_over(refresh, turn)
            phase = "end" if refresh.has_ended else "begin"
            turn.send(sub.session.peer, _reset(sub, refresh.number, phase, refresh.target))

    def _start_over(self, refresh: _Refresh, turn: Turn) -> None:
        group = refresh.group
        self._dispatcher.seek(group, self._dispatcher.position(group, refresh.start, "from"), turn)
        refresh.has_ended = False
        refresh.ready.clear()
        if refresh.deadline == NEVER:  # the refresh was degraded
            refresh.deadline = None
        self._move(group, (refresh.number, refresh.target, Phase.SYNCING), turn)

    def ready(self, sub: Subscription, message: m.Ready, turn: Turn) -> None:
        """A consumer uses its copy again."""
        group = sub.group
        number, _, phase = group.refresh
        if message.refresh != number or not number:
            if message.refresh > number or not message.refresh:
                raise ProtocolError(Code.NOT_FOUND, f"group {group.name!r} has no refresh {message.refresh}")
            raise ProtocolError(Code.STALE, f"refresh {message.refresh} is over; the latest refresh is {number}")
        refresh = self._running.get(group)
        if refresh is not None and not refresh.has_ended:
            raise ProtocolError(Code.CONFLICT, f"refresh {number} has not ended yet: wait for RESET end")
        self._dispatcher.shared.change.begin()
        if refresh is not None:
            refresh.ready.add(sub)
            self._look(refresh, turn)
            phase = group.refresh[2]
        if message.rid:
            answer = {"refresh": number, "phase": Phase(phase).name.lower()}
            turn.answer(sub.session.peer, m.Ok(sub.chan, message.rid, answer))

    # Time.

    def tick(self, now: float, turn: Turn) -> None:
        if not self._running or (len(self._running) > FEW and now < self._look_at):
            return
        for refresh in list(self._running.values()):
            self._advance(refresh, now, turn)
        deadline = min((refresh.deadline or NEVER for refresh in self._running.values()), default=NEVER)
        self._look_at = deadline if len(self._running) <= FEW else min(deadline, now + PAUSE_S)

    def next_deadline(self) -> float:
        return self._look_at if self._running else NEVER

    def _advance(self, refresh: _Refresh, now: float, turn: Turn) -> None:
        group = refresh.group
        if not refresh.has_ended and refresh.is_at_target:
            self._end(refresh, turn)
        self._look(refresh, turn)
        if refresh.deadline is None:
            refresh.deadline = now + refresh.timeout_s
        if group in self._running and now >= refresh.deadline:
            refresh.deadline = NEVER
            if group.refresh[2] != Phase.DEGRADED:
                self._move(group, (*group.refresh[:2], Phase.DEGRADED), turn)

    def _end(self, refresh: _Refresh, turn: Turn) -> None:
        refresh.has_ended = True
        group = refresh.group
        for sub in group.members:
            turn.send(sub.session.peer, _reset(sub, refresh.number, "end", refresh.target))
        self._move(group, (refresh.number, refresh.target, Phase.ENDED), turn)

    def _look(self, refresh: _Refresh, turn: Turn) -> None:
        """End the refresh if all members are ready. Members may have joined or left since the last check."""
        if refresh.has_ended and refresh.is_ready:
            self.forget(refresh.group, turn)
            self._move(refresh.group, (refresh.number, refresh.target, Phase.READY), turn)

    def forget(self, group: Group, turn: Turn) -> None:
        """Remove a refresh that is over, or of a deleted group. Its setting is removed in the same turn, because a new
        group may get the name."""
        refresh = self._running.pop(group, None)
        if refresh is not None and refresh.start != START:
            turn.write(SaveSetting(ROW + group.name, None))

    def _move(self, group: Group, state: tuple[int, int, int], turn: Turn) -> None:
        group.refresh = state
        group.dirty = True
        self._dispatcher.group_rows.note(group)
        number, target, phase = state
        turn.advise(
            "$sys.group.refresh", group=group.name, refresh=number, target=target, phase=Phase(phase).name.lower()
        )


def _reset(sub: Subscription, number: int, phase: str, target: int) -> m.Reset:
    return m.Reset(sub.chan, {"refresh": number, "phase": phase, "target": target})
