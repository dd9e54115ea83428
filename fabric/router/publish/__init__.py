"""PUB: producers, sequence numbers and the blocks of a turn."""
