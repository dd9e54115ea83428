"""Groups: subscriptions, leases, delivery, verdicts and redelivery."""
