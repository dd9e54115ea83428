"""INFO pulse of a real hub: changes are told once, and a hub that has started again tells all rows."""

from pathlib import Path
from typing import Any

import fabric_client
from fabric.hub.hub import Hub, HubOptions

BIND = "inproc://pulse"


class Viewer:
    """Merges the groups of pulses, as docs/monitoring.md shows."""

    def __init__(self) -> None:
        self.version = 0
        self.groups: dict[str, Any] = {}

    def look(self, fab: fabric_client.Client) -> dict[str, Any]:
        pulse: dict[str, Any] = fab.info("pulse", since=self.version)
        if pulse["reset"]:
            self.groups.clear()
        for name in pulse["gone"]["groups"]:
            self.groups.pop(name, None)
        self.groups |= {row["group"]: row for row in pulse["groups"]}
        self.version = pulse["version"]
        return pulse


def test_a_pulse_tells_what_has_changed_and_begins_anew_with_the_hub(tmp_path: Path) -> None:
    viewer = Viewer()
    with Hub(tmp_path, HubOptions(binds=[BIND])) as hub, fabric_client.connect(BIND, context=hub.context) as fab:
        for name in ("billing", "mails", "old"):
            fab.admin.groups.create(name, name)
        assert viewer.look(fab)["reset"]
        assert viewer.groups.keys() == {"billing", "mails", "old"}
        fab.publish("billing", b"1")
        fab.admin.groups.delete("old")
        pulse = viewer.look(fab)
        assert not pulse["reset"]
        assert [row["group"] for row in pulse["groups"]] == ["billing"]
        assert pulse["gone"]["groups"] == ["old"]
        assert pulse["totals"]["messages_in"] == 1
        assert pulse["totals"]["commits"] > 0
        assert viewer.groups["billing"]["ready"] == 1
        assert not viewer.look(fab)["groups"]
    with Hub(tmp_path, HubOptions(binds=[BIND])) as hub, fabric_client.connect(BIND, context=hub.context) as fab:
        assert viewer.look(fab)["reset"]
        assert viewer.groups.keys() == {"billing", "mails"}
