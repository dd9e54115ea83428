"""The end of a subscription, or of the loop over it: messages that were not handed to the program go back to the group
at once, and messages that the program holds may still be settled.
"""

from typing import TYPE_CHECKING

from fabric_client.core.batch import Batch
from fabric_client.core.requests import Responder
from fabric_client.core.subscription import Subscription
from fabric_client.core.ticket import Ticket
from fabric_client.errors import Closed
from fabric_protocol.messages import Verdict

if TYPE_CHECKING:
    from fabric_client.core.session import Session


def retire(sub: Subscription) -> None:
    """Hand out nothing more. Messages that were not handed out go back, and so do messages that still arrive. The
    caller holds the client's lock."""
    sub.retired = True
    sub.stop()
    while (item := sub.take()) is not None:
        if isinstance(item, Batch):
            item.release()
    if sub.in_hand is not None:
        batch, indexes = sub.in_hand.batch, sub.in_hand.rest()
        sub.in_hand = None
        if sub.is_held(batch):
            for index in indexes:
                batch.give(Verdict.RELEASE, index, None)


def halt(session: "Session", sub: Subscription) -> None:
    """Retire a subscription; it is closed when the last message that the program holds is settled. Requests stay: each
    is answered, or fails when the subscription is closed."""
    if sub.closed or sub.retired or isinstance(sub, Responder) or session.subscriptions.get(sub.chan) is not sub:
        return
    retire(sub)
    session.flush(sub)
    if session.live and not sub.closed:
        session.send(sub.credit())


def drop(session: "Session", sub: Subscription) -> None:
    """Close a subscription that the program has left; its messages go back. Messages from fetch() may still be settled:
    such a subscription is closed when the last of them is settled."""
    if not sub.fetching:
        session.unsubscribe(sub, Ticket())
    elif not sub.closed and session.subscriptions.get(sub.chan) is sub:
        session.calls.fail_channel(sub.chan, Closed("this subscription is closed", "subscribe again"))
        halt(session, sub)
