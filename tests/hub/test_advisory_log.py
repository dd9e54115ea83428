"""The hub's log: bounded, with names, in text and in JSON."""

import json
import logging
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import fabric_client
from fabric.hub import advisory_log, log
from fabric.hub.advisory_log import LINES_MAX, PERIOD_S, AdvisoryLog
from fabric.router.access.sources import OTHER_ADDRESSES, SOURCES_MAX
from tests.cli.conftest import wait_until
from tests.patience import PATIENCE_S
from tests.test_house import ROOT

Row = dict[str, Any]


class HubWithLog:
    """A hub in a process of its own, with its log in a file."""

    def __init__(self, folder: Path) -> None:
        self.url, self._path = f"ipc://{folder}/hub", folder / "log"
        command = [sys.executable, "-m", "fabric", "hub", "--data", str(folder / "journal"), "--bind", self.url]
        with self._path.open("wb") as stderr:
            self._process = subprocess.Popen([*command, "--log-format", "json"], stderr=stderr)
        self.find("hub ready")

    def rows(self, event: str) -> list[Row]:
        """The lines about an event. The last line may not be whole yet."""
        lines = self._path.read_text().rpartition("\n")[0].splitlines()
        return [row for row in map(json.loads, lines) if row["event"] == event]

    def find(self, event: str, **fields: Any) -> Row:
        """Wait for a line with these fields."""

        def found() -> list[Row]:
            return [row for row in self.rows(event) if fields.items() <= row.items()]

        wait_until(lambda: bool(found()))
        return found()[0]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubWithLog]:
    running = HubWithLog(tmp_path)
    yield running
    running.stop()


def test_the_work_of_a_day_is_in_the_log(hub: HubWithLog) -> None:
    with fabric_client.connect(hub.url, name="billing-1") as fab:
        who = {"client": "billing-1", "session": 1}
        hub.find("session opened", level="info", **who)
        fab.publish_many("orders.paid", [b"1", b"2", b"3"])
        with fab.consume("orders.*", group="billing", attempts=1, lease=1.0) as consumer:
            hub.find("group created", group="billing", **who)
            next(iter(consumer)).reject("out of paper")
            hub.find("dead letters", level="warning", group="billing", count=1)
        letters = fab.admin.dead_letters("billing")
        wait_until(lambda: letters.list()["count"] == 1)  # on disk
        letters.redrive()
        hub.find("changed", op="dlq.redrive", group="billing", redriven=1, **who)
        with pytest.raises(fabric_client.NotFound):
            fab.admin.groups.pause("nope")
        hub.find("refused", level="info", code="NOT_FOUND", why="there is no group 'nope'", **who)
        with pytest.raises(fabric_client.HubError):
            fab.admin.ask("group.create", group="g", patterns=["a"], lease_ms=-1)
        hub.find("refused", level="warning", code="BAD_OPTION", **who)
        fab.admin.hub.update(events=True)
        hub.find("changed", op="hub.update", events=True, **who)
        fab.admin.topics.purge("orders.paid")
        fab.admin.groups.delete("billing")
        hub.find("changed", op="group.delete", group="billing", **who)
    hub.find("session closed", **who)


def test_lapses_are_in_the_log(hub: HubWithLog) -> None:
    code = (
        "import os, signal, fabric_client\n"
        f"fab = fabric_client.connect({hub.url!r}, name='slow')\n"
        "fab.publish('a', b'x')\n"
        "consumer = fab.consume('a', group='g', lease=1.0, start='first')\n"
        "held = next(iter(consumer))\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"  # so that nothing renews the lease
    )
    with subprocess.Popen([sys.executable, "-c", code]) as silent:
        try:
            hub.find("lease lapsed", level="warning", group="g", client="slow", count=1)
        finally:
            silent.kill()


def test_a_kicked_session_is_in_the_log_with_the_session_that_kicked_it(hub: HubWithLog) -> None:
    with fabric_client.connect(hub.url, name="worker"), fabric_client.connect(hub.url, name="ops") as ops:
        ops.admin.sessions.kick(client="worker")
        hub.find("session lost", client="worker")
        hub.find("changed", op="session.kick", kicked=1, client="ops")


def test_a_flood_is_one_line_more(hub: HubWithLog) -> None:
    count = 3 * LINES_MAX
    with fabric_client.connect(hub.url, name="clumsy") as fab:
        for i in range(count):
            with pytest.raises(fabric_client.NotFound):
                fab.admin.groups.pause(f"nope{i}")
    hub.stop()
    *lines, last = hub.rows("refused")
    assert last["and_more"] == count - len(lines)
    assert LINES_MAX <= len(lines) < 2 * LINES_MAX  # a period may have ended meanwhile


# The bounds alone, with time as a number.

Written = list[tuple[str, Row]]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    rows: Written = []
    monkeypatch.setattr(advisory_log, "event", lambda level, name, **fields: rows.append((name, fields)))
    monkeypatch.setattr(log.LOGGER, "level", logging.INFO)
    return rows


def test_lines_of_a_kind_are_bounded_in_each_period(written: Written) -> None:
    hub_log = AdvisoryLog()
    hub_log.tick(100.0)
    for _ in range(LINES_MAX + 7):
        hub_log.hear("$sys.lapsed", {"group": "g", "count": 2})
    hub_log.hear("$sys.gap", {"group": "g"})
    assert [name for name, _ in written] == ["lease lapsed"] * LINES_MAX + ["gap"]
    hub_log.tick(100.0 + PERIOD_S / 2)
    assert len(written) == LINES_MAX + 1
    hub_log.tick(100.0 + PERIOD_S)
    assert written[-1] == ("lease lapsed", {"and_more": 7, "count": 14})
    hub_log.hear("$sys.lapsed", {"group": "g", "count": 1})
    assert written[-1] == ("lease lapsed", {"group": "g", "count": 1})
    hub_log.close()
    assert len(written) == LINES_MAX + 3


def test_lines_of_the_audit_are_bounded_for_each_source(written: Written) -> None:
    hub_log = AdvisoryLog()
    refused = {"kind": "refused", "code": "FORBIDDEN", "why": "no"}
    for _ in range(LINES_MAX + 5):
        hub_log.hear("$sys.audit", {**refused, "principal": "noisy", "address": "10.0.0.1"})
    for address in ("10.0.0.2", "10.0.0.3"):
        hub_log.hear("$sys.audit", {**refused, "principal": "?", "address": address})
    hub_log.hear("$sys.audit", {"kind": "admin", "op": "hub.update", "principal": "quiet"})
    assert {name for name, _ in written} == {"audit"}
    sources = Counter(fields["address"] for _, fields in written if "address" in fields)
    assert sources == {"10.0.0.1": LINES_MAX, "10.0.0.2": 1, "10.0.0.3": 1}
    assert written[-1] == ("audit", {"kind": "admin", "op": "hub.update", "principal": "quiet"})
    hub_log.close()
    assert written[-1] == ("audit", {"and_more": 5, "source": "noisy"})


def test_very_many_sources_of_the_audit_are_one(written: Written) -> None:
    hub_log = AdvisoryLog()
    hub_log.tick(100.0)
    for n in range(SOURCES_MAX * 3):
        hub_log.hear("$sys.audit", {"kind": "refused", "principal": "", "address": f"10.0.{n // 256}.{n % 256}"})
    assert len(written) == SOURCES_MAX + LINES_MAX
    hub_log.hear("$sys.audit", {"kind": "refused", "principal": "late", "address": "10.9.9.9"})
    assert written.pop()[1]["principal"] == "late", "strangers with many addresses do not take the places of principals"
    hub_log.tick(100.0 + PERIOD_S)
    assert written[-1] == ("audit", {"and_more": 2 * SOURCES_MAX - LINES_MAX, "source": OTHER_ADDRESSES})
    hub_log.hear("$sys.audit", {"kind": "refused", "principal": "", "address": "10.9.9.9"})
    assert written[-1][1]["address"] == "10.9.9.9", "the next period has room again"


def test_what_was_only_counted_is_told_at_the_end(written: Written) -> None:
    hub_log = AdvisoryLog()
    for _ in range(LINES_MAX + 1):
        hub_log.hear("$sys.gap", {})
    hub_log.close()
    assert written[-1] == ("gap", {"and_more": 1})


def test_long_texts_of_clients_are_cut(written: Written) -> None:
    AdvisoryLog().hear("$sys.refused", {"code": "BAD_FRAME", "why": "x" * 5000})
    assert len(written[0][1]["why"]) <= advisory_log.TEXT_CHARS_MAX + 1


@pytest.mark.parametrize("text", ["a\nb", "\x1b[2J", "a b", "", "a=b", 'say "x"', "\u202e"])
def test_text_of_a_client_cannot_leave_its_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up("text", "info")
    log.event(logging.INFO, "session opened", client=text, session=1)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.rstrip("\n").isprintable()
    assert said.endswith(f"client={json.dumps(text)} session=1\n")


EVENT: Final = re.compile(r"""(?:event\(\s*logging\.\w+|Line\(logging\.\w+|_log\(\s*now),\s*"([^"]+)\"""")


def test_every_event_is_on_the_page() -> None:
    page = (ROOT / "docs/admin.md").read_text(encoding="utf-8")
    names = {name for path in (ROOT / "fabric/hub").glob("*.py") for name in EVENT.findall(path.read_text())}
    assert names >= {"hub ready", "session opened", "slow commit", "connections refused"}
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []
