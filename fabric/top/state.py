"""State: what the user has chosen by keys: page, row, order, filter, pause, details, help.

Keys are those of top, htop and k9s where these agree. `press` changes the state; the view reads it.
"""

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from fabric.top import columns
from fabric.top.model import GROUPS, PAGES, Model, Row

FILTER_MAX: Final = 64  # characters: longer than the part of a name that a line shows
PAGE_ROWS: Final = 10  # rows that PgUp and PgDn move, before the view has been drawn
HELP: Final = (
    ("q  Ctrl-C", "quit"),
    ("Tab  1 2 3", "next page: groups, topics, sessions"),
    ("↑ ↓  j k", "select a row; scroll help and details"),
    ("PgUp PgDn  g G", "move by a page; to the first, to the last row"),
    ("Enter  d", "details of the selected row; again, or Esc: back"),
    ("/", "show only names with a text; Enter keeps it, Esc removes it"),
    ("< >  s", "order by the column to the left, to the right"),
    ("r", "the other way round"),
    ("p  Space", "stop the view, and let it go on"),
    ("?  h", "this help"),
)


class State:
    def __init__(
        self, page: str = GROUPS, sort: str | None = None, is_reversed: bool = False, wanted: str = ""
    ) -> None:
        self.page = page
        self.sorts = dict(columns.SORTS)
        if sort is not None:
            self.sorts[page] = sort
        self.is_reversed = is_reversed
        self.filter = wanted
        self.is_typing = False  # the keys are text for the filter
        self.is_paused = False
        self.has_help = False
        self.has_details = False
        self.is_over = False
        self.selected: str | None = None  # the row that the selection follows; None: the first row, whichever that is
        self.offset = 0  # rows above the first visible row
        self.height = PAGE_ROWS  # rows that the view shows
        self.scrolled = 0  # lines of the help or of the details above the first visible line

    @property
    def sort(self) -> str:
        return self.sorts[self.page]

    def ordered(self, model: Model, now_s: float) -> list[Row]:
        """The rows of the page that the filter lets pass, in order. Rows without a value are last."""
        wanted = self.filter.casefold()
        rows = [row for row in model.rows[self.page].values() if wanted in row.label.casefold()]
        value = columns.column(self.page, self.sort).value
        rows.sort(key=lambda row: row.label)
        found = [(value(model, row, now_s), row) for row in rows]
        known = [pair for pair in found if pair[0] is not None]
        is_name = self.sort == columns.BY_PAGE[self.page][0].key or self.sort == "state"
        known.sort(key=lambda pair: pair[0], reverse=is_name == self.is_reversed)
        return [row for _, row in known] + [row for value, row in found if value is None]

    def place(self, rows: Sequence[Row]) -> int:
        """The place of the selected row. A row that has ended is no longer followed."""
        if self.selected is not None:
            for place, row in enumerate(rows):
                if row.key == self.selected:
                    return place
            self.selected, self.has_details = None, False
        return 0

    def scroll(self, place: int, count: int, height: int) -> None:
        """Move the visible part so that it has the selected row."""
        self.height = max(height, 1)
        self.offset = min(max(self.offset, place - self.height + 1), place, max(count - self.height, 0))

    def visible(self, lines: list[Text], room: int) -> list[Text]:
        """The part of the help or of the details for which there is room."""
        self.height = room
        self.scrolled = max(min(self.scrolled, len(lines) - room), 0)
        return lines[self.scrolled : self.scrolled + room]

    # Keys.

    def press(self, key: str, rows: Sequence[Row]) -> None:
        """Do what a key means; `rows` are those of the page in their order."""
        if self.is_typing:
            self._type(key)
        elif key in ("q", "Q"):
            self.is_over = True
        elif key in ("?", "h"):
            self.has_help, self.scrolled = not self.has_help, 0
        elif (self.has_help or self.has_details) and (by := self._by(key)):
            self.scrolled = max(self.scrolled + by, 0)
        elif self.has_help:
            self.has_help = False  # any other key closes it
        elif key in ("p", " "):
            self.is_paused = not self.is_paused
        elif key in ("enter", "d"):
            self._details(rows)
        elif key in ("esc", "backspace"):
            self._back()
        elif key in ("tab", "backtab", "1", "2", "3"):
            self._turn(key)
        elif key == "/":
            self.is_typing, self.has_details = True, False
        elif key in ("<", ">", "s", ",", ".", "left", "right"):
            self._sort(-1 if key in ("<", ",", "left") else 1)
        elif key in ("r", "R"):
            self.is_reversed = not self.is_reversed
        else:
            self._move(key, rows)

    def _type(self, key: str) -> None:
        if key == "enter":
            self.is_typing = False
        elif key == "esc":
            self.is_typing, self.filter = False, ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif key == "clear":
            self.filter = ""
        elif len(key) == 1 and key.isprintable():
            self.filter = (self.filter + key)[:FILTER_MAX]
        self.offset = 0

    def _details(self, rows: Sequence[Row]) -> None:
        if self.has_details:
            self.has_details = False
        elif rows:
            self.selected, self.has_details, self.scrolled = rows[self.place(rows)].key, True, 0

    def _back(self) -> None:
        """Close the details, or else remove the filter."""
        if self.has_details:
            self.has_details = False
        else:
            self.filter = ""

    def _turn(self, key: str) -> None:
        if key in ("tab", "backtab"):
            step = 1 if key == "tab" else -1
            self.page = PAGES[(PAGES.index(self.page) + step) % len(PAGES)]
        else:
            self.page = PAGES[int(key) - 1]
        self.selected, self.has_details, self.offset, self.is_reversed = None, False, 0, False

    def _sort(self, step: int) -> None:
        keys = [column.key for column in columns.BY_PAGE[self.page]]
        self.sorts[self.page] = keys[(keys.index(self.sort) + step) % len(keys)]
        self.is_reversed = False

    def _by(self, key: str) -> int | None:
        """By how many lines a key moves."""
        return {"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -self.height, "pgdn": self.height}.get(key)

    def _move(self, key: str, rows: Sequence[Row]) -> None:
        by = self._by(key)
        if not rows or (by is None and key not in ("g", "G", "home", "end")):
            return
        if key in ("g", "home"):
            self.selected = None
            return
        place = len(rows) - 1 if by is None else min(max(self.place(rows) + by, 0), len(rows) - 1)
        self.selected = rows[place].key
