"""Batch reads: the plan of a query, filters that Spark pushes down, and the tasks that turn blocks into batches."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from fabric_spark.arrow import BATCH_BYTES, BATCH_ROWS, Cut, record_batch
from fabric_spark.catalog import places
from fabric_spark.columns import ORIGINS
from fabric_spark.errors import SourceError, explained
from fabric_spark.events import event_batches, group_rows
from fabric_spark.options import LATEST, SEQ_END, Options, time_us
from fabric_spark.plan import Share, Task, tasks
from fabric_spark.rows import BlockWalk, Rules
from fabric_spark.topics import Wanted


class Scan(NamedTuple):
    """What a task needs to read its share: made where the query is planned, and sent to the task."""

    options: Options
    wanted: Wanted
    schema: pa.Schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Task):  # Spark makes its own partition when there are none
            return
        options, share = self.options, partition.share
        rules = Rules(
            start_us=options.start_us,
            end_us=options.end_us,
            verify=options.verify,
            fail_on_data_loss=options.fail_on_data_loss,
            cache=options.cache,
            with_origins=any(name in ORIGINS for name in self.schema.names),
        )
        with explained():
            if options.stream == "events":
                yield from event_batches(share.pieces, rules, self.schema, share.hub)
            else:
                yield from self._messages(share, rules)

    def _messages(self, share: Share, rules: Rules) -> Iterator[pa.RecordBatch]:
        """Batches, bounded by rows and bytes; memory holds one batch and one step of reading."""
        cuts: list[Cut] = []
        rows = size = 0
        for cut in self._cuts(share, rules):
            cuts.append(cut)
            rows += cut.stop - cut.start
            size += len(cut.block.raw)
            if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                yield from self._batch(cuts, share)
                cuts, rows, size = [], 0, 0
        if cuts:
            yield from self._batch(cuts, share)

    def _cuts(self, share: Share, rules: Rules) -> Iterator[Cut]:
        wanted = self.wanted
        for piece in share.pieces:
            for block in BlockWalk(piece, rules):
                if wanted.any_of(block.topics):
                    start, stop = (
                        max(0, piece.first - block.base_seq),
                        min(block.count, piece.last + 1 - block.base_seq),
                    )
                    yield Cut(block, start, stop)

    def _batch(self, cuts: list[Cut], share: Share) -> Iterator[pa.RecordBatch]:
        batch = record_batch(cuts, self.wanted, self.schema, share.hub, dict(share.floors))
        if not self.options.verify:
            batch.validate(full=True)  # wrong offsets would crash Spark
        if batch.num_rows:
            yield batch


class _Rows(InputPartition):
    """Rows that were made where the query was planned. Used for groups, which are few."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__(rows)
        self.rows = rows


class FabricReader(DataSourceReader):
    """Reads snapshots and live journals. Spark gets it where no filters are pushed down."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        if options.start_seq == LATEST:
            raise SourceError("startSeq=latest is for streams", "give a seq, or leave it out to read from the start")
        self._options = options
        self._wanted = options.wanted
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with explained():
            found = places(options)
            if options.stream == "groups":
                return [_Rows([row for place in found for row in group_rows(place)])]
            return [task for place in found for task in tasks(place, options, self._wanted)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, _Rows):
            return self._rows(partition.rows)
        return Scan(self._options, self._wanted, self._schema).read(partition)

    def _rows(self, rows: list[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=self._schema)


class PushingReader(FabricReader):
    """Takes over the filters that it can answer exactly: ranges of seq (or number) and time, topics by name."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        for one in filters:
            if self._options.stream == "groups" or not self._take(one):
                yield one

    def _take(self, one: Filter) -> bool:
        position = "number" if self._options.stream == "events" else "seq"
        match one:
            case IsNotNull((name,)):
                return name in (position, "ts", "topic")  # they never are
            case EqualTo((name,), value) | EqualNullSafe((name,), value) if name == position and _is_seq(value):
                self._narrow(value, value + 1)
            case GreaterThan((name,), value) if name == position and _is_seq(value):
                self._narrow(value + 1, SEQ_END)
            case GreaterThanOrEqual((name,), value) if name == position and _is_seq(value):
                self._narrow(value, SEQ_END)
            case LessThan((name,), value) if name == position and _is_seq(value):
                self._narrow(0, value)
            case LessThanOrEqual((name,), value) if name == position and _is_seq(value):
                self._narrow(0, value + 1)
            case EqualTo(("ts",), datetime() as value) | EqualNullSafe(("ts",), datetime() as value):
                self._within(time_us(value), time_us(value) + 1)
            case GreaterThan(("ts",), datetime() as value):
                self._within(time_us(value) + 1, None)
            case GreaterThanOrEqual(("ts",), datetime() as value):
                self._within(time_us(value), None)
            case LessThan(("ts",), datetime() as value):
                self._within(None, time_us(value))
            case LessThanOrEqual(("ts",), datetime() as value):
                self._within(None, time_us(value) + 1)
            case _:
                return self._options.stream == "journal" and self._take_topic(one)
        return True

    def _take_topic(self, one: Filter) -> bool:
        match one:
            case EqualTo(("topic",), str() as value) | EqualNullSafe(("topic",), str() as value):
                self._wanted = self._wanted.named([value])
            case In(("topic",), values) if all(isinstance(value, str) for value in values):
                self._wanted = self._wanted.named(values)
            case StringStartsWith(("topic",), str() as value):
                self._wanted = self._wanted.starting(value)
            case _:
                return False
        return True

    def _narrow(self, start: int, end: int) -> None:
        """Seqs from a filter narrow what is read; unlike startSeq they may name removed messages."""
        options = self._options
        self._options = options._replace(
            low=max(options.low, start), end_seq=min(options.end_seq, max(end, 0), SEQ_END)
        )

    def _within(self, start_us: int | None, end_us: int | None) -> None:
        options = self._options
        starts = [us for us in (options.start_us, start_us) if us is not None]
        ends = [us for us in (options.end_us, end_us) if us is not None]
        self._options = options._replace(start_us=max(starts) if starts else None, end_us=min(ends) if ends else None)


def _is_seq(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
