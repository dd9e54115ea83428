"""The help texts and the environment variables in docs/cli.md, and the tables in docs/configuration.md, taken from the
commands themselves so that they cannot go stale.

`python docs/reference.py` writes all that follows `## Reference` anew, in the order in which the commands are listed. A
help text stands below a line `<!-- help: COMMAND -->`; the variables come last. In docs/configuration.md it writes what
stands between `<!-- options -->` or `<!-- aliases -->` and `<!-- end -->`.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from fabric.cli import main, variables
from fabric.cli.support.config import settings
from fabric.cli.support.config_aliases import ALIASES
from fabric.cli.support.config_values import key, named_default, template_value, toml
from fabric.cli.support.variables import OTHERS, variable

PAGE: Final = Path(__file__).parent / "cli.md"
CONFIGURATION: Final = Path(__file__).parent / "configuration.md"
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


def listed_options() -> str:
    """A table of what the section [hub] of a file may have."""
    top = click.Context(main, info_name="fabric")
    command = main.get_command(top, "hub")
    assert command is not None
    context = click.Context(command, parent=top, info_name="hub")
    rows = ["| in `[hub]` | variable | default | |", "|---|---|---|---|"]
    for option in settings(command):
        default = named_default(option) or f"`{toml(template_value(option, context))}`"
        text = re.sub(r"\s*\[default: .*", "", " ".join((option.help or "").split())).replace("|", "\\|")
        rows.append(f"| `{key(option)}` | `{variable(('hub',), option)}` | {default} | {text} |")
    return "\n".join(rows)


def listed_aliases() -> str:
    """A table of the names of other brokers."""
    rows = ["| broker | in a file | variable | here |", "|---|---|---|---|"]
    for alias in ALIASES:
        names = " | ".join(f"`{name}`" if name else "" for name in (alias.name, alias.variable))
        effect = re.sub(r"('fabric [^']+'|--[a-z-]+)", lambda found: f"`{found[0].strip(chr(39))}`", alias.effect())
        rows.append(f"| {alias.broker} | {names} | {effect.replace('<group>', 'GROUP')} |")
    return "\n".join(rows)


def configured(page: str) -> str:
    """The page about configuration with its tables."""
    for name, table in (("options", listed_options()), ("aliases", listed_aliases())):
        before, mark, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        assert end, f"{CONFIGURATION} has no place for {name}"
        page = f"{before}{mark}{table}\n{end}{after}"
    return page


if __name__ == "__main__":
    CONFIGURATION.write_text(configured(CONFIGURATION.read_text(encoding="utf-8")), encoding="utf-8")
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name}: {len(helps())} commands\n")
