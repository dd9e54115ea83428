"""Members: subscriptions join and leave their groups, and lose and regain the connections of their sessions.

A session without a connection keeps the deliveries that its consumer can have begun, for its grace. All its other
deliveries are ready again at once, if another consumer of the group can take them.
"""

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from fabric.router.groups import verdicts
from fabric.router.groups.deliver import send_again
from fabric.router.groups.dispatcher import Dispatcher
from fabric.router.groups.group import Group
from fabric.router.groups.subscription import Subscription
from fabric.router.rounds import LEASE_WORK
from fabric.router.sessions.session import Session
from fabric.router.turn import Turn
from fabric_protocol import messages as m


class Members:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.away: dict[Session, None] = {}  # sessions without a connection that still have their subscriptions

    def join(self, sub: Subscription, turn: Turn) -> None:
        """Add a subscription to its group."""
        group = sub.group
        group.members.append(sub)
        sub.session.principal.usage.subscriptions += not group.durable
        group.dirty = group.durable  # the group delivers from now on
        self._dispatcher.idle_groups.note(group)
        self._dispatcher.group_rows.note(group)
        if self.away:
            self._release_unbegun(group, turn)
        self._dispatcher.mark_runnable(group)

    def leave(self, sub: Subscription, turn: Turn, *, lost: bool) -> None:
        """Remove a subscription from its group; `lost`: deliveries that its consumer has begun have failed."""
        sub.fetch = None
        group, dispatcher = sub.group, self._dispatcher
        sub.session.principal.usage.subscriptions -= not group.durable
        verdicts.leave(group, sub, dispatcher.shared.clock.now, turn, lost=lost)
        if group.durable:
            group.dirty |= not group.members  # the group delivers nothing from now on
            dispatcher.idle_groups.note(group)
            dispatcher.follow_up(group, turn)
        elif group.name in dispatcher.groups:
            dispatcher.unregister(group)

    def detach(self, sessions: Sequence[Session], turn: Turn) -> None:
        """The connections of sessions were closed, or the sessions have missed their heartbeats. All of them are away
        before their groups look for members that are not away."""
        self.away.update(dict.fromkeys(sessions))
        for group in dict.fromkeys(sub.group for session in sessions for sub in session.channels.values()):
            self._release_unbegun(group, turn)

    def reattach(self, session: Session, turn: Turn) -> None:
        """The client of a session is connected again."""
        self.away.pop(session, None)
        for sub in session.channels.values():
            if sub.away:
                verdicts.reattach(sub.group, sub, turn)
            if self.away:
                self._release_unbegun(sub.group, turn)
            self._dispatcher.mark_runnable(sub.group)

    def send_again(self, sub: Subscription, seen: int, room: int, turn: Turn) -> int:
        """Send deliveries after the ordinal `seen` again, with the same ordinals, while `room` for their work is left.
        The other deliveries are ready again for the group. Returns the rest of the room."""
        unseen = sub.leases[bisect_right(sub.leases, seen, key=attrgetter("first")) :]
        for at, lease in enumerate(unseen):
            if room <= 0:
                verdicts.take_back_unseen(sub.group, sub, unseen[at:], turn)
                self._dispatcher.follow_up(sub.group, turn)
                break
            for message in send_again(sub.group, lease):
                turn.send(sub.session.peer, message)
                room -= LEASE_WORK + (len(message.block) if isinstance(message, m.Deliver) else 0)
        return room

    def _release_unbegun(self, group: Group, turn: Turn) -> None:
        """Deliveries that members without a connection cannot have begun are ready again, if other members exist."""
        away = [member for member in group.members if member.session in self.away]
        if away and len(away) < len(group.members):
            for member in away:
                verdicts.detach(group, member, turn)
            self._dispatcher.follow_up(group, turn)
