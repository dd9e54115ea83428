"""For all tests: Python handles Ctrl-C, no log goes to a handler of an earlier test, and no context of the user that runs
them counts."""

import logging
import os
import signal
from collections.abc import Iterator

import pytest

# A shell lets programs that it starts with `&` ignore SIGINT, and so would all processes that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["XDG_CONFIG_HOME"] = "/nonexistent"  # also for the processes that tests start
for _name in ("FABRIC_HOME", "FABRIC_CONTEXT", "FABRIC_CREDENTIALS", "FABRIC_SECRET_KEY", "FABRIC_KEY"):
    os.environ.pop(_name, None)


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    logger = logging.getLogger("fabric")
    handlers, level, propagates = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagates
