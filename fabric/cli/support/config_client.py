"""The hub that a client would connect to if it were started here, and where its address comes from.

The client decides: its module `destination` has the order of arguments, variables, contexts and the default. An older
client has no such module and reads FABRIC_URL alone.
"""

import importlib
import os

from fabric_protocol.errors import FabricError


def client_address() -> dict[str, str]:
    """`url` and `origin`; if a client could not connect, `url` is empty and `origin` says why."""
    try:
        found = importlib.import_module("fabric_client.destination").destination()
    except ModuleNotFoundError:
        from fabric_client.options import default_url  # late: the hub does not need the client

        return {"url": default_url(), "origin": "FABRIC_URL" if os.environ.get("FABRIC_URL") else "default"}
    except FabricError as error:
        return {"url": "", "origin": str(error)}
    return {"url": found.url, "origin": found.origin or "default"}
