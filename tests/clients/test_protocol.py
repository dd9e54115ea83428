"""PROTOCOL.md agrees with the code: bytes, numbers, limits."""

import re

import pytest

from clients import dumps
from fabric.router.groups.dispatcher import GROUPS_MAX
from fabric.router.groups.verdict_rows import ROWS_MAX
from fabric.router.requests.requests import OPEN_MAX, OPEN_PER_SESSION_MAX, WAITING_BYTES_MAX
from fabric.router.requests.services import QUEUE_MAX, QUEUE_PER_HANDLER
from fabric.router.sessions.session_table import SESSIONS_MAX
from fabric_protocol import block as b
from fabric_protocol import columns, meta, wire
from fabric_protocol import messages as m
from fabric_protocol.errors import Code

TEXT = dumps.PROTOCOL.read_text(encoding="utf-8")


def section(number: int) -> str:
    return TEXT.split(f"\n## {number}. ")[1].split("\n## ")[0]


def rows(text: str) -> dict[int, str]:
    return {int(n): name for n, name in re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", text, re.MULTILINE)}


def test_the_hex_dumps_are_fresh() -> None:
    assert set(dumps.dumps()) == {slot[1] for slot in dumps.SLOT.finditer(TEXT)}
    assert dumps.NUMBERS.search(TEXT)
    assert dumps.renewed(TEXT) == TEXT, "run python clients/dumps.py"


def test_every_verb_is_in_the_table() -> None:
    assert rows(section(7)) == {int(verb): verb.name for verb in wire.Verb}


def test_every_error_is_in_the_table() -> None:
    assert rows(section(11)) == {int(code): code.name for code in Code}


def test_every_verdict_is_in_the_table() -> None:
    assert rows(section(10)) == {int(verdict): verdict.name for verdict in m.Verdict}


def test_the_head_is_as_in_the_table() -> None:
    table = re.findall(r"^\| (\d+) \| (\d+) \| *\w* *\| \w+ \|", section(5), re.MULTILINE)
    ends = [int(at) + int(size) for at, size in table]
    assert [int(at) for at, _ in table] == [0, *ends[:-1]]
    assert ends[-1] == b.HEAD_BYTES


@pytest.mark.parametrize(
    "limit",
    [
        f"({b.BLOCK_BYTES_MAX >> 20} MiB)",
        f"messages ({b.COUNT_MAX:,})",
        f"`limits.topic_bytes` ({b.TOPIC_BYTES_MAX})",
        f"| {b.KEY_BYTES_MAX} and {b.ID_BYTES_MAX} bytes |",
        f"| {columns.HEADER_NAMES_MAX:,} and {columns.HEADER_PAIRS_MAX:,} |",
        f"({m.META_BYTES_MAX >> 20} MiB), arrays of {meta.ROWS_MAX:,}, maps {wire.DEPTH_MAX} deep |",
        f"| {meta.CONTROL_BYTES_MAX >> 10} KiB |",
        f"| {meta.ROWS_MAX:,}; {ROWS_MAX:,} once merged |",
        f"| {SESSIONS_MAX:,}; more are `BUSY` |",
        f"| {GROUPS_MAX:,}; more are `BUSY` |",
        f"| {OPEN_PER_SESSION_MAX:,} and {OPEN_MAX:,} |",
        f"| {QUEUE_PER_HANDLER} for each handler, at most {QUEUE_MAX:,}; {WAITING_BYTES_MAX >> 20} MiB |",
        f"| {wire.REASON_CHARS_MAX:,} characters |",
        f"| {wire.ERROR_CHARS_MAX} characters |",
    ],
)
def test_limits_are_as_in_the_code(limit: str) -> None:
    assert limit in section(12)
