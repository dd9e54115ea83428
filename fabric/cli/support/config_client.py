"""The hub that a client would connect to if it were started here, and where its address comes from."""

from fabric_protocol.errors import FabricError


def client_address() -> dict[str, str]:
    """`url` and `origin`; if a client could not connect, `url` is empty and `origin` says why. Keys are not among it."""
    from fabric_client.destination import destination  # late: the hub does not need the client

    try:
        found = destination()
    except FabricError as error:
        return {"url": "", "origin": str(error)}
    return {"url": found.url, "origin": found.origin or "default"}
