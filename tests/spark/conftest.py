"""One Spark session for all tests of Spark: its start takes longer than all the tests."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF = {
    "spark.ui.enabled": False,
    "spark.sql.shuffle.partitions": 2,
    "spark.default.parallelism": 2,
    "spark.driver.memory": "1g",
    "spark.python.worker.reuse": True,
}


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'fabricmq[spark]'")
    from fabric_spark import SourceError, session

    try:
        started = session("fabric tests", "local[2]", CONF)
    except SourceError as error:
        pytest.skip(str(error))
    started.sparkContext.setLogLevel("ERROR")
    yield started
    started.stop()
