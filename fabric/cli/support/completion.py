"""Names for the shell's completion, from the hub. If the hub does not answer at once, there are none, and no error."""

import logging
import os
from collections.abc import Callable
from typing import Final

import click

PATIENCE_S: Final = 0.3
Completion = Callable[[click.Context, click.Parameter, str], list[str]]


def names_of(what: str, listed: str, field: str) -> Completion:
    """Completes names from a list of the hub."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        import fabric_client

        logger = logging.getLogger("fabric_client")
        level = logger.level
        logger.setLevel(logging.CRITICAL)
        url = ctx.params.get("url") or os.environ.get("FABRIC_URL")
        try:
            with fabric_client.connect(url, name="fabric-cli", timeout=PATIENCE_S) as fab:
                rows = fab.info(what, timeout=PATIENCE_S)[listed]
        except fabric_client.FabricError:
            return []
        finally:
            logger.setLevel(level)
        names = (row if isinstance(row, str) else str(row[field]) for row in rows)
        return sorted(name for name in names if name.startswith(incomplete))

    return complete


groups: Final = names_of("groups", "groups", "group")
topics: Final = names_of("topics", "topics", "topic")
schedules: Final = names_of("schedules", "schedules", "id")
letters: Final = names_of("dlq", "groups", "group")
