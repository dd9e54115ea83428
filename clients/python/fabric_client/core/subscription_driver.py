"""What a subscription needs of its driver: to send verdicts and transactions, and to wait for their answers."""

from typing import TYPE_CHECKING, Any, Protocol

from fabric_client.core.verdict_exceptions import Decision

if TYPE_CHECKING:
    from fabric_client.core.batch import Batch
    from fabric_client.core.subscription import Subscription
    from fabric_client.core.transaction import Transaction


class SubscriptionDriver(Protocol):
    """`commit` and `settle` block in the blocking driver, and are awaited in the asyncio driver."""

    def verdicts(self, sub: "Subscription", urgent: bool) -> None:
        """Send verdicts soon, or at once if urgent. Called from any thread."""

    def commit(self, txn: "Transaction") -> Any:
        """Send a transaction, and wait for its outcome."""

    def settle(self, batch: "Batch", index: int | None, decision: Decision, timeout: float | None) -> Any:
        """Send a verdict, and wait for its answer."""
