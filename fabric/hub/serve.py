"""Runs a hub as a process of its own."""

import gc
import logging
import os
import signal
from types import FrameType
from typing import Final

from fabric.hub.hub import Hub
from fabric.hub.log import event
from fabric.hub.notify import of_environment
from fabric_protocol.errors import FabricError

EXIT_STORAGE: Final = 70
GC_OBJECTS: Final = 50_000  # new objects between two searches for cycles


def serve(hub: Hub) -> int:
    """Run a hub until a signal drains it. If the journal fails, the process ends with exit code 70."""
    gc.freeze()  # objects made so far are never garbage; blocks, sessions and groups have few cycles to search for
    gc.set_threshold(GC_OBJECTS)
    hub.notifier = of_environment(os.environ)

    def stop(number: int, frame: FrameType | None) -> None:
        hub.request_stop()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup: the terminal may be closed
            signal.signal(number, stop)
    try:
        hub.run()
    except FabricError as error:
        event(logging.CRITICAL, "hub failed", error=str(error), hint=error.hint)
        os._exit(EXIT_STORAGE)
    return 0
