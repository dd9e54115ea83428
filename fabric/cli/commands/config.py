"""`fabric config …`: the configuration of a hub: which values count and where they come from, a check, a first file.

All that is shown comes from the options of `fabric hub` and from the loader that the hub uses.
"""

import os
import textwrap
from pathlib import Path
from typing import Any, Final

import click

from fabric.cli import EXIT_CONFLICT, main
from fabric.cli.support import config_aliases as known
from fabric.cli.support.config import (
    DOTENV,
    PLACES,
    Configuration,
    Found,
    Loader,
    configuration,
    settings,
)
from fabric.cli.support.config_client import client_side, told
from fabric.cli.support.config_file import ConfigError, read_dotenv
from fabric.cli.support.config_values import key, named_default, template_value, text_of, toml
from fabric.cli.support.noun import Noun
from fabric.cli.support.tables import Column, Failed, document, output_options, print_table
from fabric.cli.support.variables import variable

WIDTH: Final = 100  # of the comments in a file
OPTION_COLUMNS: Final = (
    Column("OPTION", "option", rank=0),
    Column("VALUE", "text", folds=True, rank=0),
    Column("ORIGIN", "origin", folds=True, rank=0),
)
ALIAS_COLUMNS: Final = (
    Column("ALIAS", "alias", rank=0),
    Column("BROKER", "broker", rank=3),
    Column("VALUE", "value", folds=True, rank=0),
    Column("FROM", "origin", folds=True),
    Column("EFFECT", "effect", folds=True, rank=0),
)


@click.group("config", cls=Noun)
def config() -> None:
    """The configuration of a hub.

    \b
    Examples:
      fabric config init fabric.toml
      fabric config check fabric.toml
      fabric config show
    """


@config.command("show", context_settings={"ignore_unknown_options": True})
@click.argument("hub_options", nargs=-1, type=click.UNPROCESSED, metavar="[HUB OPTIONS]...")
@click.option("--aliases", is_flag=True, help="As for 'fabric hub', and list all names of other brokers.")
@output_options
def show(hub_options: tuple[str, ...], aliases: bool, as_json: bool) -> None:
    """Show the value of each option of a hub that would be started here, and where it comes from.

    \b
    Examples:
      fabric config show
      fabric config show --json
      fabric config show --max-age 7d           as 'fabric hub --max-age 7d' would see it
      fabric config show --aliases              also all names of other brokers, and what they do

    Takes all options of 'fabric hub'. The origin is default, the line of a file, the name of a variable, or the option
    of the command line. The last lines tell which hub a client would connect to that is started here, with which key.
    """
    context = _hub_context([*hub_options, "--aliases"] if aliases else list(hub_options))
    loaded = configuration(context)
    rows = _option_rows(context, loaded)
    names = _alias_rows(loaded.found, every=aliases)
    client = client_side()
    files = [str(path.absolute()) for path in loaded.files]
    if as_json:
        fields = {"files": files, "options": rows, "aliases": names, "client": client}
        notes = {"warnings": list(loaded.warnings), "notes": list(loaded.notes)}
        click.echo(document("fabric.config.show.v1", fields | notes))
        return
    click.echo(f"files: {', '.join(files) or 'none'}\n")
    print_table(rows, OPTION_COLUMNS)
    if names:
        click.echo()
        print_table(names, ALIAS_COLUMNS)
    click.echo("\n" + "\n".join(told(client)))
    for warning in loaded.warnings:
        click.echo(click.style("warning: ", fg="yellow") + warning, err=True)


@config.command("check")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@output_options
def check(file: Path | None, as_json: bool) -> None:
    """Check a configuration file without starting a hub: exit code 0, or 2 with all mistakes.

    \b
    Examples:
      fabric config check                       the file that 'fabric hub' would read
      fabric config check /etc/fabric/fabric.toml
    """
    path = file or _usual_file()
    command, context = _hub_command()
    dotenv, _ = read_dotenv(DOTENV)
    variables = {name: str(entry.value) for name, entry in dotenv.items()} | dict(os.environ)
    read = Loader(command, context, {}, {}).load_only(path, variables)
    _check_addresses(read)
    names = [key(option) for option in settings(command) if option.name in read.origins]
    fields = {"file": str(path), "ok": True, "options": names, "notes": read.notes, "warnings": read.warnings}
    if as_json:
        click.echo(document("fabric.config.check.v1", fields))
        return
    for text in (*read.warnings, *read.notes):
        click.echo(text, err=True)
    click.echo(f"{path}: ok; it sets {', '.join(names) or 'nothing'}")


@config.command("init")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--force", is_flag=True, help="Replace a file that exists.")
def init(file: Path | None, force: bool) -> None:
    """Print a configuration file with all options and their defaults, or write it to FILE.

    \b
    Examples:
      fabric config init
      fabric config init fabric.toml
    """
    command, context = _hub_command()
    text = template(command, context)
    if file is None:
        click.echo(text, nl=False)
        return
    try:
        with file.open("w" if force else "x", encoding="utf-8") as target:
            target.write(text)
    except FileExistsError:
        raise Failed(f"{file} exists already", "--force replaces it", EXIT_CONFLICT) from None
    click.echo(f"{file}: written; 'fabric config check {file}' checks it after a change")


# The hub's command.


def _hub_command() -> tuple[click.Command, click.Context]:
    top = click.Context(main, info_name="fabric")
    command = main.get_command(top, "hub")
    assert command is not None
    return command, click.Context(command, parent=top, info_name="hub")


def _hub_context(words: list[str]) -> click.Context:
    command, context = _hub_command()
    return command.make_context("hub", words, parent=context.parent)


def _usual_file() -> Path:
    loaded = configuration(_hub_context([]))
    path = next((path for path in loaded.files if path != DOTENV), None)
    if path is None:
        raise Failed(
            f"there is no file to check: neither {' nor '.join(map(str, PLACES))} exists",
            "name a file, or make one with 'fabric config init fabric.toml'",
            ConfigError.exit_code,
        )
    return path


def _option_rows(context: click.Context, loaded: Configuration) -> list[dict[str, Any]]:
    rows = []
    for option in settings(context.command):
        name = str(option.name)
        value = context.params.get(name, loaded.values.get(name, name in loaded.origins))
        origin = loaded.origins.get(name)
        text = text_of(option, value)
        shown = " ".join(text) if isinstance(text, list) else None if text is None else toml(text).strip('"')
        if origin is None:
            shown = named_default(option) or shown
        rows.append(
            {
                "option": key(option),
                "value": text,
                "text": shown,
                "source": origin.kind if origin else "default",
                "origin": str(origin or "default"),
                "variable": variable(("hub",), option),
            }
        )
    return rows


def _alias_rows(found: tuple[Found, ...], every: bool) -> list[dict[str, Any]]:
    """Aliases that are set, and all others if they are asked for."""
    rows: list[dict[str, Any]] = [
        {
            "alias": each.origin.alias if each.origin.kind == "file" else each.alias.variable,
            "broker": each.alias.broker,
            "value": "(set)" if each.alias.secret else each.value,
            "origin": str(each.origin),
            "effect": each.alias.effect(),
        }
        for each in found
    ]
    seen = {row["alias"] for row in rows}
    for alias in known.ALIASES if every else ():
        for name in (alias.variable, alias.name):
            if name and name not in seen:
                seen.add(name)
                rows.append(
                    {"alias": name, "broker": alias.broker, "value": None, "origin": None, "effect": alias.effect()}
                )
    return rows


def _check_addresses(read: Configuration) -> None:
    """As the hub does before it opens its journal."""
    from fabric.hub.addresses import mistakes

    errors = mistakes(read.values.get("binds", ()))
    if problems := [f"{read.origins['binds']}: {error}; {error.hint}" for error in errors]:
        raise ConfigError(problems)


# A first file.


def template(command: click.Command, context: click.Context) -> str:
    """A file with all options of a command as comments, with their help and their defaults."""
    lines = [
        "# The configuration of a hub. An option without # is set; the values below are the defaults.",
        "# Variables such as FABRIC_HUB_MAX_AGE and options such as --max-age override this file.",
        "",
        f"[{command.name}]",
    ]
    for option in settings(command):
        text = " ".join((option.help or "").split())
        lines += ["", *textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ")]
        lines.append(f"#{key(option)} = {toml(template_value(option, context))}")
    return "\n".join(lines) + "\n"
