"""For all tests: Python handles Ctrl-C, no log goes to a handler of an earlier test, contexts of the user do not count,
and no random test fails because the machine is busy."""

import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# A shell lets programs that it starts with `&` ignore SIGINT, and so would all processes that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["XDG_CONFIG_HOME"] = "/nonexistent"  # also for the processes that tests start
for _name in ("FABRIC_HOME", "FABRIC_CONTEXT", "FABRIC_CREDENTIALS", "FABRIC_SECRET_KEY", "FABRIC_KEY"):
    os.environ.pop(_name, None)


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("fabric", "fabric_client")]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagates) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagates
