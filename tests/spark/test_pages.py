"""The pages about Spark are run: their commands and their Python, in order, on a hub with some traffic."""

import re
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from click.testing import CliRunner

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'fabricmq[spark]'")

from pyspark.errors import PySparkException

import fabric_client
from fabric.cli import main
from fabric.cli.support.hub_process import HubProcess
from tests import pages
from tests.test_house import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")
NAMES: Final = ("spark.md", "spark-jobs.md", "spark-clusters.md")
CLUSTER: Final = re.compile(r"s3://|__main__ import main")  # Python that is for another machine
TODAY: Final = "2026-11-16"  # as the pages write it


@pytest.fixture
def place(spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pages.Place]:
    monkeypatch.setattr(type(spark), "stop", lambda self: None)  # all share one session
    with HubProcess(tmp_path / "fabric-data") as hub:
        trying = pages.Place(tmp_path, hub.url)
        for name, value in trying.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        traffic(hub.url)
        yield trying
        trying.close()


def traffic(url: str) -> None:
    """What the pages' questions are about: orders with keys and headers, a group, delivery events, a dead letter."""
    with fabric_client.connect(url) as fab:
        fab.admin.hub.update(events=True)
        fab.admin.groups.create("mail", "mails.#")
        for number in range(20):
            headers = {"order-id": str(number % 19), "user": f"u{number % 3}"}
            fab.publish("orders.new", {"id": number, "euros": 9.5}, key=f"c-{100 + number % 4}", headers=headers)
        for message in fab.consume("orders.#", group="billing", count=20):
            message.reject("no money") if message.data["id"] == 7 else message.ack()


@pytest.mark.parametrize("name", NAMES)
def test_a_page_can_be_followed(name: str, place: pages.Place) -> None:
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    for step in pages.steps(ROOT / "docs" / name):
        text = place.here(step.text).replace(TODAY, today)
        if step.kind == "shell" and text.startswith("fabric spark "):
            done = CliRunner().invoke(main, shlex.split(text)[1:])  # here, with the session that is there
            assert done.exit_code == 0, f"{text}\n{done.output}"
        elif step.kind == "shell":
            place.run(step)
        elif not CLUSTER.search(text):
            for folder in ("fabric-data", "snapshots", "lake", "lake.checkpoint"):
                text = text.replace(f'"{folder}"', f'"{place.folder}/{folder}"')  # Spark's workers are elsewhere
            run_block(text, name)


def run_block(text: str, name: str) -> None:
    """Run a block of Python. Spark gives its Python worker ten seconds to start, which a busy machine may need."""
    for attempts_left in (2, 1, 0):
        try:
            exec(compile(text, name, "exec"), {"__name__": "__main__"})
            return
        except PySparkException as error:
            if "failed to connect back" not in str(error) or not attempts_left:
                raise
