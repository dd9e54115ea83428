"""Commands of two words, such as `fabric group list`: the class of the first word.

`groups` works like `group`, `ls` like `list` and `rm` like `delete`; a wrong name gets a hint. Help lists the commands
in the order of the source.
"""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from fabric.cli import EXIT_NOT_FOUND, Overview, names_commands
from fabric.cli.support.tables import Failed
from fabric_protocol.errors import Code, FabricError

# What to do about a name that does not exist; other nouns have names that their list shows.
NOT_FOUND_HINTS: Final = {
    "dlq": "'fabric dlq list' shows the groups with dead letters, and 'fabric dlq list GROUP' the dead letters",
    "producer": "the hub tells no names of producers: look for producer= or source= in the program that publishes",
    "schedule": "'fabric schedule list' shows the ids and names of the schedules that wait",
    "session": "'fabric session list' shows the numbers and clients of the sessions",
}
SYNONYMS: Final = {"ls": "list", "rm": "delete", "remove": "delete", "info": "show", "describe": "show"}


class Noun(Overview):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or super().get_command(ctx, SYNONYMS.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            near = difflib.get_close_matches(args[0], self.commands, n=1, cutoff=0.5)
            meant = f"; did you mean '{ctx.command_path} {near[0]}'?" if near else ""
            raise click.UsageError(f"there is no command '{ctx.command_path} {args[0]}'{meant}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with hint_if_missing(not_found_hint(str(self.name))):
            return super().invoke(ctx)


@contextmanager
def hint_if_missing(hint: str) -> Iterator[None]:
    """Give a hint with an error NOT_FOUND of a hub or of a journal."""
    try:
        yield
    except FabricError as error:
        if getattr(error, "code", None) != Code.NOT_FOUND:
            raise
        raise Failed(str(error), error.hint if names_commands(error) else hint, EXIT_NOT_FOUND) from error


def not_found_hint(noun: str) -> str:
    return NOT_FOUND_HINTS.get(noun, f"'fabric {noun} list' shows the existing names")
