"""`fabric keys …`: which programs the hub knows by their keys: invites, creates, lists, rotates and revokes them.

A secret key never leaves the machine that made it, except by `create` and `export`, which write it to a file.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fabric.cli import EXIT_CONFLICT, EXIT_NO_HUB, EXIT_NOT_ALLOWED, EXIT_NOT_FOUND
from fabric.cli.support import completion
from fabric.cli.support.connect import (
    address_options,
    client_is_silent,
    connect,
    hub_options,
    owner_options,
    present,
    told_origin,
)
from fabric.cli.support.destination import START
from fabric.cli.support.key_tables import FIELDS, INVITATIONS, PRINCIPALS
from fabric.cli.support.noun import Noun
from fabric.cli.support.principals import listed, principal
from fabric.cli.support.reach import Address, reach
from fabric.cli.support.tables import (
    Failed,
    Row,
    confirm,
    document,
    note,
    output_options,
    plural,
    print_table,
    readable,
    say,
    show_fields,
    usage,
    yes_option,
)
from fabric.cli.support.values import Duration, Name, shown_ago, shown_span, shown_time

if TYPE_CHECKING:
    from fabric_client import Client
    from fabric_client.credentials import Credentials
    from fabric_client.destination import Destination


_ROLE: Final = click.option("--role", required=True, metavar="ROLE", help="A role of the hub's access.toml.")
_ADDRESS: Final = click.option(
    "--address", type=Address(), metavar="HOST:PORT", help="How the other machine reaches the hub.  [default: it tells]"
)
_AS_JSON: Final = click.option("--json", "as_json", is_flag=True, help="One JSON document instead.")

_OWNER: Final = (
    "on the machine of the hub, run this in the folder where it was started, or name its data folder with --data; "
    "elsewhere, use a context whose role has the right 'keys'"
)
TTL_S: Final = (1.0, 30 * 86_400.0)  # the hub takes no other invitations


@click.group("keys", cls=Noun)
def keys() -> None:
    """Keys of programs and people on other machines: invite, create, list, show, revoke, rotate, export.

    \b
    Examples:
      fabric keys invite billing --role client     prints a line to paste on the other machine
      fabric keys list
      fabric keys revoke billing

    On the machine of the hub these commands need no key: they use the socket in its data folder (--data). From another
    machine the role of your key must have admin = ["keys"].
    """


@keys.command("invite")
@click.argument("name", type=Name("principal", "local"))
@_ROLE
@click.option(
    "--ttl", type=Duration(), default=3600.0, show_default="1h", help="How long the invitation is open, at most 30d."
)
@_ADDRESS
@_AS_JSON
@owner_options
def invite_command(
    name: str, role: str, ttl: float, address: str | None, as_json: bool, url: str, connect_timeout: float
) -> None:
    """Print the line that makes another machine known as NAME. It can be used once.

    \b
    Examples:
      fabric keys invite billing --role worker
      fabric keys invite ada --role admin --ttl 10m --address hub.example.org:7171
      fabric keys invite billing --role worker | ssh app-1 sh

    The other machine makes its own key pair; its secret key never leaves it. Until the line was used or has ended, it
    is worth as much as the role: send it as you send a password.
    """
    from fabric_client.links import Link

    if not TTL_S[0] <= ttl <= TTL_S[1]:
        usage(f"--ttl must be 1s..30d, not {shown_span(ttl)}")
    with _asking(url, connect_timeout) as fab:
        host, is_local = reach(address, url, fab.info("hub"))
        answer = fab.admin.ask("keys.invite", name=name, role=role, ttl_ms=round(ttl * 1000))
    if address is None and answer.get("url"):  # advertised, and told also where INFO tells no addresses
        host, is_local = reach(answer["url"], url, {})
    link = Link(f"tcp://{host}", answer["hub_key"], answer["code"], name).text()
    line = f"fabric join '{link}'"
    if as_json:
        rest = {field: value for field, value in answer.items() if field not in ("code", "journal")}
        click.echo(document("fabric.keys.invite.v1", {**rest, "link": link, "command": line}))
    else:
        click.echo(line)
        ends_s = answer["expires_us"] / 1e6
        moment = shown_time(ends_s).partition(".")[0] + "Z"
        note(f"run this line on the other machine: once, until {moment} ({shown_ago(ends_s, time.time())})")
    if is_local:
        note(f"only this machine reaches {host}; for another machine, give --address HOST:PORT")


@keys.command("create")
@click.argument("name", type=Name("principal", "local"))
@_ROLE
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The credentials file.  [default: NAME.cred]",
)
@_ADDRESS
@_AS_JSON
@owner_options
def create_command(
    name: str, role: str, output: Path | None, address: str | None, as_json: bool, url: str, connect_timeout: float
) -> None:
    """Make a key pair for NAME here, and write it to a credentials file, for images and CI.

    \b
    Examples:
      fabric keys create billing --role worker -o billing.cred
      fabric keys create ci --role client --address hub.example.org:7171

    The file has the secret key: keep it as a password. Programs read it by FABRIC_CREDENTIALS, commands also by
    --credentials. 'fabric keys invite' is better where a person or a script can run a command on the other machine.
    """
    import fabric_client
    from fabric_client.credentials import Credentials
    from fabric_client.keys import new_pair

    path = output or Path(f"{name}.cred")
    _must_be_new(path)
    pair = new_pair()
    with _asking(url, connect_timeout) as fab:
        host, is_local = reach(address, url, fab.info("hub"))
        hub_key = fab.info("keys")["hub_key"]
        Credentials(f"tcp://{host}", hub_key, pair.public, pair.secret, name).save(path, replace=False)
        try:
            answer = fab.admin.ask("keys.create", name=name, role=role, key=pair.public)
        except fabric_client.HubError:
            path.unlink()
            raise
        except fabric_client.FabricError:
            note(f"the hub may have taken the key in {path}: 'fabric keys show {name}' tells")
            raise
    told = f"{name} has the role {role}; its credentials are in {path}\nuse them: FABRIC_CREDENTIALS={path}"
    say("fabric.keys.create.v1", {**answer, "url": f"tcp://{host}", "file": str(path)}, told, as_json)
    if is_local:
        note(f"only this machine reaches {host}; for another machine, give --address HOST:PORT")


@keys.command("list")
@output_options
@owner_options
def list_command(as_json: bool, url: str, connect_timeout: float) -> None:
    """List the principals that have keys, and the invitations that are open.

    \b
    Examples:
      fabric keys list
      fabric keys list --json | jq -r '.principals[].principal'

    FILE says which file has the keys: the people's access.toml, or the hub's own enrolled.toml.
    """
    with _asking(url, connect_timeout) as fab:
        answer = listed(fab)
    if as_json:
        lists = {name: [readable(row) for row in answer[name]] for name in ("principals", "invitations")}
        click.echo(document("fabric.keys.list.v1", {**answer, **lists}))
        return
    if not answer["principals"] and not answer["invitations"]:
        click.echo("no key is known; 'fabric keys invite NAME --role ROLE' invites a program")
    print_table(answer["principals"], PRINCIPALS)
    if answer["invitations"]:
        if answer["principals"]:
            click.echo()
        print_table(answer["invitations"], INVITATIONS)


@keys.command("show")
@click.argument("name", required=False, shell_complete=completion.principals)
@output_options
@owner_options
def show_command(name: str | None, as_json: bool, url: str, connect_timeout: float) -> None:
    """Show the role and the keys of NAME; without NAME, your own, with your rights and limits.

    \b
    Examples:
      fabric keys show
      fabric keys show billing
      fabric keys show billing --json | jq -r '.keys[]'
    """
    with _asking(url, connect_timeout) as fab:
        found: Row = fab.info("me") if name is None else principal(fab, name)
    show_fields("fabric.keys.show.v1", found, FIELDS, as_json)


@keys.command("revoke")
@click.argument("name", shell_complete=completion.principals)
@yes_option
@output_options
@owner_options
def revoke_command(name: str, yes: bool, as_json: bool, url: str, connect_timeout: float) -> None:
    """Remove NAME with all its keys and open invitations. Its connections end at once.

    \b
    Examples:
      fabric keys revoke billing
      fabric keys revoke billing --yes

    Its groups and messages stay. A principal of access.toml is removed there, by hand.
    """
    with _asking(url, connect_timeout) as fab:
        confirm(f"revoke all keys and invitations of {name}, and end its connections", yes)
        answer = fab.admin.ask("keys.revoke", name=name)
    gone = f"{plural(answer['keys'], 'key')} and {plural(answer['invitations'], 'invitation')} removed"
    say("fabric.keys.revoke.v1", answer, f"{name}: revoked; {gone}", as_json)


@keys.command("rotate")
@output_options
@hub_options
def rotate_command(as_json: bool, url: str, connect_timeout: float) -> None:
    """Replace the key of this machine, in its context or credentials file. Its name and its rights stay.

    \b
    Examples:
      fabric keys rotate
      fabric keys rotate --context shop-eu
      fabric keys rotate --credentials billing.cred

    The new key is in the file before the hub learns of it. After an interruption, run it again. Programs that run with
    this file or context take the new key from it.
    """
    from fabric_client.credentials import Credentials
    from fabric_client.joining import rotate

    to = present(url)
    before = _keys(to).public
    if to.path is None:
        usage(
            "the key is from FABRIC_SECRET_KEY, and a rotation must save the new one: give --context or --credentials"
        )
    if Credentials.load(to.path).url != to.url:
        usage(f"a rotation uses the address in {to.path}; leave --url out, or save a context with the other address")
    with told_origin(to), client_is_silent():  # the hub ends the connection of the old key, as it should
        after = rotate(to.path, timeout=connect_timeout)
    answer = {"principal": after.principal, "key": after.public, "before": before, "file": str(to.path)}
    say("fabric.keys.rotate.v1", answer, f"{after.principal}: the key is changed; the new one is in {to.path}", as_json)


@keys.command("export")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The credentials file.  [default: PRINCIPAL.cred]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["file", "env"]),
    default="file",
    show_default=True,
    help="A credentials file, or two variables on standard output.",
)
@address_options
def export_command(output: Path | None, form: str, url: str) -> None:
    """Write the current context as a credentials file, or print it as variables. Both have the secret key.

    \b
    Examples:
      fabric keys export -o billing.cred
      fabric keys export --context shop-eu --format env > billing.env
    """
    from fabric_client.keys import link_form
    from fabric_client.links import Link

    found = _keys(present(url))
    if form == "env":
        if output is not None:
            usage("-o is for a credentials file; with --format env, redirect the output")
        click.echo(click.style("warning: ", fg="yellow") + "the output shows a secret key", err=True)
        click.echo(f"FABRIC_URL='{Link(found.url, found.hub_key).text()}'")
        click.echo(f"FABRIC_SECRET_KEY='{link_form(found.secret)}'")
        return
    path = output or Path(f"{found.principal or 'fabric'}.cred")
    _must_be_new(path)
    found.replace(pending="").save(path, replace=False)
    click.echo(f"{path} has the credentials, with the secret key; use them: FABRIC_CREDENTIALS={path}")


def _keys(to: "Destination") -> "Credentials":
    """The credentials of a destination, with the address that was chosen."""
    from fabric_client.credentials import Credentials

    if to.keys is None:
        where = f" ({to.origin})" if to.origin else ""
        raise Failed(
            f"there is no key for {to.url}{where}",
            "'fabric join LINK' makes one; 'fabric ctx list' shows the contexts that have one",
            EXIT_NOT_FOUND,
        )
    if to.path is None:
        return Credentials(to.url, *to.keys)
    return Credentials.load(to.path).replace(url=to.url)


@contextmanager
def _asking(url: str, connect_s: float) -> "Iterator[Client]":
    """A client of the hub. If there is no hub, the error says how to start one that has keys."""
    import fabric_client

    try:
        with connect(url, connect_s) as fab:
            yield fab
    except fabric_client.NotFound as error:
        if "has no keys" in str(error):
            raise Failed(str(error), START, EXIT_NOT_FOUND) from error
        if "[role." in str(error):
            raise Failed(str(error), "choose one of them, or write the role into the file", EXIT_NOT_FOUND) from error
        raise
    except fabric_client.Conflict as error:
        raise Failed(
            str(error), "'fabric keys list' shows the principals and the invitations", EXIT_CONFLICT
        ) from error
    except fabric_client.AuthFailed as error:
        if present(url).keys is not None:
            raise
        raise Failed(str(error), _OWNER, EXIT_NOT_ALLOWED) from error
    except fabric_client.ConnectionLost as error:
        if not str(error).startswith("no hub at"):  # there is one, and the hint says what is wrong
            raise
        raise Failed(str(error), f"{START}; --data or --context chooses another hub", EXIT_NO_HUB) from error


def _must_be_new(path: Path) -> None:
    if str(path) == "-":
        usage("-o takes a file, not '-'; 'fabric keys export --format env' prints variables")
    if path.exists():
        raise Failed(f"{path} exists", "choose another file with -o; a key that is overwritten is lost", EXIT_CONFLICT)
