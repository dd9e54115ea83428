"""The tables of `fabric keys`: principals, open invitations, and the fields of one principal."""

from typing import Final

from fabric.cli.support.tables import Column, Row, ago


def _rights(fields: Row) -> str:
    """Rights or limits, one after the other; what is not given is not allowed, or not limited."""
    parts = []
    for name, value in fields.items():
        if value:
            shown = " ".join(map(str, value)) if isinstance(value, list | tuple) else f"{value:,}"
            parts.append(f"{name}: {shown}")
    return "; ".join(parts) or "none"


PRINCIPALS: Final = (
    Column("PRINCIPAL", "principal", folds=True),
    Column("ROLE", "role", rank=0),
    Column("KEYS", "keys", lambda keys: f"{len(keys):,}", rank=1),
    Column("FILE", "file", rank=2),
    Column("SINCE", "since_us", ago, rank=3),
)
INVITATIONS: Final = (
    Column("INVITED", "name", folds=True),
    Column("ROLE", "role", rank=0),
    Column("ENDS", "expires_us", ago, rank=1),
)
FIELDS: Final = (
    Column("principal", "principal"),
    Column("role", "role"),
    Column("keys", "keys"),
    Column("key", "key"),
    Column("file", "file"),
    Column("since", "since_us", ago),
    Column("rights", "rights", _rights),
    Column("limits", "limits", _rights),
    Column("hub's key", "hub_key"),
)
