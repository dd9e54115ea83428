"""Lets the tests of this room import their own `world`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
