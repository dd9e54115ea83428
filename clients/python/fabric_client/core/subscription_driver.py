"""What a subscription needs of its client: a way to send something and to wait for the answer."""

from typing import TYPE_CHECKING, Any, Protocol

from fabric_client.core.verdict_exceptions import Decision

if TYPE_CHECKING:
    from fabric_client.core.batch import Batch
    from fabric_client.core.transaction import Transaction


class SubscriptionDriver(Protocol):
    """What sends and waits in its own manner, blocking or awaiting."""

    def commit(self, txn: "Transaction") -> Any:
        """Send a transaction, and wait for its outcome."""

    def settle(self, batch: "Batch", index: int | None, decision: Decision, timeout: float | None) -> Any:
        """Send a verdict, and wait for its answer."""
