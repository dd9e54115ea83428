"""The example of docs/spark.md does what it says, against a real hub; and so does the Python of the page itself."""

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'fabricmq[spark]'")

from tests.hub.hostile import HubProcess
from tests.test_house import FENCE, ROOT

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


def test_the_quickstart_and_the_page(
    spark: "SparkSession",
    hub: HubProcess,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One test, since the page reads what the script has published."""
    monkeypatch.setenv("FABRIC_URL", hub.url)
    monkeypatch.chdir(folder)
    script = str(ROOT / "examples" / "spark_quickstart.py")
    monkeypatch.setattr("sys.argv", [script, "journal", "snapshots"])
    runpy.run_path(script, run_name="__main__")
    assert "orders.de" in capsys.readouterr().out
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    for code in FENCE.findall(page):
        there = code.replace('"fabric-data"', f'"{folder}/journal"')  # Spark's workers are in another directory
        for name in ("snapshots", "lake", "lake.checkpoint"):
            there = there.replace(f'"{name}"', f'"{folder}/{name}"')
        exec(compile(there, "docs/spark.md", "exec"), {"__name__": "__main__"})
