"""Credit follows the pace of a consumer, and does not withhold slow messages from other consumers."""

import threading
from pathlib import Path
from typing import Any

import pytest

import fabric_client
from fabric.hub import Hub, HubOptions
from fabric_client.core.window import GROWTH_MAX, Window
from tests.clients.real_hub import acked, running
from tests.patience import PATIENCE_S

MOST = 8192


def paced(window: Window, seconds_each: float, messages: int, now: float) -> float:
    """A consumer works through messages at a pace, and says so one by one; returns the time after it."""
    for _ in range(messages):
        window.began(now)
        now += seconds_each
        window.settled += 1
        window.measure(now, idle=True)
        window.rise()
    return now


def test_slow_jobs_leave_the_window_small() -> None:
    window = Window(MOST, None, False, 2)
    assert window.ordinal_max == 2
    paced(window, 0.2, 50, 0.0)
    assert (window.prefetch, window.ordinal_max) == (2, 52)


def test_fast_jobs_open_the_window_in_a_few_steps() -> None:
    window, steps = Window(MOST, None, False, 2), 0
    while window.prefetch < MOST:
        steps += 1
        window.began(0.0)
        window.settled = window.ordinal_max
        window.measure(0.001, idle=True)
        assert window.rise()
    assert steps <= 7


def test_the_window_holds_a_tenth_of_a_second_of_work() -> None:
    window = Window(MOST, None, False, 2)
    paced(window, 0.001, 2000, 0.0)
    assert 100 <= window.prefetch <= 128


def test_the_window_closes_when_jobs_become_slow() -> None:
    window = Window(MOST, None, False, 2)
    now = paced(window, 0.0001, 20_000, 0.0)
    wide = window.prefetch
    paced(window, 1.0, 2 * wide, now)
    assert window.prefetch == 2 < wide


def test_the_time_without_work_does_not_count() -> None:
    window, now = Window(MOST, None, False, 2), 0.0
    for _ in range(2000):
        now = paced(window, 0.0001, 1, now + 10.0)
    assert window.prefetch >= 1000


@pytest.mark.parametrize("seconds_each", [0.0, 10.0])
def test_a_window_that_the_program_chose_stays_as_it_is(seconds_each: float) -> None:
    window = Window(20, None, False)
    paced(window, seconds_each, 100, 0.0)
    assert window.prefetch == 20


def test_one_measurement_opens_the_window_by_a_bounded_factor() -> None:
    window = Window(MOST, None, False, 2)
    window.began(0.0)
    window.settled = 2
    window.measure(0.0, idle=True)
    assert window.prefetch == 2 * GROWTH_MAX


@pytest.mark.parametrize("first", [{}, {"concurrency": 2}, {"prefetch": 3}])
def test_a_busy_consumer_leaves_the_rest_to_another(tmp_path: Path, first: dict[str, Any]) -> None:
    held = first.get("prefetch") or 2 * first.get("concurrency", 1)
    begun, go_on = threading.Event(), threading.Event()
    with Hub(tmp_path / "journal", HubOptions(binds=["tcp://127.0.0.1:*"], drain_s=0)) as hub:

        def work() -> None:
            with fabric_client.connect(hub.binds[0]) as slow:
                for message in slow.consume("jobs", group="g", **first):
                    with message:
                        begun.set()
                        assert go_on.wait(PATIENCE_S)
                    break

        with fabric_client.connect(hub.binds[0]) as fab:
            fab.admin.groups.create("g", "jobs")
            fab.publish_many("jobs", [b"%d" % n for n in range(20)])
            with running(work):
                try:
                    assert begun.wait(PATIENCE_S)
                    found = acked(fab, "jobs", group="g", count=20 - held, timeout=PATIENCE_S)
                    assert sorted(int(message.text) for message in found) == list(range(held, 20))
                finally:
                    go_on.set()
