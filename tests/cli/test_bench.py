"""The benchmark with tiny counts: every part runs and leaves no files behind. No figure is checked."""

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from fabric.bench import lists, recording, viewing
from fabric.bench.crew import Line, Task, run
from fabric.bench.figures import JOURNALED, Figure, median_figure, percentile
from fabric.bench.floods import FLOODS
from fabric.bench.report import line
from fabric.bench.shares import FLOODING
from fabric.cli.commands.bench import GROWTH, PARTS, SHORT, chosen
from fabric_protocol.errors import FabricError
from tests.cli.conftest import Fabric


def measured(fabric: Fabric, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    result = fabric("bench", *arguments, "--count", "400", "--json", "--data", str(folder))
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["schema"] == "fabric.bench.v1"
    assert document["machine"]["cores"] >= 1
    assert list(folder.iterdir()) == []  # no journal is left behind
    assert multiprocessing.active_children() == []
    figures: list[dict[str, Any]] = document["figures"]
    assert all(figure["durability"] and figure["unit"] for figure in figures)
    return figures


def test_the_short_parts_run(fabric: Fabric, tmp_path: Path) -> None:
    figures = measured(fabric, tmp_path)
    assert {figure["part"] for figure in figures} == set(SHORT)
    assert all(figure["value"] > 0 for figure in figures if figure["unit"] != "µs")  # CPU of a tiny run may be 0 ticks


def test_the_parts_about_growth_run(fabric: Fabric, tmp_path: Path) -> None:
    figures = measured(fabric, tmp_path, "growth", "--queued", "3000")
    assert {figure["part"] for figure in figures} == set(GROWTH)
    assert all(figure["value"] > 0 for figure in figures)


def test_the_part_about_delays_runs(fabric: Fabric, tmp_path: Path) -> None:
    figures = measured(fabric, tmp_path, "delayed", "--queued", "400")
    assert {figure["unit"] for figure in figures} == {"ms", "msg/s", "MiB"}
    assert len(figures) == 8


def test_the_part_about_ids_runs(fabric: Fabric, tmp_path: Path) -> None:
    figures = measured(fabric, tmp_path, "ids", "--queued", "2500")
    assert {figure["unit"] for figure in figures} == {"msg/s", "%", "MiB", "s"}
    assert all(figure["value"] > 0 for figure in figures)


def test_the_part_about_start_runs(fabric: Fabric, tmp_path: Path) -> None:
    figures = measured(fabric, tmp_path, "start")
    assert [figure["unit"] for figure in figures] == ["s"] * 4
    assert all(figure["value"] > 0 for figure in figures)
    ready, back = (figure["runs"] for figure in figures[1:3])
    assert all(first <= later for first, later in zip(ready, back, strict=True))


def test_the_part_about_shares_runs(fabric: Fabric, tmp_path: Path) -> None:
    figures = measured(fabric, tmp_path, "shares", "--seconds", "300ms")
    beside = [*["ms"] * 3, "x"] * (len(FLOODING) + len(FLOODS))
    assert [figure["unit"] for figure in figures] == [*["ms"] * 3, *beside]
    assert all(figure["value"] > 0 for figure in figures)


def test_the_part_about_lists_runs(fabric: Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"AREAS": 4, "KINDS": 5, "GROUPS": 120, "WITH_CONSUMERS": 3, "WITH_DEAD_LETTERS": 2, "LISTS_MIN": 2}
    for name, value in {**small, "COMMANDS_MIN": 1}.items():
        monkeypatch.setattr(lists, name, value)
    figures = measured(fabric, tmp_path, "info", "--queued", "3000")
    rows = {figure["note"].split(" rows")[0] for figure in figures if figure["what"].endswith("p50")}
    assert rows == {"120", "22"}  # topics of the messages, and of the dead letters of two groups
    exact = [figure for figure in figures if "exact after" in figure["what"]]
    assert [figure["unit"] for figure in exact] == ["s"] * 4
    assert len([figure for figure in figures if figure["what"].startswith("fabric ")]) == 2 * len(lists.COMMANDS)


def test_the_part_about_pulses_runs(fabric: Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"GROUPS": 20, "CHANGING": (5, 20), "PAIRS_MIN": 1}.items():
        monkeypatch.setattr(viewing, name, value)
    figures = measured(fabric, tmp_path, "pulse", "--seconds", "100ms")
    assert [figure["unit"] for figure in figures] == ["%", "ms"] * 2
    assert all(figure["value"] > 0 for figure in figures if figure["unit"] == "ms")


def test_the_part_about_events_runs(fabric: Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "PAIRS_MIN", 2)
    figures = measured(fabric, tmp_path, "events")
    assert [figure["unit"] for figure in figures] == ["µs", "µs", "%", "B"] * len(recording.LOADS)
    assert figures[11]["value"] > figures[3]["value"] >= 0  # a commit of one message has events of its own


def test_lines_for_people_and_a_file(fabric: Fabric, tmp_path: Path) -> None:
    place = tmp_path / "saved.json"
    result = fabric("bench", "publish", "--count", "300", "--repeats", "3", "--save", str(place))
    assert result.exit_code == 0, result.output
    assert JOURNALED in result.stdout
    assert "median of 3" in result.stdout
    assert len(json.loads(place.read_text())["figures"][0]["runs"]) == 3


def test_parts_are_chosen_once_and_in_order() -> None:
    assert chosen(()) == list(SHORT)
    assert chosen(("all",)) == list(PARTS)
    assert chosen(("growth", "e2e", "topics")) == ["e2e", *GROWTH]


def test_a_figure_tells_its_doubts() -> None:
    steady = median_figure("e2e", "speed", "msg/s", JOURNALED, [3.0, 1000.0, 500.0])
    assert steady.value == 500.0
    assert "median of 3, 3.00 to 1,000" in line(steady)
    assert "DISTURBED" not in line(steady)
    disturbed = Figure("e2e", "speed", 1.0, "msg/s", "none at all", foreign=0.5)
    assert "DISTURBED: other programs took 50% of the CPU" in line(disturbed)
    assert "none at all" in line(disturbed)


def test_percentiles() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
    assert percentile([1.0], 0.99) == 1.0


def fails(parent: Line) -> dict[str, Any]:
    raise FabricError("on purpose")


def tells(parent: Line) -> dict[str, Any]:
    parent.ready()
    return {"pid": os.getpid(), "cpu_before_s": 0.0}


def test_workers_run_in_processes_of_their_own() -> None:
    done = run([Task(tells, {}), Task(tells, {})])
    assert len({os.getpid(), *(result["pid"] for result in done.results)}) == 3


def test_a_worker_that_fails_is_reported_and_no_process_is_left() -> None:
    with pytest.raises(FabricError, match="on purpose"):
        run([Task(tells, {}), Task(fails, {})])
    assert multiprocessing.active_children() == []
