"""Commands on a journal: verify, backup, statistics."""
