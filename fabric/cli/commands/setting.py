"""`fabric setting …`: settings of the whole hub, which survive a restart."""

from typing import Final

import click

from fabric.cli import EXIT_NOT_FOUND
from fabric.cli.support.connect import asking_options, connect
from fabric.cli.support.noun import Noun
from fabric.cli.support.tables import Column, Failed, output_options, say, show_rows

COLUMNS: Final = (Column("SETTING", "setting"), Column("VALUE", "value", rank=0))
_WORDS: Final = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


@click.group("setting", cls=Noun)
def setting() -> None:
    """Settings of the whole hub; they survive a restart.

    \b
    Examples:
      fabric setting list
      fabric setting set events on
    """


@setting.command("list")
@output_options
@asking_options
def list_command(as_json: bool, url: str, connect_timeout: float) -> None:
    """List all settings of the hub.

    \b
    Examples:
      fabric setting list
    """
    with connect(url, connect_timeout) as fab:
        rows = [{"setting": name, "value": value} for name, value in fab.info("settings").items()]
    show_rows("fabric.setting.list.v1", "settings", rows, COLUMNS, as_json, "there are no settings")


@setting.command("set")
@click.argument("name")
@click.argument("value", type=click.Choice(list(_WORDS)), metavar="on|off")
@output_options
@asking_options
def set_command(name: str, value: str, as_json: bool, url: str, connect_timeout: float) -> None:
    """Change a setting, at once and for later starts.

    \b
    Examples:
      fabric setting set events on              record deliveries and their verdicts
      fabric setting set advisories off         send no $sys.* messages
    """
    with connect(url, connect_timeout) as fab:
        if name not in (known := fab.info("settings")):
            raise Failed(f"there is no setting {name!r}", f"there are {', '.join(known)}", EXIT_NOT_FOUND)
        answer = fab.admin.hub.update(**{name: _WORDS[value]})
    say("fabric.setting.set.v1", answer, f"setting {name}: {'on' if _WORDS[value] else 'off'}", as_json)
