"""Rates and rows: what the model makes of the hub's answers."""

import pytest

from fabric.top.model import GROUPS, SESSIONS, Change, Model, Pulse
from fabric.top.rates import STEP_S, WINDOW_S, Rates


def change(name: str, acked: int = 0, **fields: object) -> Change:
    return Change(name, name, fields, {"acked": acked})


def pulse(*groups: Change, counters: dict[str, float] | None = None, **more: object) -> Pulse:
    return Pulse({}, counters or {}, 1_000_000, {GROUPS: groups}, **more)  # type: ignore[arg-type]


def note(rates: Rates, at_s: float, before_s: float, value: float) -> None:
    rates.note(at_s, before_s, {"n": value}, frozenset({"falls"}))


def test_a_rate_needs_two_answers() -> None:
    model = Model()
    model.merge(pulse(change("a", 10)), 1.0)
    row = model.rows[GROUPS]["a"]
    assert row.rates.per_s("acked", 1.0) is None
    model.merge(pulse(change("a", 30)), 3.0)
    assert row.rates.per_s("acked", 3.0) == 10.0
    assert row.rates.per_s("unknown", 3.0) is None


def test_a_row_that_is_not_sent_again_has_not_changed() -> None:
    """Its rate falls to 0 within the window."""
    model = Model()
    model.merge(pulse(change("a", 0)), 0.0)
    model.merge(pulse(change("a", 100)), 1.0)
    rates = model.rows[GROUPS]["a"].rates
    for now_s in (2.0, 3.0, 4.0, 5.0):
        model.merge(pulse(), now_s)
        assert rates.per_s("acked", now_s) == pytest.approx(100 / now_s)
    assert rates.per_s("acked", 1.0 + WINDOW_S) == 0.0
    model.merge(pulse(), 60.0)
    assert rates.per_s("acked", 60.0) == 0.0
    model.merge(pulse(change("a", 150)), 61.0)
    assert rates.per_s("acked", 61.0) == pytest.approx(50 / WINDOW_S)


def test_answers_farther_apart_than_the_window_give_the_rate_between_them() -> None:
    rates = Rates()
    note(rates, 0.0, 0.0, 0)
    note(rates, 20.0, 0.0, 200)
    assert rates.per_s("n", 20.0) == 10.0


def test_counters_that_begin_anew_give_no_negative_rate() -> None:
    model = Model()
    model.merge(pulse(change("a", 1_000), counters={"messages_in": 500}), 0.0)
    model.merge(pulse(change("a", 5), counters={"messages_in": 7}), 1.0)
    row = model.rows[GROUPS]["a"]
    assert row.rates.per_s("acked", 1.0) is None
    assert model.rates.per_s("messages_in", 1.0) is None
    model.merge(pulse(change("a", 15), counters={"messages_in": 17}), 2.0)
    assert row.rates.per_s("acked", 2.0) == model.rates.per_s("messages_in", 2.0) == 10.0


def test_a_restart_is_no_burst_when_the_counters_are_higher_by_then() -> None:
    model = Model()
    model.merge(pulse(change("a", 5), counters={"messages_in": 5}), 0.0)
    model.restart()
    model.merge(pulse(change("a", 5_000), counters={"messages_in": 5_000}), 1.0)
    assert model.rows[GROUPS]["a"].rates.per_s("acked", 1.0) is None
    assert model.rates.per_s("messages_in", 1.0) is None


def test_a_counter_that_may_fall_is_no_restart() -> None:
    rates = Rates()
    rates.note(0.0, 0.0, {"acked": 10, "arrived": 50}, frozenset({"arrived"}))
    rates.note(1.0, 0.0, {"acked": 20, "arrived": 30}, frozenset({"arrived"}))
    assert rates.per_s("acked", 1.0) == 10.0
    assert rates.per_s("arrived", 1.0) == 0.0


def test_a_row_keeps_few_samples_and_the_same_rate_however_often_the_hub_is_asked() -> None:
    rates, step_s = Rates(), 0.1
    for i in range(1_000):
        note(rates, i * step_s, max(i - 1, 0) * step_s, i)
    assert rates.per_s("n", 99.9) == pytest.approx(10.0, rel=0.15)
    assert len(rates._samples) <= WINDOW_S / STEP_S + 3


def test_rows_end() -> None:
    model = Model()
    model.merge(pulse(change("a"), change("b"), change("c")), 0.0)
    model.merge(pulse(change("b", ready=3), ended={GROUPS: ["a", "unknown"], SESSIONS: ["7"]}), 1.0)
    assert list(model.rows[GROUPS]) == ["b", "c"]
    assert model.rows[GROUPS]["b"].fields == {"ready": 3}
    model.merge(pulse(change("c"), is_whole=True), 2.0)
    assert list(model.rows[GROUPS]) == ["c"]


def test_rows_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fabric.top.model.ROWS_MAX", 2)
    model = Model()
    model.merge(pulse(*map(change, "abcd"), is_whole=True), 0.0)
    assert (list(model.rows[GROUPS]), model.left_out[GROUPS]) == (["a", "b"], 2)
