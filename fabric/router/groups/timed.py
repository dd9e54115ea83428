"""What the timers of the dispatcher wait for: leases that lapse, groups with due messages, and ends of fetches."""

from fabric.router.groups.group import Group
from fabric.router.groups.lease import Lease
from fabric.router.groups.subscription import Subscription
from fabric.router.timers import NEVER

Timed = Lease | Group | Subscription


def is_pending(what: Timed) -> bool:
    """Whether a timer is still needed."""
    if isinstance(what, Lease):
        return bool(what.open)
    return what.next_due() < NEVER if isinstance(what, Group) else what.fetch is not None
