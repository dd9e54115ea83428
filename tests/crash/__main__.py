"""`python -m tests.crash --minutes 10`: kill hub and clients for a while; exit code 1 if a promise was broken."""

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.crash.run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--keep", type=Path, help="a new folder for journal and logs, kept afterwards")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="fabric-crash-") as scratch:
        outcome = run(options.keep or Path(scratch) / "run", options.minutes * 60, options.seed)
    print(outcome)
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
