"""Every scenario, on the router alone and through a real hub."""

from pathlib import Path
from typing import Final

import pytest

from tests.scenarios.runner import BareCore, Play, RealHub, Stage

FILES: Final = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("where", ["bare", "real"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path, where: str, tmp_path: Path) -> None:
    stage: Stage = BareCore() if where == "bare" else RealHub(tmp_path)
    try:
        Play(stage).run(path.read_text(encoding="utf-8"))
    finally:
        stage.close()


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 15


def test_what_does_not_follow_is_noticed() -> None:
    play = Play(BareCore())
    with pytest.raises(AssertionError, match=r"line 4: bob gets two"):
        play.run("ann connects\nbob connects\nbob subscribes a\nbob gets two")
    with pytest.raises(AssertionError, match="nothing"):
        play.run("ann publishes a one\nbob gets nothing")
    with pytest.raises(AssertionError, match="is not an error"):
        play.run("ann publishes a one !TOPIC_FULL")
    with pytest.raises(AssertionError, match="nobody knows"):
        play.run("ann dances")
