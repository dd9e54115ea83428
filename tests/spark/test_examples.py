"""The example of docs/spark.md runs against a real hub."""

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'fabricmq[spark]'")

from tests.hub.hostile import HubProcess
from tests.test_house import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quickstart")


@pytest.fixture(scope="module")
def hub(folder: Path) -> Iterator[HubProcess]:
    process = HubProcess(folder)
    yield process
    process.stop()


def test_the_quickstart(
    spark: "SparkSession",
    hub: HubProcess,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FABRIC_URL", hub.url)
    monkeypatch.chdir(folder)
    script = str(ROOT / "examples" / "spark_quickstart.py")
    monkeypatch.setattr("sys.argv", [script, "journal", "snapshots"])
    runpy.run_path(script, run_name="__main__")
    assert "orders.de" in capsys.readouterr().out
