"""Spark on the journal: `format("fabric")` over snapshots and live journals, and a session that is set up for it.

Blocks have columns already, so that reading them is a copy of arrays (`arrow`). The way of a query: Spark calls
`source`; `options` and `columns` parse what is wanted; `catalog` lists snapshots and journals; `plan` divides the work
into tasks; `rows` reads blocks and checks them; `arrow` and `events` make batches. `batch` and `stream` read.
"""

from fabric_spark.errors import SourceError
from fabric_spark.session import check_executors, register, session
from fabric_spark.source import FabricSource

__all__ = ["FabricSource", "SourceError", "check_executors", "register", "session"]
