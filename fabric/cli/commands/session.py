"""`fabric session …`: lists the sessions of clients, and ends them."""

from typing import Final

import click

from fabric.cli.support.connect import all_rows, asking_options, connect
from fabric.cli.support.noun import Noun
from fabric.cli.support.tables import Column, confirm, output_options, plural, say, show_rows, yes_option

COLUMNS: Final = (
    Column("SESSION", "session"),
    Column("CLIENT", "client", folds=True, rank=0),
    Column("CHANNELS", "channels"),
    Column("IN FLIGHT", "outstanding"),
)


@click.group("session", cls=Noun)
def session() -> None:
    """Sessions of clients.

    \b
    Examples:
      fabric session list
      fabric session kick billing-7
    """


@session.command("list")
@output_options
@asking_options
def list_command(as_json: bool, url: str, connect_timeout: float) -> None:
    """List the sessions of all clients.

    \b
    Examples:
      fabric session list
      fabric session list --json | jq -r '.sessions[].client'
    """
    with connect(url, connect_timeout) as fab:
        rows = all_rows(fab, "sessions", "sessions")
    show_rows("fabric.session.list.v1", "sessions", rows, COLUMNS, as_json, "no client is connected")


@session.command("kick")
@click.argument("session", metavar="NUMBER_OR_CLIENT")
@yes_option
@output_options
@asking_options
def kick_command(session: str, yes: bool, as_json: bool, url: str, connect_timeout: float) -> None:
    """End a session, by its number or by the name of its client. Its open deliveries are delivered again.

    \b
    Examples:
      fabric session kick 12 --yes
      fabric session kick billing-7
    """
    with connect(url, connect_timeout) as fab:
        confirm(f"end the session of {session}", yes)
        number = int(session) if session.isascii() and session.isdigit() and len(session) < 19 else None
        answer = fab.admin.sessions.kick(number, client=session if number is None else None)
    say("fabric.session.kick.v1", answer, f"{session}: {plural(answer['kicked'], 'session')} ended", as_json)
