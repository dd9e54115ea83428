"""`df.write.format("fabric")`: publishes the rows of a DataFrame to a hub.

Spark runs a failed task again, and may run a task twice at the same time. So that no message is stored twice, every row
without an id gets an id from the write, the partition and the row's number in it, which do not change.
The hub stores one message of a topic with that id, for ten minutes or for as long as the topic says.
"""

import json
import os
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType

from fabric_client import Client
from fabric_client.core.outgoing import BLOCK_ROOM, Prepared, check_topic, prepare
from fabric_client.core.outgoing import Options as Steering
from fabric_client.core.receipt import Receipt
from fabric_client.core.ticket import Ticket
from fabric_client.credentials import Credentials
from fabric_client.destination import destination
from fabric_client.options import block_options
from fabric_protocol.block import ID_BYTES_MAX, encode
from fabric_protocol.errors import FabricError
from fabric_spark.columns import ORIGINS
from fabric_spark.errors import SourceError, explained

TIMEOUT_S: Final = 60.0
IN_FLIGHT_MAX: Final = 64  # unconfirmed blocks: more would only take memory
WRITING: Final = ("url", "credentials", "topic", "idPrefix", "timeout", "level", "report", "checkpointLocation", "path")
# Columns of a journal that a publish ignores, so that rows that were read can be written.
_PASSED_OVER: Final = ("hub", "seq", "ts", "payload_len", "priority", "expires", "date", *ORIGINS)
_TEXTS: Final = (StringType, BinaryType)


class Target(NamedTuple):
    """The hub and topic of a write, and the prefix of its ids."""

    hub: Credentials
    topic: str
    prefix: str
    timeout: float
    level: str
    report: str


class Layout(NamedTuple):
    """Which columns of the frame are what; empty: there is none."""

    payload: str
    topic: str = ""
    key: str = ""
    id: str = ""
    headers: str = ""


@dataclass
class Written(WriterCommitMessage):
    """What a task did: its rows, and how many of them the hub had already."""

    partition: int
    rows: int
    duplicates: int
    bytes: int


# What is asked for.


def target_of(options: Mapping[str, str]) -> Target:
    """The options of a write, checked."""
    given = {name.lower(): str(value) for name, value in options.items()}
    known = {name.lower() for name in WRITING}
    for name in given:
        if name not in known and not name.startswith("__"):
            raise SourceError(f"unknown option {name!r} of a write", f"the options are {', '.join(WRITING[:7])}")
    prefix = given.get("idprefix") or uuid.uuid4().hex
    if len(prefix.encode()) > ID_BYTES_MAX - 64:
        raise SourceError(f"option idPrefix has more than {ID_BYTES_MAX - 64} bytes", "choose a shorter prefix")
    try:
        timeout = float(given.get("timeout", TIMEOUT_S))
    except ValueError:
        timeout = 0.0
    if timeout <= 0:
        raise SourceError(f"option timeout is {given['timeout']!r}", "give seconds, more than 0")
    topic = given.get("topic", "")
    with explained():
        if topic:
            check_topic(topic)
        block_options(level=given.get("level"))
        hub = destination(given.get("url"), given.get("credentials") or None).credentials
    return Target(
        hub,
        topic,
        prefix,
        timeout,
        given.get("level", "journaled"),
        given.get("report", ""),
    )


def layout_of(schema: StructType, target: Target) -> Layout:
    """Which columns there are, and whether they are of kinds that can be published."""
    fields = {field.name: field.dataType for field in schema.fields}
    for name in fields:
        if name not in ("payload", "value", "topic", "key", "id", "headers", *_PASSED_OVER):
            raise SourceError(
                f"column {name!r} is no part of a message",
                "columns are payload (or value), topic, key, id and headers; put the rest into the payload with"
                " to_json(struct(...)), or drop it",
            )
    payload = "payload" if "payload" in fields else "value"
    if payload not in fields:
        raise SourceError("there is no column payload", "name the column that has the message's bytes payload or value")
    if "payload" in fields and "value" in fields:
        raise SourceError("there are columns payload and value", "they mean the same: drop one of the two")
    for name in (payload, "topic", "key", "id"):
        if name in fields and not isinstance(fields[name], _TEXTS):
            raise SourceError(
                f"column {name} is {fields[name].simpleString()}", "cast it to string or binary, or use to_json"
            )
    if "headers" in fields and not _is_headers(fields["headers"]):
        raise SourceError(
            f"column headers is {fields['headers'].simpleString()}", "make it map<string,string> or map<string,binary>"
        )
    if "topic" not in fields and not target.topic:
        raise SourceError("there is no topic", "set option topic, or add a column topic")
    names = {name: name if name in fields else "" for name in ("topic", "key", "id", "headers")}
    if target.topic:
        names["topic"] = ""  # the option wins: that is how a copy goes to another topic
    return Layout(payload, **names)


def _is_headers(kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, _TEXTS)
    item = kind.elementType if isinstance(kind, ArrayType) else None
    return isinstance(item, StructType) and item.names == ["name", "value", "text"]  # as headers=raw reads them


# What is done.


class _Sender(Client):
    """Publishes whole blocks, and counts the stored messages and the duplicates."""

    def __init__(self, target: Target) -> None:
        super().__init__(credentials=target.hub, name="spark", timeout=target.timeout)
        self._wait = target.timeout
        self._tickets: deque[Ticket] = deque()
        self.rows = self.duplicates = self.bytes = 0

    def __enter__(self) -> "_Sender":
        return self

    def send(self, raw: bytes, count: int, topic: str, steering: Steering) -> None:
        while len(self._tickets) >= IN_FLIGHT_MAX:
            self._confirm()
        self._make_room(self._wait)
        ticket = Ticket()
        with self._driver.lock:
            self._driver.check()
            self._publisher.put_block(raw, count, steering, topic, ticket, each=False)
            self._driver.turn_locked()
        self._tickets.append(ticket)
        self.bytes += len(raw)

    def finish(self) -> None:
        while self._tickets:
            self._confirm()

    def _confirm(self) -> None:
        receipt: Receipt = self._driver.result(self._tickets.popleft(), self._wait, "the publish was not confirmed")
        self.rows += receipt.count
        self.duplicates += receipt.duplicates


class _Packer:
    """Gathers rows into blocks."""

    def __init__(self, sender: _Sender, target: Target) -> None:
        self._sender = sender
        self._steering = block_options(level=target.level)
        self._rows: list[Prepared] = []
        self._room = BLOCK_ROOM
        self._topics: set[str] = set()

    def add(self, row: Prepared) -> None:
        if row.topic not in self._topics:
            check_topic(row.topic)
            self._topics.add(row.topic)
        if self._rows and row.cost > self._room:
            self.flush()
        self._rows.append(row)
        self._room -= row.cost

    def flush(self) -> None:
        rows = self._rows
        if not rows:
            return
        topics = [row.topic for row in rows]
        raw = encode(
            topics[0] if len(set(topics)) == 1 else topics,
            [row.body for row in rows],
            keys=[row.key for row in rows] if any(row.key for row in rows) else None,
            ids=[row.id for row in rows],
            headers=[row.headers for row in rows] if any(row.headers for row in rows) else None,
        )
        self._sender.send(raw, len(rows), topics[0], self._steering)
        self._rows, self._room = [], BLOCK_ROOM


def publish(batches: Iterator[pa.RecordBatch], target: Target, layout: Layout, prefix: str, partition: int) -> Written:
    """Publish the rows of one partition and wait until the hub has them on disk."""
    number = 0
    with explained(), _Sender(target) as sender:
        packer = _Packer(sender, target)
        for batch in batches:
            for values in _rows(batch, layout):
                with _about(partition, number):
                    packer.add(_message(values, target, f"{prefix}/{partition}/{number}"))
                number += 1
        packer.flush()
        sender.finish()
        return Written(partition, sender.rows, sender.duplicates, sender.bytes)


def _rows(batch: pa.RecordBatch, layout: Layout) -> Iterator[tuple[Any, ...]]:
    """(payload, topic, key, id, headers) of each row."""
    nothing: Sequence[None] = [None] * batch.num_rows
    columns = [batch.column(name).to_pylist() if name else nothing for name in layout]
    return zip(*columns, strict=True)


def _message(values: tuple[Any, ...], target: Target, own_id: str) -> Prepared:
    payload, topic, key, id, headers = values
    if payload is None:
        raise SourceError("its payload is null", "leave such rows out, or give them an empty payload with coalesce")
    if topic is None and not target.topic:
        raise SourceError("its topic is null", "give every row a topic, or set option topic")
    name = target.topic or (topic.decode() if isinstance(topic, bytes) else topic)
    return prepare(name, payload, key or None, id or own_id, _headers(headers))


def _headers(value: Any) -> dict[str, str | bytes] | None:
    """Headers from a map, or from what headers=raw has read, where text is told from bytes."""
    if not value:
        return None
    if isinstance(value[0], dict):
        return {pair["name"]: pair["value"].decode() if pair["text"] else pair["value"] for pair in value}
    return {name: content for name, content in value if content is not None}


@contextmanager
def _about(partition: int, number: int) -> Iterator[None]:
    """Errors of a row say which row it is."""
    try:
        yield
    except SourceError as error:
        raise SourceError(f"row {number} of partition {partition}: {error.args[0]}", error.hint) from error
    except FabricError as error:
        raise SourceError(f"row {number} of partition {partition}: {error}", error.hint) from error


def _tell(target: Target, messages: Sequence[WriterCommitMessage | None], **more: object) -> None:
    """Write the report about the rows that were published, if one is wanted."""
    done = [message for message in messages if isinstance(message, Written)]
    rows, duplicates = sum(m.rows for m in done), sum(m.duplicates for m in done)
    if target.report:
        fields = {
            "rows": rows,
            "stored": rows - duplicates,
            "duplicates": duplicates,
            "bytes": sum(m.bytes for m in done),
        }
        path = Path(target.report)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text(json.dumps({**fields, "partitions": len(done), "id_prefix": target.prefix, **more}))
        partial.replace(path)


class FabricWriter(DataSourceArrowWriter):
    """A batch write. Made where the query is planned and sent to the tasks, so all of them know the same prefix."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        with explained():
            self._target = target_of(options)
            self._layout = layout_of(schema, self._target)
        if overwrite:
            raise SourceError("a journal cannot be overwritten", "write with mode('append')")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        assert context is not None
        return publish(iterator, self._target, self._layout, self._target.prefix, context.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _tell(self._target, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was published stays: a journal does not forget. With the same idPrefix the next try adds the rest."""
        _tell(self._target, messages, aborted=True)


class FabricStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write. Ids come from the query, the batch, the partition and the row: a batch that is run again after
    a crash adds nothing twice."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        with explained():
            self._named = any(name.lower() == "idprefix" for name in options)
            self._target = target_of(options)
            self._layout = layout_of(schema, self._target)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        assert context is not None
        query = self._target.prefix if self._named else context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        return publish(iterator, self._target, self._layout, f"{query}/{batch}", context.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        _tell(self._target, messages, batch=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        _tell(self._target, messages, batch=batchId, aborted=True)
