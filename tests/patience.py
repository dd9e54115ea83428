"""How long a test waits for what must happen: long enough for a machine whose cores are busy with other work.

A test that passes never waits this long. It is a bound for tests that fail, and no measure of speed.
"""

from typing import Final

PATIENCE_S: Final = 240.0
