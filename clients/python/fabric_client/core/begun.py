"""What the hub knows of the messages that a consumer has begun.

If a consumer is lost, the hub counts a failed attempt for the messages that the consumer had begun: the oldest
deliveries without a verdict, as many as its concurrency. This is correct as long as every verdict has arrived before
the next message is begun, so the client waits for the hub in between. A wait is a round trip: little beside a slow
handler, too much for fast ones. So waits are limited: a burst has WAITS_MAX, and after it waits may take a fiftieth of
the time. Before a message is begun without a wait, the client tells the hub that it is *unsure*; a lost consumer then
counts no failed attempt, and its messages are delivered again. From SURE_ATTEMPT on every message is waited for, so
that a message that kills its consumers is found.
"""

from typing import TYPE_CHECKING, Final

from fabric_client.core.ticket import Ticket
from fabric_protocol import messages as m

if TYPE_CHECKING:
    from fabric_client.core.batch import Batch
    from fabric_client.core.session import Session
    from fabric_client.core.subscription import Subscription

WAITS_MAX: Final = 32  # in a burst
WAITS_TIME: Final = 50  # after a burst, one wait in 50 times its length
SURE_ATTEMPT: Final = 3  # from this attempt on every message is waited for
UNSURE: Final = 1_024  # messages that an unsure consumer may have begun or finished without the hub's knowledge
REVIEW_S: Final = 0.01  # how often the client checks whether an unsure consumer has become slow


class Begun:
    """Whether the hub knows which messages the consumer of one subscription has begun."""

    __slots__ = ("_known_rid", "_refilled_at", "_verdicts", "_wait_s", "_waits", "is_slow", "is_unsure", "reported")

    def __init__(self) -> None:
        self.is_unsure = False
        self.reported = False  # the `is_unsure` that the hub was last told
        self._waits = float(WAITS_MAX)  # waits that are left
        self._wait_s = 0.0002  # average length of a wait
        self._refilled_at = 0.0
        self._known_rid = 0  # the hub has all ACKs up to this one
        self.is_slow = False  # no verdict between the last two reviews
        self._verdicts = 0  # at the last review

    def restarted(self) -> None:
        """The hub has forgotten this subscription."""
        self.is_unsure = self.reported = self.is_slow = False
        self._known_rid = 0

    def resumed(self) -> None:
        """The last frames before the connection was lost may not have arrived."""
        self._known_rid = 0

    def must_wait(self, last_rid: int, attempt: int, now: float) -> bool:
        """Whether the hub must answer before a message is begun. All verdicts so far were sent; `last_rid` is the
        latest ACK without an answer."""
        self._refill(now)
        if self.is_unsure:
            if attempt < SURE_ATTEMPT and self._waits < WAITS_MAX / 2:
                return False
            self.is_unsure = False  # from the next answer on
            return True
        if last_rid <= self._known_rid:
            return False
        if attempt < SURE_ATTEMPT and self._waits < 1:
            self.is_unsure = True  # the hub must know before the message is begun
        return True

    def waited(self, last_rid: int, seconds: float) -> None:
        """The hub has answered a question, and so it has all ACKs up to `last_rid`."""
        self._known_rid = max(self._known_rid, last_rid)
        self._waits = max(self._waits - 1.0, 0.0)
        self._wait_s += (seconds - self._wait_s) / 8

    def review(self, verdicts: int, careful: bool) -> bool:
        """Whether an unsure consumer is sure again: no verdict in the last two reviews, and it asks before it begins
        another message. Then all of its verdicts were sent."""
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
    """A PING that a consumer waits for; its answer shows that the hub has all ACKs before it."""

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
    """Send all verdicts before a message of the batch is begun. Returns what to wait for; None if the message may
    begin. Without a connection the consumer waits too: the hub may have given the message to another consumer."""
    if not sub.settles:
        sub.careful = False
        return None
    if session.live:
        session.flush(sub, now)
        if not sub.begun.must_wait(sub.acks.last_rid, batch.attempt, now):
            _relax(sub, batch, now)
            return None
        session.flush(sub, now)  # sends a CREDIT if `is_unsure` has changed
    return Question(session, sub, now)


def _relax(sub: "Subscription", batch: "Batch", now: float) -> None:
    """Let messages of the batch begin without a question, if the hub knows that the consumer is unsure."""
    if sub.begun.is_unsure:
        sub.careful = False
        sub.review_at = min(sub.review_at, now + REVIEW_S)
        if (
            sub.waiting_keys or batch.verdicts.taken_back or batch.attempt >= SURE_ATTEMPT
        ):  # seen now, or `careful` is set after this
            sub.careful = True


def review(session: "Session", sub: "Subscription", now: float) -> None:
    """Check whether an unsure consumer is sure again."""
    session.flush(sub, now)
    if sub.begun.review(sub.deliveries.window.settled, sub.careful):
        session.flush(sub, now)
        sub.review_at = float("inf")
    else:
        sub.careful = sub.careful or sub.begun.is_slow
        sub.review_at = now + REVIEW_S
