"""Publishes that were not all confirmed in time: stored, sent without a confirmation, or withdrawn.

A message that was never sent is removed from the buffer, so that it is not stored after its caller got an error. A
message that was sent cannot be withdrawn: the hub may have stored it, and the error says so.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from fabric_client.core.ticket import Ticket
from fabric_client.errors import ConnectionLost, Timeout, Unconfirmed, VerdictsUnconfirmed
from fabric_protocol.errors import FabricError

if TYPE_CHECKING:
    from fabric_client.core.publisher import Publisher

WITHDRAWN_HINT: Final = "it is safe to publish again: what was withdrawn is not sent any more"
VERDICTS_HINT: Final = "flush again: it waits for the same verdicts; `.verdicts` names their messages"
UNSENT_HINT: Final = "what is not sent leaves when the hub is there again, unless the client is closed before"


class Pending(NamedTuple):
    """A publish whose receipt a caller waits for."""

    ticket: Ticket
    count: int = 1  # type: ignore[assignment]  # messages; hides tuple.count


class Tally(NamedTuple):
    """Counts of messages."""

    stored: int
    unconfirmed: int
    withdrawn: int

    def __str__(self) -> str:
        parts = (
            (self.stored, "stored"),
            (self.unconfirmed, "sent and not confirmed"),
            (self.withdrawn, "never sent, and withdrawn"),
        )
        return ", ".join(f"{messages(count)} {what}" for count, what in parts if count)


def messages(count: int) -> str:
    return _counted(count, "message")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


def all_done(pending: Sequence[Pending]) -> Callable[[], bool]:
    """A function that tells whether all have their answers; it checks each answer once."""
    waiting = iter(pending)
    first = next(waiting, None)

    def done() -> bool:
        nonlocal first
        while first is not None and first.ticket.done:
            first = next(waiting, None)
        return first is None

    return done


def give_up(publisher: "Publisher", pending: Sequence[Pending], why: str) -> Tally:
    """Withdraw what was never sent, and count the rest. The ticket of a withdrawn publish gets the reason."""
    stored = unconfirmed = withdrawn = 0
    for ticket, count in pending:
        if ticket.done:
            stored += 0 if ticket.error is not None else count
        elif publisher.withdraw(ticket):
            withdrawn += count
            ticket.fail(FabricError(f"withdrawn before it was sent: {why}"))
        else:
            unconfirmed += count
    return Tally(stored, unconfirmed, withdrawn)


def error_of(tally: Tally, why: str, is_live: bool) -> ConnectionLost | Timeout:
    """The error for a caller whose publishes were not all confirmed."""
    text = f"{tally}: {why}"
    if tally.unconfirmed:
        error: ConnectionLost | Timeout = Unconfirmed(text)
    else:
        error = Timeout(text, WITHDRAWN_HINT) if is_live else ConnectionLost(text, WITHDRAWN_HINT)
    error.stored, error.unconfirmed, error.withdrawn = tally
    return error


def unflushed(
    publisher: "Publisher", why: str, is_live: bool, verdicts: VerdictsUnconfirmed | None
) -> ConnectionLost | Timeout:
    """The error of a flush. Nothing is withdrawn, because flush may be called again."""
    sent, unsent = publisher.sent, publisher.unconfirmed - publisher.sent
    parts = (
        (sent, f"{messages(sent)} sent and not confirmed"),
        (unsent, f"{messages(unsent)} not sent"),
        (verdicts, f"{_counted(verdicts.count if verdicts else 0, 'verdict')} not confirmed"),
    )
    text = f"{', '.join(what for count, what in parts if count) or 'verdicts not confirmed'}: {why}"
    if sent:
        error: ConnectionLost | Timeout = Unconfirmed(text)
    else:
        error = (Timeout if is_live else ConnectionLost)(text, UNSENT_HINT if unsent else VERDICTS_HINT)
    error.unconfirmed = sent
    error.verdicts = verdicts.messages if verdicts else ()
    return error
