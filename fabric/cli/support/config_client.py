"""The hub that a client would connect to if it were started here: its address, its keys, and where they come from.

The client decides, in its module `destination`; here its choice is only told, without secret keys and one-time codes.
"""

import os
from typing import TYPE_CHECKING, Any

from fabric_protocol.errors import FabricError

if TYPE_CHECKING:
    from pathlib import Path

    from fabric_client.destination import Destination


def client_side() -> dict[str, Any]:
    """The choice as fields. `credentials` is the file of the key, `key` the public key, and `unused` what is set and
    does not count. If a client could not connect, `url` is empty, and `error` and `hint` say why."""
    from fabric_client.destination import destination  # late: the hub does not need the client

    try:
        found = destination()
        return _chosen(found) | {"unused": _unused(found.path), "error": None, "hint": None}
    except FabricError as error:
        nothing = dict.fromkeys(("context", "credentials", "principal", "key"), "")
        failed = {"unused": [], "error": str(error), "hint": error.hint}
        return {"url": "", "origin": "", "encrypted": False} | nothing | failed


def _chosen(found: "Destination") -> dict[str, Any]:
    from fabric_client import contexts
    from fabric_client.credentials import Credentials

    is_context = found.path is not None and found.path.parent == contexts.home() / "contexts"
    return {
        "url": ",".join(url.partition("#")[0] for url in found.urls),  # a link that is not whole may have a code there
        "origin": found.origin or "default",
        "context": found.path.stem if found.path is not None and is_context else "",
        "credentials": str(found.path or ""),
        "principal": Credentials.load(found.path).principal if found.path is not None else "",
        "key": found.keys.public if found.keys is not None else "",
        "encrypted": found.keys is not None,
    }


def _unused(path: "Path | None") -> list[str]:
    """Contexts that do not count, because something above them is set."""
    from fabric_client import contexts

    stronger = next((name for name in ("FABRIC_CREDENTIALS", "FABRIC_URL") if os.environ.get(name)), "")
    named = os.environ.get("FABRIC_CONTEXT", "")
    current = contexts.current()
    unused = []
    if named and stronger and not _is_file_of(named, path):
        unused.append(f"FABRIC_CONTEXT ({named}) has no effect: {stronger} is set")
    if current and current != named and (stronger or named) and not _is_file_of(current, path):
        unused.append(f"the current context ({current}) has no effect: {stronger or 'FABRIC_CONTEXT'} is set")
    return unused


def _is_file_of(context: str, path: "Path | None") -> bool:
    from fabric_client import contexts

    return contexts.NAME.fullmatch(context) is not None and contexts.path_of(context) == path


def told(client: dict[str, Any]) -> list[str]:
    """The same as lines for people."""
    if client["error"] is not None:
        return [f"a client that is started here cannot connect: {client['error']}", f"hint: {client['hint']}"]
    lines = [f"a client that is started here connects to {client['url']} ({client['origin']})"]
    if client["encrypted"]:
        principal = f" as {client['principal']}" if client["principal"] else ""
        lines.append(f"encrypted{principal}, with the key of {client['credentials'] or 'the environment'}")
    else:
        lines.append("without encryption and without a key")
    return [*lines, *client["unused"]]
