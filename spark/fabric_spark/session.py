"""A Spark session that is set up for the fabric, with whatever Java there is."""

import os
import sys
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import SparkSession

from fabric_spark.errors import SourceError
from fabric_spark.java import ensure_java
from fabric_spark.source import FabricSource

_NONE: Final[Mapping[str, Any]] = {}
CONF: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
LOCAL_CONF: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
}
_CHECK: Final = """
def check(_):
    import importlib, sys
    missing = []
    for name in ("fabric", "fabric_spark", "lmdb", "msgpack", "pyarrow", "numpy"):
        try:
            importlib.import_module(name)
        except Exception as error:
            missing.append(f"{name} ({error})")
    yield sys.executable, ", ".join(missing)
"""


def session(
    app: str = "fabric", master: str | None = None, conf: Mapping[str, Any] = _NONE, *, check: bool | None = None
) -> SparkSession:
    """A session with the format `fabric`. `conf` is added to ours, and wins.

    The master is that of the environment (spark-submit) or else all cores of this machine. On a cluster the executors
    are asked once whether they have what they need, unless `check` is false.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not is_submitted:
        ensure_java()
    builder: Any = SparkSession.builder.appName(app)
    settings = dict(CONF)
    if master is not None or not is_submitted:
        master = master or "local[*]"
        builder = builder.master(master)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            settings |= LOCAL_CONF
    for name, value in (settings | dict(conf)).items():
        builder = builder.config(name, str(value).lower() if isinstance(value, bool) else str(value))
    spark: SparkSession = builder.getOrCreate()
    register(spark)
    is_local = str(spark.sparkContext.master).startswith("local")
    if check or (check is None and not is_local):
        check_executors(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make `format("fabric")` known to a session that was made elsewhere."""
    spark.dataSource.register(FabricSource)


def check_executors(spark: SparkSession) -> None:
    """Ask executors for the packages that reading needs, and say what is missing where.

    The function is made from text, since a function of this package would need this package on the executor.
    """
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(_CHECK, space)
    context = spark.sparkContext
    slots = max(2, context.defaultParallelism)
    for python, missing in context.parallelize(range(slots), slots).mapPartitions(space["check"]).distinct().collect():
        if missing:
            raise SourceError(
                f"an executor ({python}) lacks {missing}",
                "install 'fabricmq[spark]' in the Python of every executor, and set PYSPARK_PYTHON to it;"
                " or ship an archive of the environment with --archives",
            )
