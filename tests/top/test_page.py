"""docs/monitoring.md shows the view as it is, and names all keys and columns."""

import re
from typing import Any, Final

from fabric.top import columns
from fabric.top.model import GROUPS, SESSIONS, TOPICS, Change, Model, Pulse
from fabric.top.state import HELP, State
from fabric.top.view import Link, screen
from tests.test_house import ROOT
from tests.top.test_view import URL, lines_of

PAGE: Final = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
# Fields of the rows, and their counters after two seconds.
ROWS: Final[list[tuple[str, dict[str, Any], dict[str, int]]]] = [
    ("billing", {"ready": 48_210, "in_flight": 512, "retrying": 3, "dead": 7, "oldest_us": 58_000_000,
                 "drain_s": 80.0}, {"arrived": 1_900, "delivered": 3_100, "acked": 3_084}),
    ("mails", {"ready": 120, "in_flight": 16, "retrying": 0, "dead": 0, "oldest_us": 98_900_000,
               "drain_s": None}, {"arrived": 90, "delivered": 78, "acked": 80}),
    ("audit", {"ready": 0, "in_flight": 64, "retrying": 0, "dead": 0, "oldest_us": 99_800_000,
               "drain_s": 0.0}, {"arrived": 1_900, "delivered": 1_900, "acked": 1_902}),
]  # fmt: skip


def picture() -> list[str]:
    model = Model()
    others = {
        TOPICS: [Change(name, name, {}, {}) for name in ("orders.created", "mails")],
        SESSIONS: [Change(str(number), "billing", {}, {}) for number in range(5)],
    }
    for at in (0, 1):
        groups = [
            Change(name, name, fields, {key: number * at for key, number in counters.items()})
            for name, fields, counters in ROWS
        ]
        hub = {"ready": 48_330, "in_flight": 592, "retrying": 3, "dead": 7, "last_seq": 1_204_977}
        counters = {"messages_in": 1_990 * at, "messages_out": 5_078 * at, "acked": 5_066 * at}
        counters |= {"commits": 100 * at, "commit_us": 310_000 * at}
        model.merge(Pulse(hub, counters, 100_000_000, {GROUPS: groups, **others}, is_whole=True), 2.0 * at)
    return lines_of(screen(model, State(), Link(URL, clock="12:30:07"), 2.0, 80, 14), 80)


def test_the_picture_is_what_the_view_shows() -> None:
    (shown,) = re.findall(r"^```text\n(fabric top.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert shown.splitlines() == picture()


def test_all_keys_and_columns_are_named() -> None:
    for keys, _ in HELP:
        assert f"| `{keys}` |" in PAGE, keys
    for page in columns.BY_PAGE.values():
        for column in page:
            assert f"| {column.title} | `{column.key}` | {column.meaning} |" in PAGE, column.key
