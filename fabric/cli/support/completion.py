"""Names for the shell's completion, from the hub. If the hub does not answer at once, there are none, and no error.

Any client may choose a name. The shell reads what it has completed as if it were typed, so a name with characters that
mean something to a shell is not offered.
"""

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

from fabric.cli.support.destination import chosen, credentials_of, of_owner

if TYPE_CHECKING:
    from fabric_client.destination import Destination

PATIENCE_S: Final = 0.3
_PLAIN: Final = re.compile(r"[\w@%+./-]+")  # at : and = bash begins a new word, and at a comma fish ends it
Choosing = Callable[[click.Context], "Destination"]
Completion = Callable[[click.Context, click.Parameter, str], list[str]]


def names_of(what: str, listed: str, field: str, choose: Choosing = chosen) -> Completion:
    """Completes names from a list of the hub."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        import fabric_client

        logger = logging.getLogger("fabric_client")
        level = logger.level
        logger.setLevel(logging.CRITICAL)
        try:
            to = choose(ctx)
            credentials = credentials_of(to)
            with fabric_client.connect(to.url, credentials=credentials, name="fabric-cli", timeout=PATIENCE_S) as fab:
                rows = fab.info(what, timeout=PATIENCE_S)[listed]
        except (fabric_client.FabricError, click.ClickException, OSError):
            return []
        finally:
            logger.setLevel(level)
        names = (row if isinstance(row, str) else str(row[field]) for row in rows)
        return sorted(name for name in names if name.startswith(incomplete) and _PLAIN.fullmatch(name))

    return complete


def contexts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes names of contexts of this user."""
    from fabric_client import FabricError
    from fabric_client import contexts as saved

    try:
        return [name for name in saved.names() if name.startswith(incomplete)]
    except FabricError:
        return []


groups: Final = names_of("groups", "groups", "group")
topics: Final = names_of("topics", "topics", "topic")
schedules: Final = names_of("schedules", "schedules", "id")
letters: Final = names_of("dlq", "groups", "group")
principals: Final = names_of("keys", "principals", "principal", of_owner)
