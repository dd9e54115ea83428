"""A hub as a process of its own."""

import gc
import logging
import os
import signal
from typing import Final

from fabric.hub.hub import Hub
from fabric.hub.log import event
from fabric_protocol.errors import FabricError

EXIT_STORAGE: Final = 70
GC_OBJECTS: Final = 50_000  # new objects between two searches for garbage cycles


def serve(hub: Hub) -> int:
    """Run a hub as a process of its own: signals drain it, a failed journal ends it with exit code 70."""
    gc.freeze()  # what is here now stays; and blocks, sessions and groups hold no cycles worth a frequent search
    gc.set_threshold(GC_OBJECTS)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: hub.request_stop())
    try:
        hub.run()
    except FabricError as error:
        event(logging.CRITICAL, "hub failed", error=str(error), hint=error.hint)
        os._exit(EXIT_STORAGE)
    return 0
