"""The hub that a client would connect to if it were started here, and where its address comes from."""

import os


def client_address() -> dict[str, str]:
    """`url` and `origin`. The client itself decides; this tells the reason."""
    from fabric_client.options import default_url  # late: the hub does not need the client

    return {"url": default_url(), "origin": "FABRIC_URL" if os.environ.get("FABRIC_URL") else "default"}
