"""`fabric ctx …`: contexts of this user, which are saved addresses of hubs with their keys. One of them is current.

A context is a credentials file in the folder of the configuration: see `fabric_client.contexts`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fabric.cli.support import completion
from fabric.cli.support.noun import Noun
from fabric.cli.support.tables import Column, confirm, output_options, say, show_fields, show_rows, usage, yes_option
from fabric.cli.support.values import Name

if TYPE_CHECKING:
    from fabric_client.credentials import Credentials

COLUMNS: Final = (
    Column("", "current", lambda is_current: "*" if is_current else " ", rank=0),
    Column("CONTEXT", "context", folds=True, rank=0),
    Column("URL", "url", folds=True, rank=1),
    Column("PRINCIPAL", "principal", rank=1),
    Column("KEY", "encrypted", lambda is_encrypted: "yes" if is_encrypted else "no", rank=2),
    Column("ERROR", "error", folds=True, usual=None, rank=1),
)
_FIELDS: Final = (
    Column("context", "context"),
    Column("current", "current"),
    Column("hub", "hub"),
    Column("url", "url"),
    Column("principal", "principal"),
    Column("key", "key"),
    Column("hub's key", "hub_key"),
    Column("file", "file"),
)


@click.group("ctx", cls=Noun)
def ctx() -> None:
    """Contexts: saved addresses of hubs with their keys. Commands and programs use the current one.

    \b
    Examples:
      fabric ctx list
      fabric ctx use shop-eu
      fabric pub orders.created '{"id": 7}' --context shop-us

    'fabric join' saves a context. --url, --credentials and --context, and their variables, go before the current one.
    """


@ctx.command("add")
@click.argument("name", type=Name("context"))
@click.option("--url", metavar="URL", help="The hub's address, or a link of fabric+curve:// with the hub's key.")
@click.option(
    "--credentials",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A credentials file to copy, with its key.",
)
@output_options
def add_command(name: str, url: str | None, credentials: Path | None, as_json: bool) -> None:
    """Save a context NAME with an address, a credentials file, or both. It is the current one if there was none.

    \b
    Examples:
      fabric ctx add here --url tcp://127.0.0.1:7171
      fabric ctx add shop-eu --credentials billing.cred
      fabric ctx add shop-eu-tunnel --credentials billing.cred --url tcp://127.0.0.1:9171
    """
    from fabric_client import contexts
    from fabric_client.credentials import Credentials

    if credentials is not None:
        found = Credentials.load(credentials)
        found = found.replace(url=url) if url else found
    elif url:
        found = Credentials(url)
    else:
        usage("give --url, --credentials, or both; 'fabric join LINK' saves a context by itself")
    path = contexts.add(name, found)
    is_current = contexts.current() == name
    told = f'saved as context "{name}"' + ("; it is the current one" if is_current else f"; 'fabric ctx use {name}'")
    say("fabric.ctx.add.v1", {"context": name, "current": is_current, "file": str(path)}, told, as_json)


@ctx.command("use")
@click.argument("name", shell_complete=completion.contexts)
@output_options
def use_command(name: str, as_json: bool) -> None:
    """Make NAME the current context.

    \b
    Examples:
      fabric ctx use shop-eu
    """
    from fabric_client import contexts

    before = contexts.current()
    found = contexts.load(name)
    contexts.use(name)
    told = f'context "{name}": {found.url}' + (f" as {found.principal}" if found.principal else "")
    say("fabric.ctx.use.v1", {"context": name, "before": before}, told, as_json)


@ctx.command("list")
@output_options
def list_command(as_json: bool) -> None:
    """List the contexts; * is the current one.

    \b
    Examples:
      fabric ctx list
      fabric ctx list --json | jq -r '.contexts[].context'
    """
    from fabric_client import contexts

    rows = [_row(name) for name in contexts.names()]
    nothing = "there are no contexts; 'fabric join LINK' or 'fabric ctx add NAME' saves one"
    show_rows("fabric.ctx.list.v1", "contexts", rows, COLUMNS, as_json, nothing)


@ctx.command("show")
@click.argument("name", required=False, shell_complete=completion.contexts)
@output_options
def show_command(name: str | None, as_json: bool) -> None:
    """Show a context, without its secret key; by default the current one.

    \b
    Examples:
      fabric ctx show
      fabric ctx show shop-eu --json | jq -r .url
    """
    from fabric_client import contexts

    name = name or contexts.current()
    if not name:
        usage("there is no current context; give a name, or choose one with 'fabric ctx use NAME'")
    show_fields("fabric.ctx.show.v1", _fields(name, contexts.load(name)), _FIELDS, as_json)


@ctx.command("rm")
@click.argument("name", shell_complete=completion.contexts)
@yes_option
@output_options
def rm_command(name: str, yes: bool, as_json: bool) -> None:
    """Remove the context NAME with its key. The hub still knows the key: 'fabric keys revoke' is for that.

    \b
    Examples:
      fabric ctx rm shop-eu
      fabric ctx rm shop-eu --yes
    """
    from fabric_client import FabricError, NotFound, contexts

    try:
        may_have_key = bool(contexts.load(name).secret)
    except NotFound:
        raise
    except FabricError:  # the file is damaged
        may_have_key = True
    if may_have_key:
        confirm(f"remove the context {name} and its secret key, which cannot be restored", yes)
    contexts.remove(name)
    say("fabric.ctx.rm.v1", {"context": name}, f'context "{name}": removed', as_json)


def _row(name: str) -> dict[str, Any]:
    """A context for the list, also if its file cannot be read."""
    from fabric_client import FabricError, contexts

    try:
        return {**_fields(name, contexts.load(name)), "error": None}
    except FabricError as error:
        return {"context": name, "current": contexts.current() == name, "error": str(error)}


def _fields(name: str, found: "Credentials") -> dict[str, Any]:
    from fabric_client import contexts

    return {
        "context": name,
        "current": contexts.current() == name,
        "hub": found.hub,
        "url": found.url,
        "principal": found.principal,
        "encrypted": bool(found.hub_key),
        "key": found.public,
        "hub_key": found.hub_key,
        "file": str(contexts.path_of(name)),
    }
