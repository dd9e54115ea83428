"""An observer of the states of messages in groups, and of the events that change them.

`Observer` derives the state of each message from the structures of its group, before and after each function that can
change it. So it knows the event of each change; a change outside of these functions is a failure.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from fabric.router.groups import dispatcher, verdicts
from fabric.router.groups.dispatcher import Dispatcher
from fabric.router.groups.group import Group
from fabric.router.groups.lease import Lease
from fabric.router.groups.lifecycle import FIRST, Event, State
from fabric.router.groups.recount import Recounts
from fabric.router.groups.subscription import Subscription
from fabric_protocol.block import Block
from fabric_protocol.messages import Verdict

READY, RETRYING, SUSPECT, LEASED, SETTLED, DEAD = State

Change = tuple[State, Event, State]
EventOf = Callable[[int, State, State], Event | None]  # of a seq and its states before and after; None: see `cause`


def open_states(group: Group) -> dict[int, State]:
    """The state of each message that is delivered, or waits to be delivered again."""
    found: dict[int, State] = {}
    for redelivery in group.pending:
        found |= dict.fromkeys(range(redelivery.first, redelivery.last + 1), READY)
    for redelivery in group.pending.suspects:
        found |= dict.fromkeys(range(redelivery.first, redelivery.last + 1), SUSPECT)
    for _, redelivery in group.pending.waiting:
        found |= dict.fromkeys(range(redelivery.first, redelivery.last + 1), RETRYING)
    for lock in group.keys.locks.values() if group.keys is not None else ():
        for held in lock.parked:
            often = held.failures >= group.pending.suspect_failures
            found[held.seq] = RETRYING if held.due else SUSPECT if often else READY
    for sub in group.members:
        for lease in sub.leases:
            for first, last in lease.open_seqs():
                found |= dict.fromkeys(range(first, last + 1), LEASED)
    return found


class Observer:
    """All changes of state that were seen, with their events."""

    def __init__(self) -> None:
        self.seen: set[Change] = set()
        self.is_restarting = False
        self.topics: dict[int, str] = {}
        self.expires_us: dict[int, int] = {}
        self.unwanted: set[int] = set()  # ready messages of the group that no pattern matched at the latest `check`
        self.states: dict[str, dict[int, State]] = defaultdict(dict)  # by group, of messages that were once ready

    def look(self, group: Group) -> dict[int, State]:
        """The states of the messages of a group now; messages that it has never had are left out."""
        store, found, known = group.shared.block_store, open_states(group), self.states[group.name]
        for seq in range(len(self.topics) + 1, group.horizon + 1):
            block = store.at(seq)
            assert isinstance(block, Block)
            self.topics[seq] = block.topic_names()[seq - block.base_seq]
            self.expires_us[seq] = block.expires_us
        states = {seq: DEAD if state is DEAD else SETTLED for seq, state in known.items()}
        unsettled = {seq for first, last in group.open for seq in range(first, last + 1)}
        for seq in sorted(unsettled | set(range(group.position(), group.horizon + 1))):
            if seq in known or group.wants(self.topics[seq]):  # a lease has seqs between its messages
                is_left = seq in unsettled or (group.wants(self.topics[seq]) and not group.has_settled(seq))
                states[seq] = found.get(seq, FIRST) if is_left else states.get(seq, SETTLED)
        for letter in group.dead:
            for seq in range(letter.first, letter.last + 1):
                if known.get(seq) is not SETTLED:  # a message that is gone has no dead letter
                    states[seq] = DEAD
        return states

    def check(self, group: Group) -> None:
        """Nothing has changed since the group was looked at last, but for new messages."""
        known, states = self.states[group.name], self.look(group)
        for seq, state in states.items():
            assert state is known.get(seq, FIRST), f"{group.name} {seq}: {known.get(seq)} -> {state} without an event"
        self.states[group.name] = states
        self.unwanted = {seq for seq, state in states.items() if state is READY and not group.wants(self.topics[seq])}

    def follow(self, group: Group, event_of: EventOf, named: Iterable[int] = ()) -> None:
        """Note what has become of the messages of a group, and of `named` ones also if it is the same."""
        before, after = self.states[group.name], self.look(group)
        for seq, state in after.items():
            old = before.get(seq)
            if old is not None and (old is not state or seq in named):
                self.seen.add((old, event_of(seq, old, state) or self.cause(group, seq, state), state))
        self.states[group.name] = after

    def cause(self, group: Group, seq: int, state: State) -> Event:
        """Why the state of a message was changed by a search for messages to deliver."""
        store, topic, expires_us = group.shared.block_store, self.topics[seq], self.expires_us[seq]
        if state is LEASED:
            return Event.DELIVER
        if 0 < expires_us <= group.shared.clock.wall_us(group.shared.clock.now):
            return Event.EXPIRE
        assert state is not DEAD, f"{group.name} {seq}: dead without a cause"
        block = store.at(seq)
        if not isinstance(block, Block):
            return Event.GAP
        if seq in self.unwanted or not group.wants(topic):
            return Event.SKIP
        shared = group.shared
        if seq < shared.removed.get(topic, 0):
            return Event.GAP
        if shared.superseded is not None and topic in shared.keyed and shared.superseded(block, seq - block.base_seq):
            return Event.SKIP
        assert not group.leases, f"{group.name} {seq}: {state} without a cause"
        return Event.DELIVER

    # The functions of the router that change states.

    def install(self, patch: pytest.MonkeyPatch) -> None:
        def wrap(owner: Any, name: str, events: Callable[..., tuple[EventOf, Iterable[int]]], at: int = 0) -> None:
            patch.setattr(owner, name, self._wrapped(getattr(owner, name), events, at))

        for name in ("deliver", "deliver_by_key", "advance"):
            wrap(dispatcher, name, always(None))
        wrap(Group, "due", unless_settled(Event.DUE))
        wrap(Group, "trimmed", always(Event.GAP))
        wrap(Group, "leave", always(None))
        wrap(Recounts, "_sort", always(None), at=1)
        wrap(Dispatcher, "seek", always(Event.SEEK), at=1)
        wrap(Dispatcher, "settle_up_to", always(Event.SETTLE), at=1)
        wrap(Dispatcher, "update", unless_settled(Event.UPDATE), at=1)
        wrap(verdicts, "settle", on_verdict)
        wrap(verdicts, "lapse", on_lapse)
        wrap(verdicts, "leave", on_leave)
        wrap(verdicts, "detach", taken_back)
        wrap(verdicts, "take_back_unseen", taken_back)

    def _wrapped(
        self, function: Callable[..., Any], events: Callable[..., tuple[EventOf, Iterable[int]]], at: int
    ) -> Callable[..., Any]:
        """The function, with a look at the group, which is its argument `at`, before and after."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            group: Group = args[at]
            if not group.durable or self.is_restarting:
                return function(*args, **kwargs)
            self.check(group)
            event_of, named = events(*args, **kwargs)
            result = function(*args, **kwargs)
            self.follow(group, event_of, [seq for seq in named if self.states[group.name].get(seq) is LEASED])
            return result

        return wrapper

    def restarted(self, groups: Iterable[Group]) -> None:
        """The hub came back: no lease is left, and a wait may be over."""
        for group in groups:
            self.follow(group, lambda _, old, __: Event.DUE if old is RETRYING else Event.RESTART)


def always(event: Event | None) -> Callable[..., tuple[EventOf, Iterable[int]]]:
    return lambda *_, **__: (lambda *_: event, ())


def lease_events(event: Event, named: set[int]) -> tuple[EventOf, Iterable[int]]:
    """Messages in `named` have met the event, other leased messages are taken back. What is settled without having been
    leased was passed over: it lies between the messages of a lease that has ended."""

    def event_of(seq: int, old: State, state: State) -> Event | None:
        return event if seq in named else Event.TAKE_BACK if old is LEASED else None

    return event_of, named


def on_verdict(group: Group, sub: Subscription, verdict: int, first: int, last: int, *_: Any) -> Any:
    spans = [seqs for lease in sub.leases for span in lease.open.within(first, last) for seqs in lease.seqs(*span)]
    return lease_events(Event[Verdict(verdict).name], {seq for a, b in spans for seq in range(a, b + 1)})


def on_lapse(group: Group, lease: Lease, *_: Any) -> Any:
    return lease_events(Event.LAPSE, {seq for a, b in lease.open_seqs() for seq in range(a, b + 1)})


def on_leave(group: Group, sub: Subscription, *_: Any, lost: bool) -> Any:
    held = {seq for lease in sub.leases for a, b in lease.open_seqs() for seq in range(a, b + 1)}
    return lease_events(Event.LOST if lost else Event.RELEASE, held)


def taken_back(*_: Any) -> Any:
    return lease_events(Event.TAKE_BACK, set())


def unless_settled(event: Event) -> Callable[..., tuple[EventOf, Iterable[int]]]:
    return lambda *_, **__: (lambda _, __, state: None if state in (SETTLED, DEAD) else event, ())
