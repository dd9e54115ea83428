"""Principals and invitations that a hub knows."""

from typing import TYPE_CHECKING, Any

from fabric.cli import EXIT_NOT_FOUND
from fabric.cli.support.connect import all_rows
from fabric.cli.support.tables import Failed

if TYPE_CHECKING:
    from fabric_client import Client


def listed(fab: "Client") -> dict[str, Any]:
    """All principals, from all pages, and the invitations."""
    answer = fab.info("keys")
    rows = all_rows(fab, "keys", "principals") if answer.get("more") else answer["principals"]
    return {"principals": rows, "invitations": answer["invitations"], "hub_key": answer["hub_key"]}


def principal(fab: "Client", name: str) -> dict[str, Any]:
    answer = listed(fab)
    for row in answer["principals"]:
        if row["principal"] == name:
            return {**row, "hub_key": answer["hub_key"]}
    if any(row["name"] == name for row in answer["invitations"]):
        raise Failed(
            f"{name} is invited, and has not joined yet", "'fabric keys list' shows when it ends", EXIT_NOT_FOUND
        )
    raise Failed(f"there is no principal {name!r}", "'fabric keys list' shows the names", EXIT_NOT_FOUND)
