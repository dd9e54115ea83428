"""Which hub a command talks to: what was typed goes first, then variables, then the current context.

The client has the rule for variables, contexts and the default. Here are only the options of a command, each of which
may come from a variable of its own, such as FABRIC_PUB_URL.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from fabric.cli import EXIT_NO_HUB
from fabric.cli.support.tables import Failed, usage

if TYPE_CHECKING:
    from fabric_client.credentials import Credentials
    from fabric_client.destination import Destination

DATA: Final = Path("fabric-data")  # where 'fabric hub' has its journal
START: Final = "start one with 'fabric hub --bind tcp://0.0.0.0:7171', in that folder or with its --data"
VARIABLES: Final = {"url": "FABRIC_URL", "context_name": "FABRIC_CONTEXT", "credentials": "FABRIC_CREDENTIALS"}


def chosen(context: click.Context) -> "Destination":
    """The destination by the options of a command; also of one that is being typed."""
    given = {name: context.params.get(name) for name in VARIABLES}
    typed = {name: value for name, value in given.items() if value is not None and is_typed(context, name)}
    if "context_name" in typed and "credentials" in typed:
        usage("give --context or --credentials, not both: each of them has a key")
    from fabric_client.destination import destination  # late: its import takes long

    if typed:
        return _of_options(*(typed.get(name) for name in VARIABLES))
    from_variables = {VARIABLES[name]: str(value or "") for name, value in given.items()}
    found = destination(environ={**os.environ, **from_variables})
    origin = found.origin
    for name in VARIABLES:
        origin = origin.replace(VARIABLES[name], _variable(context, name))
    return found._replace(origin=origin)


def _variable(context: click.Context, parameter: str) -> str:
    """The variable that an option was read from: the one of this command, or the one of all commands."""
    for option in context.command.params:
        if option.name == parameter and isinstance(option.envvar, list):
            return next((name for name in option.envvar if os.environ.get(name)), VARIABLES[parameter])
    return VARIABLES[parameter]


def _of_options(url: Any, context_name: Any, credentials: Any) -> "Destination":
    """The destination by options that were typed. An address replaces that of a context or of credentials."""
    from fabric_client import contexts
    from fabric_client.destination import destination

    if context_name is None:
        return destination(url, credentials)
    contexts.load(context_name)  # raises if there is none, and says which there are
    return destination(url, contexts.path_of(context_name))._replace(origin=f"the context {context_name}")


def of_owner(context: click.Context) -> "Destination":
    """The destination by the options, or the socket in the data folder, which only the owner of the folder can use. An
    address that was chosen goes before a socket that was found."""
    from fabric_client.destination import Destination

    data: Path | None = context.params.get("data")
    is_chosen = any(context.params.get(name) for name in VARIABLES)
    if data is not None and is_typed(context, "data"):
        if any(is_typed(context, name) for name in VARIABLES):
            usage("give --data or an address (--url, --context, --credentials), not both")
        if not socket_of(data).is_socket():
            raise Failed(f"no hub with keys runs over {data}: there is no {socket_of(data)}", START, EXIT_NO_HUB)
    elif is_chosen or not socket_of(data or DATA).is_socket():
        return chosen(context)
    folder = data or DATA
    return Destination((f"ipc://{_short(socket_of(folder))}",), None, f"the data folder {folder}")


def socket_of(folder: Path) -> Path:
    """The address of a hub for the owner of its data folder."""
    return folder / "hub.sock"


def _short(path: Path) -> str:
    """The path, absolute or relative: the kernel takes about 100 bytes of the address of a socket."""
    return min(str(path), os.path.relpath(path), key=len)


def credentials_of(to: "Destination") -> "Credentials | Path | None":
    """What `connect` needs beside the address; None for a connection without encryption. A file is read again by the
    client when its key was rotated."""
    from fabric_client.credentials import Credentials

    if to.keys is None:
        return None
    return to.path or Credentials(to.url, *to.keys)


def is_typed(context: click.Context, parameter: str) -> bool:
    """Whether an option is from the command line."""
    return context.get_parameter_source(parameter) is ParameterSource.COMMANDLINE
