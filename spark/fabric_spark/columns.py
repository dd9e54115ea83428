"""The tables' columns: their names, and their types in Spark and in Arrow, which must agree to the letter."""

from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fabric_spark.errors import SourceError
from fabric_spark.options import Options


class Column(NamedTuple):
    spark: DataType
    arrow: pa.DataType
    is_default: bool = True


_TIME: Final = pa.timestamp("us", tz="UTC")
_LONG: Final = Column(LongType(), pa.int64())
_INT: Final = Column(IntegerType(), pa.int32())
_TEXT: Final = Column(StringType(), pa.string())
_BYTES: Final = Column(BinaryType(), pa.binary())
_MOMENT: Final = Column(TimestampType(), _TIME)
_TRUTH: Final = Column(BooleanType(), pa.bool_())


def _struct(**fields: Column) -> Column:
    spark = StructType([StructField(name, column.spark) for name, column in fields.items()])
    return Column(spark, pa.struct([pa.field(name, column.arrow) for name, column in fields.items()]))


def _list(of: Column) -> Column:
    return Column(ArrayType(of.spark), pa.list_(of.arrow))


ORIGINS: Final = ("origin_journal", "origin_epoch", "origin_seq", "origin_ts")

HEADERS_MAP: Final = Column(MapType(StringType(), BinaryType()), pa.map_(pa.string(), pa.binary()))
HEADERS_RAW: Final = _list(_struct(name=_TEXT, value=_BYTES, text=_TRUTH))

TABLES: Final[dict[str, dict[str, Column]]] = {
    "journal": {
        "hub": _TEXT._replace(is_default=False),
        "seq": _LONG,
        "topic": _TEXT,
        "ts": _MOMENT,
        "key": _BYTES,
        "headers": HEADERS_MAP,
        "payload": _BYTES,
        "payload_len": _INT,
        "id": _BYTES._replace(is_default=False),
        "priority": _INT._replace(is_default=False),
        "expires": _MOMENT._replace(is_default=False),
        "origin_journal": _TEXT._replace(is_default=False),
        "origin_epoch": _LONG._replace(is_default=False),
        "origin_seq": _LONG._replace(is_default=False),
        "origin_ts": _MOMENT._replace(is_default=False),
    },
    "events": {
        "hub": _TEXT._replace(is_default=False),
        "number": _LONG,
        "ts": _MOMENT,
        "kind": _TEXT,
        "group": _TEXT,
        "client": _TEXT,
        "attempt": _INT,
        "first_seq": _LONG,
        "last_seq": _LONG,
    },
    "groups": {
        "hub": _TEXT._replace(is_default=False),
        "group": _TEXT,
        "patterns": _list(_TEXT),
        "settings": _TEXT,
        "cursor": _LONG,
        "floor": _LONG,
        "pending": _LONG,
        "open": _list(_struct(first=_LONG, last=_LONG)),
        "paused": _TRUTH,
        "failures": _list(_struct(first=_LONG, last=_LONG, failures=_INT, due=_MOMENT, reason=_TEXT)),
        "last_seq": _LONG,
        "ts": _MOMENT,
    },
}


def _table(options: Options) -> dict[str, Column]:
    table = TABLES[options.stream]
    if options.headers == "raw" and options.stream == "journal":
        table = {**table, "headers": HEADERS_RAW}
    return table


def spark_schema(options: Options) -> StructType:
    """The schema that a read has when the user gives none."""
    table = _table(options)
    names = options.columns
    if names is None:
        names = tuple(n for n, column in table.items() if column.is_default or (n == "hub" and options.is_several))
    for name in names:
        if name not in table:
            raise SourceError(f"stream {options.stream} has no column {name!r}", f"it has {', '.join(table)}")
    if len(set(names)) < len(names):
        raise SourceError(f"option columns names a column twice: {', '.join(names)}", "name each once")
    return StructType([StructField(name, table[name].spark) for name in names])


def arrow_schema(schema: StructType, options: Options) -> pa.Schema:
    """The Arrow schema for what Spark wants to get, which is ours or the user's own choice of columns."""
    table = _table(options)
    fields = []
    for field in schema.fields:
        column = table.get(field.name)
        if column is None:
            raise SourceError(f"stream {options.stream} has no column {field.name!r}", f"it has {', '.join(table)}")
        if field.dataType != column.spark:
            raise SourceError(
                f"column {field.name} is {column.spark.simpleString()}, not {field.dataType.simpleString()}",
                "ask for it with its own type and cast it afterwards",
            )
        fields.append(pa.field(field.name, column.arrow, field.nullable))
    return pa.schema(fields)
