"""`format("fabric")`: the class that Spark calls to read and to write."""

import sys

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from fabric_spark.batch import FabricReader, PushingReader
from fabric_spark.columns import arrow_schema, spark_schema
from fabric_spark.errors import explained
from fabric_spark.options import parse
from fabric_spark.stream import FabricStreamReader


class FabricSource(DataSource):
    """The journal of a hub as a table: messages, delivery events or groups."""

    @classmethod
    def name(cls) -> str:
        return "fabric"

    def schema(self) -> StructType:
        with explained():
            return spark_schema(parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        with explained():
            options = parse(self.options)
            make = PushingReader if options.pushdown and _is_pushing() else FabricReader
            return make(options, arrow_schema(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        with explained():
            options = parse(self.options)
            return FabricStreamReader(options, arrow_schema(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from fabric_spark.writer import FabricWriter  # late: a reader needs no client

        return FabricWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        from fabric_spark.writer import FabricStreamWriter

        return FabricStreamWriter(self.options, schema, overwrite)


def _is_pushing() -> bool:
    """Whether Spark asks for a reader in order to push filters down to it.

    With spark.sql.python.filterPushdown.enabled off, a reader that takes filters fails the query, and this setting
    cannot be read here. But Spark pushes filters from a worker process of its own, and that can be seen here.
    """
    frame = sys._getframe(2)
    return frame.f_code.co_filename.endswith("data_source_pushdown_filters.py")
