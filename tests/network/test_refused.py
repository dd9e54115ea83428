"""Refused attempts through a real hub: keys, encrypted sockets, and for each row an advisory and a line in the log.

The attempts are those of the router's table; see `tests/router/access/attempts.py`.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from fabric.hub.advisory_log import LINES_MAX
from fabric.hub.log import LOGGER
from fabric.router.access.sources import SOURCES_MAX
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from tests.hub.curve_kit import Keyed
from tests.hub.kit import Talker, eventually
from tests.network.tenants import FREE, PATIENT, ROWS, ROWS_MAX, Contents, Row, access_file, answer, make_keys
from tests.router.access.controls import OTHERWISE

pytestmark = pytest.mark.xdist_group("refused")
CHANGING: Final = (m.Admin, m.Publish, m.Subscribe, m.Transact)


class Lines(logging.Handler):
    """The lines of the audit in the hub's log."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == "audit":
            self.lines.append(record.fields)  # type: ignore[attr-defined]


class Tenants:
    """A hub with a principal for each role of the table."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.keys = make_keys()
        (folder / "access.toml").write_text(access_file(self.keys))
        self.log = Lines()
        LOGGER.addHandler(self.log)
        stack.callback(LOGGER.removeHandler, self.log)
        self.hub = Keyed(folder / "j", stack, ("tcp://127.0.0.1:*",))
        self.contents = Contents(self.hub.context, self.hub.access.admin_bind)
        stack.callback(self.contents.close)
        self.digest = self.contents.digest()
        self.is_changed = False
        self._talkers: dict[str, Talker] = {}

    def talker(self, principal: str) -> Talker:
        """The connection of a principal, with a session."""
        if principal not in self._talkers:
            talker = self._talkers[principal] = self.hub.talker(self.keys[principal])
            talker.hello(**PATIENT)
        return self._talkers[principal]

    def as_new(self) -> None:
        """Undo what a control has changed."""
        if self.is_changed:
            self.contents.furnish()
            self.digest, self.is_changed = self.contents.digest(), False


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    with ExitStack() as stack:
        yield Tenants(tmp_path_factory.mktemp("tenants"), stack)


def test_the_table_is_large_and_no_line_of_its_audit_is_left_out() -> None:
    assert len(ROWS) >= 150
    assert ROWS_MAX < LINES_MAX
    assert len({row.principal for row in ROWS}) < SOURCES_MAX


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.attempt.name)
def test_an_attempt_is_refused_with_its_audit(tenants: Tenants, row: Row) -> None:
    tenants.as_new()
    talker = tenants.talker(row.principal)
    error = answer(talker, row.attempt.message)
    assert isinstance(error, m.Err), error
    assert error.code == row.attempt.code, error
    wanted = {"kind": "refused", "principal": row.principal, "address": "127.0.0.1", "code": row.attempt.code.name}
    wanted["why"] = error.text
    told = tenants.contents.audit()
    assert wanted.items() <= told.items(), told
    eventually(lambda: any(wanted.items() <= line.items() for line in tenants.log.lines), "the log has it")
    assert tenants.contents.digest() == tenants.digest, "nothing has changed"
    talker.still_served()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.attempt.name)
def test_the_same_attempt_with_all_rights_is_not_refused_for_a_right(tenants: Tenants, row: Row) -> None:
    message, otherwise = row.attempt.message, OTHERWISE.get(row.attempt.name)
    if isinstance(message, m.Request | m.Transact):
        tenants.as_new()
    talker = tenants.talker(FREE)
    if isinstance(message, m.Transact):
        talker.subscribe(group="billing", chan=1)
        talker.until(m.Deliver)
    if isinstance(message, m.Request) and otherwise is None:
        talker.send(message)
        tenants.contents.reply()
        talker.until(m.Reply, 9)
        return
    for _ in range(2):
        said = answer(talker, message)
        code = Code(said.code) if isinstance(said, m.Err) else None
        if code == otherwise or not tenants.is_changed:
            break
        tenants.as_new()  # another control may have removed what this one needs
    assert code == otherwise, said
    tenants.is_changed |= isinstance(message, CHANGING)
    for chan in (1,) * isinstance(message, m.Transact) + (9,) * isinstance(message, m.Subscribe):
        talker.send(m.Unsubscribe(chan, rid := talker.next_rid()))
        while not (isinstance(end := talker.receive(), m.Ok | m.Err) and end.rid == rid):
            assert end is not None
