"""What the hub knows of the messages that a consumer has begun.

If a consumer is lost, the hub counts a failure of what it had begun: of the oldest deliveries without a verdict, as
many as it works on at once. That is the truth as long as every verdict has arrived before the next message is begun,
and so the client waits for the hub in between. A wait is a round trip, which is nothing beside a slow job and too much
for fast ones. So waits are rationed: a burst has a few, and beyond these they may take a fiftieth of the time. When
they are used up the client tells the hub first that it is *unsure*; a loss then counts for nothing, and what was lost
comes again. What comes again for the second time is handled with all waits, so that a message that kills its consumers
is found.
"""

from typing import TYPE_CHECKING, Final

from fabric_client.core.ticket import Ticket
from fabric_protocol import messages as m

if TYPE_CHECKING:
    from fabric_client.core.batch import Batch
    from fabric_client.core.session import Session
    from fabric_client.core.subscription import Subscription

WAITS_MAX: Final = 32  # in a row
WAITS_TIME: Final = 50  # one wait for so many times its length
SURE_ATTEMPT: Final = 3  # from this attempt on every message is waited for
UNSURE: Final = 1_024  # messages that may be begun or done without the hub's knowledge, while unsure
REVIEW_S: Final = 0.01  # how often an unsure consumer is looked at: has it become slow?


class Begun:
    __slots__ = ("_known_rid", "_refilled_at", "_verdicts", "_wait_s", "_waits", "is_slow", "is_unsure", "reported")

    def __init__(self) -> None:
        self.is_unsure = False
        self.reported = False  # the latest that the hub was reported of it
        self._waits = float(WAITS_MAX)  # that are left
        self._wait_s = 0.0002  # how long they are, about
        self._refilled_at = 0.0
        self._known_rid = 0  # the hub has all ACKs up to this one
        self.is_slow = False  # no verdict came between the latest two looks
        self._verdicts = 0  # that had come by the latest look

    def restarted(self) -> None:
        """The hub knows nothing of this subscription any more."""
        self.is_unsure = self.reported = self.is_slow = False
        self._known_rid = 0

    def resumed(self) -> None:
        """What was said last may not have arrived."""
        self._known_rid = 0

    def must_wait(self, last_rid: int, attempt: int, now: float) -> bool:
        """Whether the hub must answer before a message is begun. All verdicts so far were sent, the latest without an
        answer with this ACK."""
        self._refill(now)
        if self.is_unsure:
            if attempt < SURE_ATTEMPT and self._waits < WAITS_MAX / 2:
                return False
            self.is_unsure = False  # from the next answer on
            return True
        if last_rid <= self._known_rid:
            return False
        if attempt < SURE_ATTEMPT and self._waits < 1:
            self.is_unsure = True  # which the hub must know beforehand
        return True

    def waited(self, last_rid: int, seconds: float) -> None:
        """The hub has answered; it had all ACKs up to that one by then."""
        self._known_rid = max(self._known_rid, last_rid)
        self._waits = max(self._waits - 1.0, 0.0)
        self._wait_s += (seconds - self._wait_s) / 8

    def review(self, verdicts: int, careful: bool) -> bool:
        """Whether an unsure consumer has become slow: no verdict since the last look, and it will ask before it begins
        another message. Then its verdicts have all been sent, and it is sure what it has begun."""
        quiet, self._verdicts = verdicts == self._verdicts, verdicts
        if quiet and self.is_slow and careful:
            self.is_unsure = self.is_slow = False
            return True
        self.is_slow = quiet
        return False

    def _refill(self, now: float) -> None:
        elapsed, self._refilled_at = now - self._refilled_at, now
        self._waits = min(self._waits + elapsed / (WAITS_TIME * max(self._wait_s, 1e-5)), WAITS_MAX)


class Question:
    """A PING whose answer a consumer waits for; the hub has all ACKs before it by then."""

    __slots__ = ("_asked_at", "_rid", "_sub", "ticket")

    def __init__(self, session: "Session", sub: "Subscription", now: float) -> None:
        self.ticket = Ticket()
        self._sub = sub
        self._asked_at = now
        self._rid = sub.acks.last_rid
        session.ask(m.Ping, self.ticket)

    def answered(self, now: float) -> None:
        self._sub.begun.waited(self._rid, now - self._asked_at)


def ask_before(session: "Session", sub: "Subscription", batch: "Batch", now: float) -> Question | None:
    """Before a message of the batch is begun: send all verdicts. Returns what to wait for; None when it may begin.
    Without a connection it waits, too: the hub may have given the message to others, and says so on a resume."""
    if not sub.settles:
        sub.careful = False
        return None
    if session.live:
        session.flush(sub, now)
        if not sub.begun.must_wait(sub.acks.last_rid, batch.attempt, now):
            _relax(sub, batch, now)
            return None
        session.flush(sub, now)  # it may be unsure now, or sure again
    return Question(session, sub, now)


def _relax(sub: "Subscription", batch: "Batch", now: float) -> None:
    """Messages of the batch may be begun without a question, if the hub knows that it cannot tell which were."""
    if sub.begun.is_unsure:
        sub.careful = False
        sub.review_at = min(sub.review_at, now + REVIEW_S)
        if (
            sub.waiting_keys or batch.verdicts.taken_back or batch.attempt >= SURE_ATTEMPT
        ):  # seen now, or `careful` is set after this
            sub.careful = True


def review(session: "Session", sub: "Subscription", now: float) -> None:
    """See whether an unsure consumer has become slow, and is sure again."""
    session.flush(sub, now)
    if sub.begun.review(sub.deliveries.window.settled, sub.careful):
        session.flush(sub, now)
        sub.review_at = float("inf")
    else:
        sub.careful = sub.careful or sub.begun.is_slow
        sub.review_at = now + REVIEW_S
