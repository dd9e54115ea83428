"""The life of one message in one group: its states, the events that change them, and every transition, as data.

A group has the state of a message in several structures, so no single field holds it:

    ready     above the cursor of its lane; or in `Group.pending.ready`, or behind the lock of its key
    leased    an open ordinal of a `Lease`
    retrying  in `Group.pending.waiting`, or behind the lock of its key with a due time
    suspect   in `Group.pending.suspects`, or behind the lock of its key with as many failures as a suspect has
    settled   below the cursor of its lane, and not in `Group.open`
    dead      settled, after it was in `Group.dead`

docs/lifecycle.py draws the picture and the table in the documents from here. tests/router/test_lifecycle.py compares
the table with what groups do.
"""

from enum import StrEnum
from typing import Final, NamedTuple


class State(StrEnum):
    READY = "ready"
    RETRYING = "retrying"
    SUSPECT = "suspect"
    LEASED = "leased"
    SETTLED = "settled"
    DEAD = "dead"


class Event(StrEnum):
    DELIVER = "deliver"
    ACK = "ack"
    RETRY = "retry"
    RELEASE = "release"
    REJECT = "reject"
    TOUCH = "touch"
    LAPSE = "lapse"
    LOST = "lost"
    TAKE_BACK = "take back"
    DUE = "due"
    EXPIRE = "expire"
    SKIP = "skip"
    GAP = "gap"
    UPDATE = "update"
    SEEK = "seek"
    SETTLE = "settle"
    RESTART = "restart"


class Transition(NamedTuple):
    to: tuple[State, ...]  # the states that are possible after the event
    meaning: str  # one sentence


READY, RETRYING, SUSPECT, LEASED, SETTLED, DEAD = State

FIRST: Final = READY  # of a message that is stored, and of a message at which a new group or a new pattern begins

STATES: Final = {
    READY: "The message may be delivered to a consumer of the group now, if the order of the group allows it.",
    RETRYING: "The message has failed, and its next delivery is not due yet.",
    SUSPECT: "The message has failed twice, or as often as the group allows, and may be delivered now, but alone.",
    LEASED: "One consumer of the group holds the message and has given no verdict on it.",
    SETTLED: "The group will not deliver the message any more.",
    DEAD: "The group has given the message up: it is settled, and moved to the dead letters.",
}

_FAILED: Final = (READY, RETRYING, SUSPECT, DEAD)  # without a wait, with a wait, without a wait and often, for good
_BACK: Final = (READY, SUSPECT)  # as before the delivery
_MOVED: Final = (READY, SETTLED)  # at or after the new position, before it
_UP_TO: Final = "An administrator settles all messages up to a seq."

TRANSITIONS: Final[dict[tuple[State, Event], Transition]] = {
    (READY, Event.DELIVER): Transition(
        (LEASED, SETTLED), "The hub sends the message to a consumer; with `ack: auto` the message is settled by that."
    ),
    (READY, Event.EXPIRE): Transition(
        (SETTLED, DEAD), "The time to live of the message is over; with `on_expire: dead` the message is dead."
    ),
    (READY, Event.SKIP): Transition(
        (SETTLED,), "A newer message of the key has replaced the message, or no pattern of the group matches any more."
    ),
    (READY, Event.GAP): Transition((SETTLED,), "Retention or damage has removed the message from the journal."),
    (READY, Event.UPDATE): Transition(
        (SUSPECT,), "A change of `attempts_max` makes a message that has failed before suspect."
    ),
    (READY, Event.SEEK): Transition((SETTLED,), "The group is moved past the message."),
    (READY, Event.SETTLE): Transition((SETTLED,), _UP_TO),
    (RETRYING, Event.DUE): Transition(_BACK, "The wait after the failure is over."),
    (RETRYING, Event.EXPIRE): Transition(
        (SETTLED, DEAD), "The time to live of the message is over; with `on_expire: dead` the message is dead."
    ),
    (RETRYING, Event.GAP): Transition((SETTLED,), "Retention has removed the message from the journal."),
    (RETRYING, Event.SEEK): Transition(_MOVED, "The group is moved: its failures are forgotten."),
    (RETRYING, Event.SETTLE): Transition((SETTLED,), _UP_TO),
    (SUSPECT, Event.DELIVER): Transition((LEASED,), "The hub sends the message alone, to a consumer that holds none."),
    (SUSPECT, Event.EXPIRE): Transition(
        (SETTLED, DEAD), "The time to live of the message is over; with `on_expire: dead` the message is dead."
    ),
    (SUSPECT, Event.SKIP): Transition(
        (SETTLED,), "A newer message of the key has replaced the message, or no pattern of the group matches any more."
    ),
    (SUSPECT, Event.GAP): Transition((SETTLED,), "Retention or damage has removed the message from the journal."),
    (SUSPECT, Event.UPDATE): Transition((READY,), "A change of `attempts_max` allows the message more failures."),
    (SUSPECT, Event.SEEK): Transition(_MOVED, "The group is moved: its failures are forgotten."),
    (SUSPECT, Event.SETTLE): Transition((SETTLED,), _UP_TO),
    (LEASED, Event.ACK): Transition((SETTLED,), "The consumer has done the work."),
    (LEASED, Event.RETRY): Transition(
        _FAILED, "The consumer has failed: the message comes again, or is dead if its failures are spent."
    ),
    (LEASED, Event.RELEASE): Transition(_BACK, "The consumer gives the message back, or leaves; nothing is counted."),
    (LEASED, Event.REJECT): Transition((DEAD,), "The consumer says that the message will never work."),
    (LEASED, Event.TOUCH): Transition((LEASED,), "The consumer is still at work: the lease is extended."),
    (LEASED, Event.LAPSE): Transition(
        _FAILED, "The lease ends without a verdict: a failure if the consumer can have begun."
    ),
    (LEASED, Event.LOST): Transition(_FAILED, "The consumer is lost: a failure if the consumer can have begun."),
    (LEASED, Event.TAKE_BACK): Transition(
        _BACK, "The hub takes the message back to keep the order, or because the connection was closed."
    ),
    (LEASED, Event.GAP): Transition((SETTLED,), "Retention has removed the message; the consumer may finish."),
    (LEASED, Event.SEEK): Transition(_MOVED, "The group is moved: all leases end, and failures are forgotten."),
    (LEASED, Event.SETTLE): Transition(
        (SETTLED,),
        "An administrator settles all messages up to a seq: a verdict of the consumer is stale from then on.",
    ),
    (LEASED, Event.RESTART): Transition(_BACK, "The hub starts again: no lease outlives it, and nothing is counted."),
    (SETTLED, Event.UPDATE): Transition(
        (READY,), "A new pattern matches a skipped message that the group has not passed yet."
    ),
    (SETTLED, Event.SEEK): Transition((READY,), "The group is moved back to the message or before it."),
    (DEAD, Event.SEEK): Transition((READY,), "The group is moved back; the dead letter stays."),
}
