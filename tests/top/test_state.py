"""Keys: what each of them changes, and how bytes become keys."""

from fabric.top.keyboard import Keys
from fabric.top.model import GROUPS, PAGES, SESSIONS, TOPICS, Change, Model, Pulse, Row
from fabric.top.state import FILTER_MAX, State

READY = {"billing": 5, "audit": 50, "orders": None, "Mails": 7}


def model_of(page: str = GROUPS) -> Model:
    model = Model()
    rows = [Change(name, name, {"ready": ready, "ready_exact": True}, {}) for name, ready in READY.items()]
    model.merge(Pulse({}, {}, 1, {page: rows}, is_whole=True), 0.0)
    return model


def order(state: State, model: Model) -> list[str]:
    return [row.label for row in state.ordered(model, 0.0)]


def press(state: State, model: Model, *keys: str) -> list[Row]:
    for key in keys:
        state.press(key, state.ordered(model, 0.0))
    return state.ordered(model, 0.0)


def test_rows_are_ordered_by_any_column() -> None:
    model, state = model_of(), State()
    assert order(state, model) == ["audit", "Mails", "billing", "orders"]
    press(state, model, "r")
    assert order(state, model) == ["billing", "Mails", "audit", "orders"]  # without a value: last
    press(state, model, "<", "<", "<", "<")
    assert state.sort == "group"
    assert order(state, model) == ["Mails", "audit", "billing", "orders"]
    press(state, model, "<")
    assert state.sort == "state"
    press(state, model, ">", ">")
    assert state.sort == "in_per_s"


def test_pages_turn() -> None:
    model, state = model_of(), State()
    turned = []
    for key in ("tab", "tab", "tab", "backtab", "1", "2", "3"):
        press(state, model, key)
        turned.append(state.page)
    assert turned == [TOPICS, SESSIONS, GROUPS, SESSIONS, *PAGES]


def test_a_filter_is_typed() -> None:
    model, state = model_of(), State()
    press(state, model, "/", "M", "i", "q", "backspace", "backspace", "A")
    assert (state.filter, state.is_typing, state.is_over) == ("MA", True, False)
    assert order(state, model) == ["Mails"]
    press(state, model, "enter", "p")
    assert (state.filter, state.is_typing, state.is_paused) == ("MA", False, True)
    press(state, model, "esc")
    assert state.filter == ""
    press(state, model, "/", *"x" * 100)
    assert len(state.filter) == FILTER_MAX
    press(state, model, "up", "clear", "z")
    assert state.filter == "z"
    press(state, model, "esc")
    assert (state.filter, state.is_typing) == ("", False)


def test_the_selection_follows_its_row() -> None:
    model, state = model_of(), State()
    rows = press(state, model, "down")
    assert rows[state.place(rows)].label == "Mails"
    rows = press(state, model, "r", "<")
    assert rows[state.place(rows)].label == "Mails"
    rows = press(state, model, "pgdn", "pgdn")
    assert rows[state.place(rows)] is rows[-1]
    rows = press(state, model, "up", "up", "up", "up", "up")
    assert state.place(rows) == 0
    press(state, model, "G")
    model.rows[GROUPS].clear()
    assert (state.place([]), state.selected) == (0, None)
    press(state, model, "down", "enter", "G")
    assert not state.has_details


def test_details_and_help_open_and_close() -> None:
    model, state = model_of(), State()
    press(state, model, "enter")
    assert (state.has_details, state.selected) == (True, "audit")
    press(state, model, "esc")
    assert not state.has_details
    press(state, model, "d", "d")
    assert not state.has_details
    press(state, model, "?")
    assert state.has_help
    press(state, model, "down")
    assert state.has_help
    press(state, model, "p")
    assert (state.has_help, state.is_paused) == (False, False)
    press(state, model, " ")
    assert state.is_paused
    press(state, model, "?", "q")
    assert state.is_over


def test_bytes_become_keys() -> None:
    keys = Keys()
    assert keys.feed(b"q\r\n\t\x7f\x08\x15 /") == ["q", "enter", "enter", "tab", *["backspace"] * 2, "clear", " ", "/"]
    assert keys.feed(b"\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1b[4~\x1b[Z") == [
        *("up", "down", "pgup", "pgdn", "home", "end", "backtab"),
    ]
    assert keys.feed("é名".encode()) == ["é", "名"]
    assert keys.feed(b"\x1b[15~\x1b[1;5C\x1b[200~x") == ["x"]  # unknown sequences
    assert keys.feed(b"\x00\x01") == []


def test_a_key_may_come_in_parts() -> None:
    keys = Keys()
    assert (keys.feed(b"\x1b"), keys.is_open) == ([], True)
    assert (keys.feed(b"[6"), keys.is_open) == ([], True)
    assert (keys.feed(b"~"), keys.is_open) == (["pgdn"], False)
    assert keys.feed("é".encode()[:1]) == []
    assert keys.feed("é".encode()[1:]) == ["é"]


def test_escape_alone_is_a_key() -> None:
    keys = Keys()
    assert keys.feed(b"\x1b") == []
    assert keys.rest() == ["esc"]
    assert (keys.rest(), keys.is_open) == ([], False)
    assert keys.feed(b"\x1bq") == ["esc", "q"]
    assert keys.feed(b"\x1b[1") == []
    assert keys.rest() == []
    assert keys.feed(b"\x1b[" + b"1" * 100)[:1] == ["esc"]
