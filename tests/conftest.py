"""For all tests: Ctrl-C is a signal that Python hears, and no test's log goes where an earlier test has sent it."""

import logging
import signal
from collections.abc import Iterator

import pytest

# A shell lets programs that it starts with `&` ignore SIGINT, and so would all processes that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    logger = logging.getLogger("fabric")
    handlers, level, propagates = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagates
