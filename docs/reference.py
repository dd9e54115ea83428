"""The help texts in docs/cli.md, taken from the commands themselves so that they cannot go stale.

A help text stands below a line `<!-- help: COMMAND -->`; `python docs/reference.py` writes all of them anew, and adds
the commands that are missing.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from fabric.cli import main

PAGE: Final = Path(__file__).parent / "cli.md"
WIDTH: Final = 100
SLOT: Final = re.compile(r"<!-- help: ([a-z ]+) -->\n```text\n(.*?)```\n", re.DOTALL)


def commands(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[click.Context]:
    """The context of every command, parents first."""
    settings = {**command.context_settings, "max_content_width": WIDTH, "terminal_width": WIDTH}
    context = click.Context(command, parent, name, **settings)
    yield context
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from commands(found, inner, context)


def helps() -> dict[str, str]:
    """The help text of each command, by what one types to run it."""
    return {context.command_path: context.get_help().rstrip() + "\n" for context in commands(main, "fabric")}


def slot(path: str, text: str) -> str:
    return f"<!-- help: {path} -->\n```text\n{text}```\n"


def renewed(page: str) -> str:
    """The page with every help text as the command gives it; new commands at the end."""
    made = helps()
    named = {found[1] for found in SLOT.finditer(page)}
    page = SLOT.sub(lambda found: slot(found[1], made[found[1]]), page)
    return page + "".join(f"\n### {path}\n\n{slot(path, text)}" for path, text in made.items() if path not in named)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name}: {len(helps())} commands\n")
