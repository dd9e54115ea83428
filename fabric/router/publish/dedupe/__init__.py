"""The index of idempotency keys."""
