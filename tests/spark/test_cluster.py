"""A Spark cluster of a master and two workers on this machine reads a snapshot. Six JVMs, so only on request."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.patience import PATIENCE_S

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'fabricmq[spark]'")

import pyspark

from fabric.snapshot import create
from fabric_spark import SourceError
from fabric_spark.java import ensure_java
from tests.spark.sample import Author
from tests.test_house import SOURCE_ROOTS

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.skipif("FABRIC_CLUSTER" not in os.environ, reason="starts six JVMs; run it with make cluster"),
]

SCRIPT: Final = """
import os, sys
import fabric_spark

conf = {
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": False,
    "spark.executor.memory": "512m", "spark.cores.max": 2, "spark.executor.cores": 1,
    "spark.scheduler.minRegisteredResourcesRatio": 1.0, "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
}
spark = fabric_spark.session("cluster", sys.argv[1], conf)
frame = spark.read.format("fabric").option("rowsPerPartition", 500).load(sys.argv[2])
rows = frame.selectExpr("count(*)", "count(distinct seq)", "sum(payload_len)").collect()[0]
busy = spark.sparkContext.parallelize(range(20), 20).map(lambda _: os.environ.get("SPARK_EXECUTOR_DIRS")).distinct()
print("RESULT", *rows, busy.count())
spark.stop()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a master with two workers of one core each."""
    try:
        ensure_java()
    except SourceError as error:
        pytest.skip(str(error))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    launcher = Path(pyspark.__path__[0]) / "bin" / "spark-class"
    deploy = "org.apache.spark.deploy"
    common = ["--host", "127.0.0.1", "--webui-port", "0"]
    worker = [f"{deploy}.worker.Worker", *common, "--cores", "1", "--memory", "768m"]
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("cluster")
        commands = [[f"{deploy}.master.Master", *common, "--port", str(port)]]
        commands += [[*worker, "--work-dir", str(folder / f"worker-{i}"), url] for i in range(2)]
        for i, command in enumerate(commands):
            log = stack.enter_context((folder / f"{i}.log").open("w"))
            process = subprocess.Popen([launcher, *command], env=_environment(), stdout=log, stderr=log)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
        deadline = time.monotonic() + PATIENCE_S
        while (folder / "0.log").read_text().count("Registering worker") < 2:
            assert time.monotonic() < deadline, (folder / "0.log").read_text()[-2000:]
            time.sleep(0.2)
        yield url


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(map(str, SOURCE_ROOTS)),
    }


def test_two_workers_read_a_snapshot(cluster: str, tmp_path: Path) -> None:
    author = Author(tmp_path / "journal").write(blocks=14, messages=400)
    create(author.path, tmp_path / "snapshot", shard_bytes=1 << 16)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, cluster, str(tmp_path / "snapshot")],
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    result = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert result, done.stderr[-3000:]
    rows, seqs, size, workers = map(int, result[0])
    assert (rows, seqs, size) == (5600, 5600, sum(len(message.payload) for message in author.sent))
    assert workers == 2
