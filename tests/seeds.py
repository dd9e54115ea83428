"""Random tests that can be run again: a new seed each time, printed, or the one that FABRIC_SEED names."""

import os
import random


def seeded(what: str) -> random.Random:
    """A generator whose seed pytest shows when the test fails."""
    seed = int(os.environ.get("FABRIC_SEED") or random.SystemRandom().getrandbits(32))
    print(f"{what}: run again with FABRIC_SEED={seed}")
    return random.Random(seed)
