"""A client of before numbered sources and origins hears what it heard then."""

from pathlib import Path
from typing import Any

from tests.hub.hostile import HubProcess
from tests.hub.old_client import comparable, play, recorded


def grown(now: Any, then: Any) -> bool:
    """Whether `now` is `then`, but for new keys of maps. A list has the same length: it has no new fields."""
    if isinstance(then, dict):
        return isinstance(now, dict) and all(key in now and grown(now[key], value) for key, value in then.items())
    if isinstance(then, list | tuple):
        return len(now) == len(then) and all(grown(a, b) for a, b in zip(now, then, strict=True))
    return bool(now == then)


def test_a_hub_answers_the_frames_of_an_older_client_as_before(tmp_path: Path) -> None:
    rows = recorded()
    assert sum(len(heard) for _, heard in rows) > len(rows), "deliveries came, too"
    hub = HubProcess(tmp_path)
    try:
        answers = play(hub.url, [said for said, _ in rows], [len(heard) for _, heard in rows])
    finally:
        hub.stop()
    for number, ((_, then), now) in enumerate(zip(rows, answers, strict=True)):
        assert grown([*map(comparable, now)], [*map(comparable, then)]), (number, now, then)
