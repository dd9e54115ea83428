"""Streaming reads: offsets are seqs, so a checkpoint holds over a live journal and over any later snapshot of it.

An offset is {"journal": uuid, "epoch": n, "seq": next}. The journal's uuid is there so that a checkpoint is not
continued on other data by mistake, and the epoch because a journal that was restored from a backup gives out seqs
anew. Everything else about exactly once is Spark's: it writes down a range before it reads it, and reads the same range
again after a crash; seqs never change, so neither does the range.
"""

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from fabric.journal.pins import set_pin
from fabric_spark.batch import Scan
from fabric_spark.catalog import Place, first_at, place_of
from fabric_spark.errors import SourceError, explained
from fabric_spark.options import LATEST, Options
from fabric_spark.plan import tasks

Offset = dict[str, Any]


class FabricStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is new, from a live journal on the same host or from successive snapshots."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        if options.is_several:
            raise SourceError("a stream reads one path", "start a query for each hub, or read snapshots in a batch")
        if options.stream == "groups":
            raise SourceError("groups are no stream", "read them in a batch")
        self._options = options
        self._schema = schema
        self._target: int | None = None  # where Trigger.AvailableNow ends
        self._pinned = (-1, 0)  # pinned seq, and when it was pinned

    # Where to begin and how far to go.

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        with explained():
            place = self._place()
            first, last = place.extent(self._options.stream)
            options = self._options
            if options.start_seq == LATEST:
                first = last + 1
            elif options.start_seq > 0:
                if options.start_seq < first:
                    self._loss(place, options.start_seq, first)
                first = max(first, options.start_seq)
            elif options.start_us is not None:
                first = max(first, first_at(place, options.stream, options.start_us))
            self._pin(place, first)
            return self._offset(place, first)

    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:  # noqa: N802
        with explained():
            place = self._place()
            end = self._end(place)
            if start is None:  # Spark before 4.2
                return self._offset(place, end)
            begin = self._checked(place, start)
            self._renew(place)
            if isinstance(limit, ReadMaxRows):
                end = min(end, begin + limit.max_rows)
            # A snapshot older than the last has no new messages. A loss is reported only when messages are read.
            return self._offset(place, end) if end > begin else start

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.max_records
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with explained():
            self._target = self._place().extent(self._options.stream)[1] + 1

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        with explained():
            place = self._place()
            return self._offset(place, place.extent(self._options.stream)[1] + 1)

    # Reading a range.

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        with explained():
            place = self._place()
            first, last = self._checked(place, start), int(end["seq"]) - 1
            begins, ends = place.extent(self._options.stream)
            if first <= last and first < begins:
                self._loss(place, first, begins)
                first = begins
            if last > ends:
                raise SourceError(
                    f"the query has read up to {last} before, and {place.path} ends at {ends}",
                    "give a snapshot that is not older than the snapshot that the query has read",
                )
            last = min(last, self._options.end_seq - 1)
            self._pin(place, first)  # this batch may be read again, until it is committed
            return list(tasks(place, self._options, self._options.wanted, (first, last)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return Scan(self._options, self._options.wanted, self._schema).read(partition)

    def commit(self, end: Offset) -> None:
        """All messages before `end` are in the sink: the journal need not keep them for this query."""
        with explained():
            self._pin(self._place(), int(end["seq"]))

    def stop(self) -> None:
        """The pin stays: a query that stops is continued later, or its pin ends by itself."""

    # Parts of the above.

    def _place(self) -> Place:
        return place_of(*self._options.paths[0])

    def _end(self, place: Place) -> int:
        """The offset after the last row that there is for this query."""
        end = min(place.extent(self._options.stream)[1] + 1, self._options.end_seq)
        return end if self._target is None else min(end, self._target)

    def _offset(self, place: Place, seq: int) -> Offset:
        return {"journal": place.journal, "epoch": place.epoch, "seq": seq}

    def _checked(self, place: Place, start: Offset) -> int:
        """The seq of an offset that a checkpoint may have kept, which must be of this journal."""
        if start.get("journal", place.journal) != place.journal:
            raise SourceError(
                f"the checkpoint is of journal {start['journal']}, and {place.path} is of journal {place.journal}",
                "give each journal a checkpoint of its own",
            )
        if start.get("epoch", place.epoch) != place.epoch and self._options.fail_on_data_loss:
            raise SourceError(
                f"the journal in {place.path} was restored from a backup since the checkpoint was written"
                f" (epoch {start['epoch']} then, {place.epoch} now), and seqs from then on are other messages",
                "start anew with another checkpoint, or go on at the same seq with failOnDataLoss=false",
            )
        return int(start["seq"])

    def _loss(self, place: Place, first: int, begins: int) -> None:
        if self._options.fail_on_data_loss:
            raise SourceError(
                f"{first}..{begins - 1} are gone from {place.path}, which begins at {begins}",
                "keep them with the option pin, take snapshots more often, or go on with failOnDataLoss=false",
            )

    def _pin(self, place: Place, seq: int) -> None:
        """Keep the journal from removing what this query has not read yet."""
        options = self._options
        if options.pin and place.is_live and options.stream == "journal":
            now_us = time.time_ns() // 1000
            set_pin(place.path, options.pin, seq, now_us + int(options.pin_hours * 3600e6))
            self._pinned = seq, now_us

    def _renew(self, place: Place) -> None:
        """A query that waits for messages keeps its pin alive."""
        seq, at_us = self._pinned
        if seq >= 0 and time.time_ns() // 1000 - at_us > self._options.pin_hours * 3600e6 / 4:
            self._pin(place, seq)
