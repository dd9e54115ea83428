"""Scheduled publishes: the hub keeps the messages until they are due."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from fabric_client.core.outgoing import Options
from fabric_client.core.receipt import Receipt, moment
from fabric_client.errors import BadMessage
from fabric_protocol.errors import FabricError


class Schedule(NamedTuple):
    """A pending schedule."""

    id: int
    due: datetime
    topic: str  # of its first message
    count: int  # type: ignore[assignment]  # messages; hides tuple.count, which is not needed here
    bytes: int
    name: str = ""
    every: timedelta | None = None
    cron: str = ""
    ttl: timedelta | None = None

    @staticmethod
    def of(row: Mapping[str, Any]) -> "Schedule":
        """The schedule in a row of the hub's answer."""
        return Schedule(
            row["id"],
            moment(row["due_us"]),
            row.get("topic", ""),
            row.get("count", 1),
            row.get("bytes", 0),
            row.get("name", ""),
            _length(row.get("every_ms", 0)),
            row.get("cron", ""),
            _length(row.get("ttl_ms", 0)),
        )


def _length(ms: int) -> timedelta | None:
    return timedelta(milliseconds=ms) if ms else None


def schedule_choice(id: int | Receipt | None, name: str | None) -> dict[str, Any]:
    """The fields of CANCEL."""
    if (id is None) == (name is None):
        raise FabricError("cancel takes an id or a name", "publish(..., delay=…) returns the id")
    if name is not None:
        return {"name": name}
    return {"id": id.schedule if isinstance(id, Receipt) else id}


def schedule_page(after: Any, page: int) -> dict[str, Any]:
    """The fields of an INFO about schedules."""
    return {"what": "schedules", "n": page, **({"after": after} if after is not None else {})}


def cancelled_due(answer: Mapping[str, Any]) -> datetime:
    return moment(answer["due_us"])


def check_one_schedule(options: Options, blocks: int) -> None:
    if options.scheduled and blocks > 1:
        raise BadMessage(
            "one schedule has one block, and these messages do not fit in it", "schedule them in smaller parts"
        )
