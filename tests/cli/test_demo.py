"""The demo is run whole, and a lost message makes it fail."""

import io

from rich.console import Console

from fabric.demo.run import Figures, Group, GroupFigures, Verdict
from fabric.demo.view import LiveView, PlainView, sparkline, summary
from tests.cli.conftest import Fabric


def test_the_demo_loses_nothing(fabric: Fabric) -> None:
    result = fabric("demo", "--seconds", "2s", "--rate", "500")
    assert result.exit_code == 0, result.output
    assert "kill -9" in result.stdout
    assert "Nothing was lost." in result.stdout
    assert "0 messages stored twice" in result.stdout
    assert "failed" not in result.stdout, "verdicts that died with the hub are no failure"


def test_a_group_knows_what_it_has_not_seen() -> None:
    group = Group()
    group.saw("ada", [(0, 1), (1, 2)])
    group.saw("bob", [(1, 2), (3, 4)])
    assert group.figures() == GroupFigures(seen=3, again=1, by_consumer={"ada": 2, "bob": 2})
    assert group.missing(4) == 1
    assert group.stored_twice == 0
    group.saw("bob", [(3, 9)])  # the same message under another seq
    assert group.stored_twice == 1


def verdict(lost: int = 0, stored_twice: int = 0, confirmed: int = 10) -> Verdict:
    groups = {"billing": GroupFigures(10 - lost, 2, {"ada": 6, "bob": 6})}
    return Verdict(confirmed, groups, {"billing": lost}, stored_twice, [5], [0.25], 3.0)


def test_a_loss_is_a_failure() -> None:
    assert verdict().passed
    assert not verdict(lost=1).passed
    assert not verdict(stored_twice=1).passed
    assert not verdict(confirmed=0).passed
    assert "Nothing was lost. (3.0 s)" in summary(verdict())
    assert any("SOMETHING WAS LOST" in line for line in summary(verdict(lost=1)))
    assert any("2 came again" in line for line in summary(verdict()))


def test_a_sparkline_shows_the_gap() -> None:
    assert sparkline([]) == ""
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([7.0, 0.0, 3.5]) == "█▁▅"


FIGURES = Figures(1.5, "DOWN", 30, 20, {"billing": GroupFigures(20, 1, {"ada": 11, "bob": 10})})


def test_the_live_view_shows_what_was_counted() -> None:
    screen = io.StringIO()
    with LiveView(Console(file=screen, force_terminal=True, width=120)) as view:
        view.show(FIGURES._replace(elapsed_s=1.0, confirmed=10))
        view.show(FIGURES)
        view.tell("kill -9 1: gone")
    drawn = screen.getvalue()
    for words in ("hub DOWN", "10 waiting for the disk", "ada 11  bob 10", "kill -9 1: gone"):
        assert words in drawn


def test_the_plain_view_is_a_line_a_second() -> None:
    lines: list[str] = []
    view = PlainView(lines.append)
    for elapsed_s in (0.1, 0.2, 1.2):
        view.show(FIGURES._replace(elapsed_s=elapsed_s))
    view.tell("done")
    assert lines == [
        "  0.1 s  hub DOWN  confirmed 20  billing 20",
        "  1.2 s  hub DOWN  confirmed 20  billing 20",
        "  1.2 s  * done",
    ]
