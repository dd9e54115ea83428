"""Spark on the journal: `format("fabric")` over snapshots and live journals, and a session that is set up for it.

Blocks are columnar already, so reading them is mapping their arrays; `arrow` has the heart of it. The way of a query:
`source` takes it in, `options` and `columns` say what is wanted, `catalog` finds what there is, `plan` cuts it into
tasks, `rows` reads blocks and proves them, `arrow` and `events` make batches. `batch` and `stream` are the two doors.
"""

from fabric_spark.errors import SourceError
from fabric_spark.session import check_executors, register, session
from fabric_spark.source import FabricSource

__all__ = ["FabricSource", "SourceError", "check_executors", "register", "session"]
