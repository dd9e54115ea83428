"""Divides what a query reads into tasks. Batches and streams differ only in where the range comes from."""

from collections.abc import Iterator
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from fabric_spark.catalog import Place, Run, in_time, runs, span_of_query
from fabric_spark.options import Options
from fabric_spark.rows import Piece
from fabric_spark.topics import Wanted


class Share(NamedTuple):
    """The rows of one hub that a task reads."""

    hub: str
    pieces: tuple[Piece, ...]
    floors: tuple[tuple[str, int], ...]


class Task(InputPartition):
    """A partition of the table."""

    def __init__(self, share: Share) -> None:
        super().__init__(share)
        self.share = share


def tasks(place: Place, options: Options, wanted: Wanted, span: tuple[int, int] | None = None) -> list[Task]:
    """The tasks for all that is wanted of a place; with a span, for that part of it."""
    first, last = span_of_query(place, options) if span is None else span
    if first > last:
        return []
    found = (run for run in runs(place, options.stream, first, last, wanted) if in_time(run, options))
    clipped = (_clipped(run, first, last) for run in found)
    floors = tuple((topic, floor) for topic, floor in place.floors.items() if floor > first)
    return [
        Task(Share(place.hub, pieces, floors))
        for pieces in _portions(clipped, place.is_live, options.rows_per_partition)
    ]


def _clipped(run: Run, first: int, last: int) -> Run:
    """A run without what lies outside of first..last, its rows in proportion."""
    start, end = max(run.first, first), min(run.last, last)
    rows = max(1, run.rows * (end - start + 1) // (run.last - run.first + 1))
    return run._replace(first=start, last=end, rows=rows)


def _portions(found: Iterator[Run], is_live: bool, rows_each: int) -> Iterator[tuple[Piece, ...]]:
    """Portions of about the same number of rows: large runs are cut, small runs are joined."""
    portion: list[Piece] = []
    room = rows_each
    for run in found:
        width = run.last - run.first + 1
        cuts = max(1, -(-run.rows // rows_each))  # parts of a run are equal, so that no task gets a very small part
        for i in range(cuts):
            first, last = run.first + width * i // cuts, run.first + width * (i + 1) // cuts - 1
            if last < first:
                continue
            if portion and room < run.rows // cuts:
                yield tuple(portion)
                portion, room = [], rows_each
            _add(portion, Piece(run.file, is_live, first, last, run.lost, run.sha256, run.size))
            room -= run.rows // cuts
    if portion:
        yield tuple(portion)


def _add(portion: list[Piece], piece: Piece) -> None:
    """Add a piece; it is joined with the piece before it if both are adjacent in the same file."""
    if portion and portion[-1].file == piece.file and portion[-1].last + 1 == piece.first:
        portion[-1] = portion[-1]._replace(last=piece.last)
    else:
        portion.append(piece)
