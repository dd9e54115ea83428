"""Pins hold back the retention of the journal until they end, and have no other effect."""

import errno
import os
from pathlib import Path

import pytest

from fabric.errors import JournalError
from fabric.journal.journal import Journal
from fabric.journal.limits import Limits
from fabric.journal.pins import LOOK_US, PINS_DIR, Pins, drop_pin, pinned, set_pin
from fabric.journal.rows import SEQ_MAX
from tests.spark.sample import T0, Author

DAY_US = 86_400_000_000


def trimmed(journal: Journal, now_us: int) -> int:
    while journal.trim_step(now_us) is not None:
        pass
    return journal.first_seq


def test_the_lowest_pin_holds_until_its_time(tmp_path: Path) -> None:
    limits = Limits(max_messages=20)
    author = Author(tmp_path / "journal", limits).write(blocks=10, messages=10)
    set_pin(author.path, "far", 61, T0 + 2 * DAY_US)
    set_pin(author.path, "near", 31, T0 + DAY_US)
    journal = Journal.open(author.path, limits)
    try:
        assert trimmed(journal, T0) == 31
        assert journal.trim_wanted == 0  # the router is not asked to trim what a pin holds
        assert trimmed(journal, T0 + DAY_US) == 61
        set_pin(author.path, "far", 71, T0 + 2 * DAY_US)
        assert trimmed(journal, T0 + DAY_US + LOOK_US) == 71
        drop_pin(author.path, "far")
        assert trimmed(journal, T0 + DAY_US + 2 * LOOK_US) == 81
    finally:
        journal.close()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"seq": 1}', '{"seq": "1", "until_us": 9}', '{"seq": 1, "until_us": 1}']
)
def test_what_is_no_pin_counts_for_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / PINS_DIR).mkdir()
    (tmp_path / PINS_DIR / "a.json").write_text(text)
    (tmp_path / PINS_DIR / "b.json").mkdir()
    assert pinned(tmp_path, 5) == SEQ_MAX
    assert pinned(tmp_path / "nowhere", 5) == SEQ_MAX


def test_where_no_pin_can_be_set_that_is_said(tmp_path: Path) -> None:
    (tmp_path / PINS_DIR).write_text("in the way")
    with pytest.raises(JournalError, match="cannot write the pin") as caught:
        set_pin(tmp_path, "a", 1, 2)
    assert "write access" in caught.value.hint


def test_without_a_free_descriptor_pins_stay_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that cannot look must not remove what a reader has pinned."""
    set_pin(tmp_path, "spark", 7, 10_000_000)
    seen = Pins(tmp_path)
    assert seen.lowest(1_000_000) == 7

    def exhausted(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "scandir", exhausted)
    assert seen.lowest(3_000_000) == 7
    monkeypatch.undo()
    monkeypatch.setattr("builtins.open", exhausted)
    assert seen.lowest(5_000_000) == 7
