"""The view: lines of any width, names from strangers, and no work for rows that are not visible."""

import io
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from fabric.top import columns
from fabric.top.columns import compact, rate, size, span
from fabric.top.document import fields
from fabric.top.model import GROUPS, PAGES, SESSIONS, TOPICS, Change, Model, Pulse
from fabric.top.state import HELP, State
from fabric.top.view import Link, printed, screen

URL = "tcp://127.0.0.1:7171"
GROUP: dict[str, Any] = {
    "ready": 12_345, "ready_exact": True, "in_flight": 8_192, "retrying": 3, "dead": 7, "oldest_us": 40_000_000,
    "drain_s": 95.0, "members": 2, "paused": False,
}  # fmt: skip


def model_of(*names: str, page: str = GROUPS, **more: Any) -> Model:
    model = Model()
    for turn in (0, 1):
        rows = [
            Change(name, name, {**GROUP, **more}, {"delivered": 5_000 * turn, "acked": 4_000 * turn, "arrived": turn})
            for name in names
        ]
        hub = {"health": "ok", "ready": 12_345, "dead": 7, "started_us": 10_000_000, "commit_p50_us": 1_200}
        counters = {"messages_in": 300.0 * turn, "messages_out": 600.0 * turn, "acked": 500.0 * turn}
        model.merge(Pulse(hub, counters, 100_000_000 + turn * 1_000_000, {page: rows}, is_whole=True), float(turn))
    return model


def lines_of(shown: RenderableType, width: int, height: int = 500) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, highlight=False, markup=False, emoji=False)
    console.print(shown)
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b" not in output
    return [line.rstrip() for line in output.splitlines()]


def shown(model: Model, state: State | None = None, width: int = 80, height: int = 24, **link: Any) -> list[str]:
    lines = lines_of(screen(model, state or State(), Link(URL, **link), 1.0, width, height), width)
    assert len(lines) == height
    assert max(map(cell_len, lines)) <= width
    return lines


def test_a_group_with_all_its_figures_fits_80_columns() -> None:
    lines = shown(model_of("billing"), clock="12:00:00")
    assert lines[0] == f"fabric top  {URL}  ok  up 1m31s  12:00:00"
    assert lines[1] == "in 300/s  out 600/s  acked 500/s  commit p50 1.2 ms"
    assert lines[2] == "ready 12.3k  dead 7"
    assert lines[4].split() == [
        "GROUP",
        "IN/S",
        "OUT/S",
        "ACK/S",
        "READY",
        "OLDEST",
        "FLIGHT",
        "RETRY",
        "DEAD",
        "DRAIN",
    ]
    assert lines[5].split() == ["billing", "1.0", "5,000", "4,000", "12.3k", "1m1s", "8,192", "3", "7", "1m35s"]
    assert lines[-1].startswith("q quit")


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("width", [10, 20, 30, 40, 60, 80, 200])
@pytest.mark.parametrize("height", [4, 8, 24])
def test_every_line_fits_and_ranks_decide(page: str, width: int, height: int) -> None:
    model = model_of("short", "a" * 200, "名前" * 50, page=page)
    for state in (State(page), State(page, wanted="x" * 100)):
        shown(model, state, width, height)
        state.press("enter", state.ordered(model, 1.0))
        shown(model, state, width, height)
        state.press("?", [])
        shown(model, state, width, height)
    chosen = columns.fitting(page, width)
    left = [column for column in columns.BY_PAGE[page] if column not in chosen]
    assert chosen[0] is columns.BY_PAGE[page][0]
    assert not left or min(column.rank for column in left) >= max(column.rank for column in chosen)
    if width >= 40:
        titles = lines_of(printed(model, State(page), Link(URL), 1.0, width), width)
        assert any(all(column.title in line for column in chosen) for line in titles)


def test_a_narrow_view_keeps_the_most_important_columns() -> None:
    lines = shown(model_of("billing"), width=60)
    assert lines[4].split() == ["GROUP", "OUT/S", "ACK/S", "READY", "OLDEST", "DEAD", "DRAIN"]
    assert shown(model_of("billing"), width=40)[4].split() == ["GROUP", "READY", "OLDEST", "DEAD"]


def test_control_characters_in_names_do_not_reach_the_terminal() -> None:
    name = "evil\x1b[2J\x1b]0;title\x07\r\n\u202e"
    model = model_of(name, page=SESSIONS, client=name)
    state = State(SESSIONS)
    assert "evil\\x1b[2J" in shown(model, state)[5]
    state.press("enter", state.ordered(model, 1.0))
    text = "\n".join(shown(model, state))
    assert "\\x1b[2J" in text
    assert "\u202e" not in text
    model.hub = {**model.hub, "health": "bad\x1b[2J"}
    assert "bad\\x1b[2J" in shown(model, why="x\x1b")[0]


def test_a_hub_without_anything_and_a_hub_that_has_not_answered() -> None:
    assert "waiting for the hub's first answer" in shown(Model())[5]
    assert "there are no groups" in shown(model_of())[5]
    assert "no name has 'zzz' in it" in shown(model_of("a"), State(wanted="zzz"))[5]


def test_only_visible_rows_are_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(*(f"group-{i:04}" for i in range(1_000)))
    rendered = 0

    def counted(value: Any) -> str:
        nonlocal rendered
        rendered += 1
        return compact(value)

    first = columns.BY_PAGE[GROUPS]
    changed = [column._replace(shown=counted) if column.key == "dead" else column for column in first]
    monkeypatch.setitem(columns.BY_PAGE, GROUPS, changed)
    state = State()
    assert shown(model, state)[5].startswith("group-0000")
    state.press("end", state.ordered(model, 1.0))
    lines = shown(model, state)
    assert lines[-2].startswith("group-0999")
    assert rendered == 2 * 18
    state.press("pgup", state.ordered(model, 1.0))
    state.press("pgup", state.ordered(model, 1.0))
    assert shown(model, state)[5].startswith("group-0963")
    state.press("home", state.ordered(model, 1.0))
    assert shown(model, state)[5].startswith("group-0000")


def test_a_hub_that_does_not_answer() -> None:
    assert "NO ANSWER for 12s: the client tries again" in shown(model_of("a"), is_up=False, down_s=12.0)[0]
    assert "NO ANSWER for 2s: no space" in shown(model_of("a"), is_up=False, down_s=2.0, why="no space")[0]
    assert "Ctrl-C quits" in shown(model_of("a"), has_keys=False)[-1]


def test_a_number_that_is_still_counted_is_marked() -> None:
    model = model_of("a", ready_exact=False)
    assert "≤12.3k" in shown(model)[5]
    assert shown(model)[5].split()[1] == "-"  # no rate from it
    state = State()
    state.press("d", state.ordered(model, 1.0))
    assert any("at most 12,345" in line for line in shown(model, state))


def test_a_figure_of_the_hub_about_the_past_is_not_shown_for_ever() -> None:
    model = model_of("a")
    later = lines_of(screen(model, State(), Link(URL), 1.0 + columns.STALE_S, 80, 24), 80)[5].split()
    assert later[-1] == "-"
    assert later[5] == "1m11s"  # an age grows by itself
    assert "0s" in shown(model_of("a", ready=0, drain_s=None))[5].split()[-1]


def test_help_and_details_scroll() -> None:
    model, state = model_of("billing"), State()
    state.press("?", [])
    assert HELP[0][1] in "\n".join(shown(model, state, height=12))
    state.press("pgdn", [])
    state.press("pgdn", [])
    state.press("pgdn", [])
    lines = shown(model, state, height=12)
    assert columns.BY_PAGE[GROUPS][-1].meaning in lines[-2]
    state.press("x", [])
    assert shown(model, state, height=12)[5].startswith("billing")


def test_json_has_all_pages_and_plain_values() -> None:
    model = model_of("b", "a")
    found = fields(model, State(sort="group"), URL, 1.0)
    assert [row["out_per_s"] for row in found["groups"]] == [5_000.0, 5_000.0]
    assert [row["ready"] for row in found["groups"]] == [12_345, 12_345]
    assert (found["topics"], found["sessions"]) == ([], [])
    assert found["hub"]["in_per_s"] == 300.0
    assert fields(model, State(TOPICS, wanted="b"), URL, 1.0)["groups"][0]["acked_per_s"] == 4_000.0
    assert len(fields(model, State(TOPICS, wanted="b"), URL, 1.0)["groups"]) == 1


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "-"), (0, "0"), (9_999, "9,999"), (9_999.6, "10.0k"), (12_345, "12.3k"), (123_456, "123k"),
     (999_999, "1.00M"), (99_960_000, "100M"), (1.5e9, "1.50G"), (10**19, "1e+04")],
)  # fmt: skip
def test_numbers_are_short(number: float | None, text: str) -> None:
    assert compact(number) == text


def test_other_values_are_short() -> None:
    assert [rate(value) for value in (None, 0.0, 0.04, 0.3, 9.94, 9.96, 42.0)] == [
        "-", "0", "0.0", "0.3", "9.9", "10", "42",
    ]  # fmt: skip
    assert [size(value) for value in (None, 0, 999, 1_023, 10 << 20, 5 << 40)] == [
        "-", "0", "999", "1.0K", "10.0M", "5.0T",
    ]  # fmt: skip
    assert [span(value) for value in (None, 0.1, 0.7, 59.7, 3_700, 9.5 * 86_400, 1e7, 1e12)] == [
        "-", "0s", "1s", "1m", "1h1m", "9d12h", "116d", ">9999d",
    ]  # fmt: skip
    assert max(len(span(10.0**power)) for power in range(-3, 15)) <= 6
