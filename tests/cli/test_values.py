"""Sizes, durations, positions and headers, as people write them."""

import math
from typing import Literal

import pytest

from fabric.cli.support.values import (
    header,
    moment,
    position,
    seconds,
    seq,
    shown_ago,
    shown_bytes,
    shown_seconds,
    shown_span,
    shown_time,
    size_bytes,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("500ms", 0.5), ("7d", 604_800), ("1h30m", 5_400), ("1.5s", 1.5), (" 2W ", 1_209_600), ("0", 0)],
)
def test_a_duration_is_read(text: str, expected: float) -> None:
    assert math.isclose(seconds(text), expected)


@pytest.mark.parametrize("text", ["", "x", "7x", "-1s", "1h 30m", "h", "1e9s", "nan", "inf", "9" * 400, "2000000d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|thousand years"):
        seconds(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4096", 4096), ("10GB", 10**10), ("1KiB", 1024), ("1.5 mb", 1_500_000), ("0", 0), ("3B", 3), ("2TiB", 2 << 40)],
)
def test_a_size_is_read(text: str, expected: int) -> None:
    assert size_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "ten", "10G", "-5", "1 2", "5XB", "9" * 400, "99999999TB", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|any disk"):
        size_bytes(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("first", "first"),
        ("new", "new"),
        ("last", "last"),
        ("last_per_key", "last_per_key"),
        ("last-per-key", "last_per_key"),
        ("seq:120", 120),
        ("1h", 6_400.0),
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T01:00:00+01:00", 0.0),
    ],
)
def test_a_position_is_read(text: str, expected: str | int | float) -> None:
    found = position(text, now_s=10_000.0)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    "text", ["", "seq:", "seq:x", "seq:-1", "seq:" + "9" * 30, "yesterday", "2026-99-99", "40", "1.5"]
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="position"):
        position(text, now_s=0.0)


def test_a_bare_number_gets_a_hint_that_can_be_typed() -> None:
    with pytest.raises(ValueError, match=r"write seq:40 \(a seq\) or 40s \(seconds ago\)"):
        position("40", now_s=0.0)
    with pytest.raises(ValueError, match=r"; write 1\.5s \(seconds ago\)"):
        position("1.5", now_s=0.0)
    with pytest.raises(ValueError, match="is not a position; write first, new"):
        position("٣", now_s=0.0)  # a digit, but none that a seq has


def test_a_time_before_all_messages_is_the_beginning() -> None:
    assert position("5000w", now_s=10_000.0) == 0.0


@pytest.mark.parametrize(
    ("text", "side", "expected"),
    [("1h", "before", 6_400.0), ("1h", "after", 13_600.0), ("1970-01-01T00:01:00Z", "after", 60.0)],
)
def test_a_time_is_read(text: str, side: Literal["before", "after"], expected: float) -> None:
    assert moment(text, 10_000.0, side) == expected


@pytest.mark.parametrize("text", ["", "noon", "-1h", "2026-99-99", "9999999999999", "40"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        moment(text, 0.0, "after")


@pytest.mark.parametrize(("text", "expected"), [("120", 120), ("#7", 7), ("seq:9", 9), ("first", 1), ("0", 0)])
def test_a_seq_is_read(text: str, expected: int) -> None:
    assert seq(text) == expected


@pytest.mark.parametrize("text", ["", "-1", "x", "1.5", "9" * 19])
def test_what_is_no_seq_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a seq"):
        seq(text)


def test_a_header_is_read_as_curl_reads_it() -> None:
    assert header("source: a:b ") == ("source", "a:b")


@pytest.mark.parametrize("text", ["", "x", ":x", " :x"])
def test_what_is_no_header_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="name:value"):
        header(text)


def test_values_are_shown_for_people() -> None:
    assert [shown_bytes(n) for n in (0, 1023, 1536, 5 << 40)] == ["0 B", "1,023 B", "1.5 KiB", "5.0 TiB"]
    assert [shown_seconds(s) for s in (0.0000005, 0.0021, 0.42, 8.24)] == ["0 µs", "2.1 ms", "420 ms", "8.2 s"]
    assert [shown_span(s) for s in (0.25, 59, 90, 5_400, 90_061)] == ["250ms", "59s", "1m30s", "1h30m", "1d1h"]
    assert [shown_ago(s, 100.0) for s in (100.5, 90.0, 220.0)] == ["now", "10s ago", "in 2m"]
    assert shown_time(0.000001) == "1970-01-01T00:00:00.000001Z"
