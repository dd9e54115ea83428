"""The help texts and the environment variables in docs/cli.md, taken from the commands themselves so that they cannot
go stale.

`python docs/reference.py` writes all that follows `## Reference` anew, in the order in which the commands are listed. A
help text stands below a line `<!-- help: COMMAND -->`; the variables come last.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from fabric.cli import main, variables
from fabric.cli.support.variables import OTHERS

PAGE: Final = Path(__file__).parent / "cli.md"
WIDTH: Final = 100
HEADING: Final = "\n## Reference\n"
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
    """The page with every help text as the command gives it."""
    written, heading, _ = page.partition(HEADING)
    helped = "".join(f"\n### {path}\n\n{slot(path, text)}" for path, text in helps().items())
    return written + heading + helped + listed_variables()


def listed_variables() -> str:
    """The variables of all options by command, then those that belong to no single option."""
    by_command: dict[str, list[str]] = {}
    for name, (command, _) in variables(main).items():
        by_command.setdefault(command, []).append(f"`{name}`")
    rows = [f"| `{command}` | {' '.join(names)} |" for command, names in by_command.items()]
    others = [f"| `{name}` | {meaning} |" for name, meaning in OTHERS.items()]
    titles = ["\n### Environment variables\n", "| command | variables of its options |", "|---|---|"]
    return "\n".join([*titles, *rows, "", "| other variables | |", "|---|---|", *others, ""])


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name}: {len(helps())} commands\n")
