"""Pages of a list: an answer has one MiB at most, so a page ends after `n` rows, or earlier when rows are long."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from fabric.router.fields import bounded
from fabric_protocol.bounds import INFO_N

PAGE_CHARS_MAX: Final = 200_000  # at most four times as many bytes

Fields = Mapping[str, Any]
Row = dict[str, Any]


def page(name: str, fields: Fields, keys: Iterable[Any], row_of: Callable[[Any], Row]) -> Row:
    """The rows of ascending keys, as many as one answer can hold."""
    n = bounded(fields, "n", *INFO_N)
    rows: list[Row] = []
    last, chars = None, 0
    for key in keys:
        if len(rows) >= n or chars > PAGE_CHARS_MAX:
            return {name: rows, "more": True, "next": last}
        rows.append(row_of(key))
        last, chars = key, chars + len(repr(rows[-1]))
    return {name: rows, "more": False}
