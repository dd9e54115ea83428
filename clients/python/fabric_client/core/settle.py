"""A verdict whose answer a caller waits for: `message.settle()` and `batch.settle()`."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fabric_client.core.acks import Watch, too_late
from fabric_client.core.batch import Batch
from fabric_client.core.ticket import Ticket
from fabric_client.core.verdict_exceptions import Decision
from fabric_client.errors import Closed
from fabric_protocol.errors import FabricError
from fabric_protocol.messages import Verdict

if TYPE_CHECKING:
    from fabric_client.core.subscription import Subscription


def settle(
    batch: Batch, index: int | None, decision: Decision, flush: "Callable[[Subscription], None]", ticket: Ticket
) -> None:
    """Give a verdict on one message, or with index None on every message without one, and send it at once. The ticket
    gets the answer. The caller holds the client's lock."""
    sub = batch.subscription
    if not sub.settles:
        ticket.fail(FabricError("this message takes no verdict", "consume with a group, and with ack='explicit'"))
        return
    if sub.closed:
        ticket.fail(Closed("this subscription is closed; the message went back to its group", "settle messages before"))
        return
    given = range(batch.count) if index is None else (index,)
    late = [batch.seq_of(place) for place in given if place in batch.verdicts.taken_back]
    if batch.generation != sub.generation:
        late = [batch.seq_of(place) for place in given]
    if late and (index is not None or len(late) == batch.count):
        ticket.fail(too_late(late))
        return
    places = [place for place in batch.verdicts.open_indexes() if index is None or place == index]
    verdict, arg = decision
    watch = Watch(batch, places, ticket, is_touch=verdict is Verdict.TOUCH)
    watch.stale += late
    sub.acks.watch(watch)
    if verdict is Verdict.TOUCH:
        for place in places:
            sub.touch(batch, place, place, arg if isinstance(arg, int) else None)
        flush(sub)
        return
    for place in places:
        if verdict is Verdict.ACK:
            batch.verdicts.acked.append(place)
        else:
            batch.note(verdict, place, arg)
    sub.noted(batch, urgent=False)
    flush(sub)
