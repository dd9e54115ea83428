"""`fabric join`: makes this machine known to a hub by an invitation, and saves the address and the key as a context."""

import os
import re
import sys
from typing import TYPE_CHECKING, Final

import click

from fabric.cli import EXIT_CONFLICT, EXIT_USAGE
from fabric.cli.support.destination import VARIABLES
from fabric.cli.support.tables import Failed, note, output_options, say, usage
from fabric.cli.support.values import Duration, Name
from fabric_protocol.errors import FabricError

if TYPE_CHECKING:
    from fabric_client.links import Link

LINK_CHARS_MAX: Final = 4096  # of a line on standard input
_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9_.-]+")


@click.command("join")
@click.argument("link", metavar="LINK")
@click.option(
    "--context",
    "--name",
    "context_name",
    type=Name("context"),
    metavar="NAME",
    help="Save it by this name.  [default: the name of the hub's machine]",
)
@click.option("--replace", is_flag=True, help="Replace a context that has this name, with its key.")
@click.option("--timeout", type=Duration(), default=10.0, show_default="10s", help="How long to wait for each answer.")
@output_options
def join(link: str, context_name: str | None, replace: bool, timeout: float, as_json: bool) -> None:
    """Join a hub with the LINK that 'fabric keys invite' has printed. LINK '-' reads it from standard input.

    \b
    Examples:
      fabric join 'fabric+curve://hub-1:7171/#k=KEY&c=CODE&n=billing'
      fabric join 'fabric+curve://hub-1:7171/#k=KEY&c=CODE&n=billing' --context shop-eu
      fabric join - --context shop-eu < invitation

    Quote the link: '#' and '&' mean something to the shell. The key pair is made here, and its secret key is saved in
    the context and sent nowhere. After an interruption, run the same line again.
    """
    from fabric_client import contexts, joining
    from fabric_client.links import parse_link

    try:
        parsed = parse_link(_line() if link == "-" else link)
    except FabricError as error:
        raise Failed(str(error), error.hint, EXIT_USAGE) from None
    if not parsed.code:
        usage("this link has no code; put it in single quotes, because the shell ends an address at '&'")
    if timeout <= 0:
        usage("--timeout must be more than 0")
    draft = contexts.draft_of(parsed.code)
    name = _free(context_name, parsed, replace)
    try:
        found = joining.join(parsed, draft=draft, timeout=timeout).replace(hub=name)
        path = contexts.add(name, found, replace=replace or _is_of(name, found.hub_key, found.principal))
    except KeyboardInterrupt:
        note("interrupted; run the same line again")
        raise
    is_current = contexts.current() == name
    told = [
        f"joined the hub at {found.url.replace('tcp://', '')} as {found.principal}",
        f'saved as context "{name}"' + ("; it is the current one" if is_current else f"; 'fabric ctx use {name}'"),
        "try: fabric info" if is_current else f"try: fabric info --context {name}",
    ]
    answer = {"context": name, "current": is_current, "url": found.url, "principal": found.principal}
    say("fabric.join.v1", {**answer, "key": found.public, "file": str(path)}, "\n".join(told), as_json)
    if overriding := [variable for variable in VARIABLES.values() if os.environ.get(variable)]:
        note(f"{overriding[0]} is set, and goes before contexts")
    draft.unlink(missing_ok=True)  # after all else, so that the same line can be run again until then


def _line() -> str:
    return sys.stdin.readline(LINK_CHARS_MAX)


def _free(wanted: str | None, link: "Link", replace: bool) -> str:
    """The name for a new context. It is found before the code is used, which works once."""
    from fabric_client import contexts

    host = link.url.partition(",")[0].removeprefix("tcp://").rpartition(":")[0]
    place = _NOT_ALLOWED.sub("-", host).strip("-._")[:32] or "hub"
    names = [wanted] if wanted else [place, f"{place}-{link.name}"[:64]]
    for name in names:
        if replace or name not in contexts.names() or _is_of(name, link.hub_key, link.name):
            return name
    raise Failed(
        f"the context {names[0]!r} exists",
        "choose another name with --context, or replace it and its key with --replace",
        EXIT_CONFLICT,
    )


def _is_of(name: str, hub_key: str, principal: str) -> bool:
    """Whether a context is of this principal of this hub. Its key is the same one, saved by a run that was interrupted,
    or it was revoked: the hub enrols a name once."""
    from fabric_client import contexts

    try:
        saved = contexts.load(name)
    except FabricError:  # it is another one, damaged
        return False
    return bool(principal) and (saved.hub_key, saved.principal) == (hub_key, principal)
