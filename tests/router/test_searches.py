"""Positions that need a search: found in bounded steps, equal to a search in a plain list, whatever is published
meanwhile."""

import random
from pathlib import Path

import pytest

import fabric_client
from fabric.hub import Hub, HubOptions
from fabric.records import SaveGroup
from fabric.router import searches
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.errors import Code
from tests.router.world import World
from tests.seeds import seeded

A = b"a"
TOPICS = ("a.b", "a.c", "rare")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command searches next to nothing."""
    monkeypatch.setattr(searches, "STEPS_MAX", 3)


def publish(w: World, rng: random.Random, twin: list[tuple[str, bytes]]) -> None:
    rows = [(rng.choice(TOPICS[:2]), rng.choice([b"", b"k", b"l"])) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.1:
        rows.append(("rare", b"r"))
    w.say(
        A, m.Publish(1, 0, 0, encode([topic for topic, _ in rows], [b"x"] * len(rows), keys=[key for _, key in rows]))
    )
    twin += rows


def position(w: World, wish: str, pattern: str, meanwhile: random.Random, twin: list[tuple[str, bytes]]) -> SaveGroup:
    """Where a group begins that is made at a position; the command is sent again while the hub is BUSY."""
    for _ in range(1_000):
        answer = w.say(A, m.Admin(7, {"op": "group.create", "group": "g", "patterns": [pattern], "start": wish}))[-1]
        if isinstance(answer, m.Ok):
            return w.groups["g"]
        assert isinstance(answer, m.Err)
        assert (answer.code, answer.fields["retry_ms"]) == (Code.BUSY, searches.RETRY_MS)
        assert "g" not in w.router.groups
        if meanwhile.random() < 0.2:
            publish(w, meanwhile, twin)
    raise AssertionError("never found")


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("pattern", ["a.*", "rare", "none", "#"])
def test_positions_agree_with_a_plain_list(pattern: str) -> None:
    rng = seeded(f"searches {pattern}")
    w = World()
    w.hello(A)
    twin: list[tuple[str, bytes]] = []
    for _ in range(60):
        publish(w, rng, twin)
    matches = {"a.*": TOPICS[:2], "rare": ("rare",), "none": (), "#": TOPICS}[pattern]
    for wish in ("last", "last_per_key"):
        row = position(w, wish, pattern, rng, twin)
        latest = {(topic, key): seq for seq, (topic, key) in enumerate(twin, 1) if topic in matches}
        if wish == "last":
            assert row.cursor == max(latest.values(), default=len(twin) + 1)
        else:
            opened = [seq for first, last in row.open for seq in range(first, last + 1)]
            assert (row.cursor, opened) == (len(twin) + 1, sorted(latest.values()))
        w.say(A, m.Admin(7, {"op": "group.delete", "group": "g"}))
    assert pattern in ("rare", "none") or w.router.counters["refused_busy"] > 5, "it took several commands"


def test_a_command_looks_at_a_bounded_part(monkeypatch: pytest.MonkeyPatch) -> None:
    w = World()
    w.hello(A)
    for _ in range(300):
        w.pub(A, "t", *("x" * 100))
    looked, original = 0, type(w.reader).previous_block

    def counted(*args: object) -> object:
        nonlocal looked
        looked += 1
        return original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(type(w.reader), "previous_block", counted)
    busy = 0
    while isinstance(w.say(A, m.Subscribe(1, 5, {"patterns": ["t"], "start": "last_per_key"}))[-1], m.Err):
        busy += 1
        assert looked <= searches.MESSAGES_MAX // 100 + 1
        looked = 0
    assert busy >= 300 * 100 // searches.MESSAGES_MAX


def test_few_searches_are_remembered_and_none_for_long() -> None:
    w = World()
    w.hello(A)
    for n in range(20):
        w.say(A, m.Subscribe(n + 1, 5, {"patterns": [f"t.{n}"], "start": "last"}))
    remembered = w.router.dispatcher._searches._remembered
    assert len(remembered) == searches.REMEMBERED_MAX
    w.pass_time(searches.REMEMBERED_S + 1)
    assert not remembered


def test_a_refresh_from_the_last_of_each_key_starts_over_when_it_was_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    w = World()
    w.hello(A)
    for n in range(20):
        w.say(A, m.Publish(1, 0, 0, encode("t", [b"x"], keys=[b"%d" % (n % 3)])))
    w.sub(A, 1, "t", group="g")
    w.say(A, m.Admin(5, {"op": "group.refresh", "group": "g", "from": "last_per_key"}))
    w.say(A, m.Unsubscribe(1, 5))
    w.router.dispatcher._searches._remembered.clear()
    monkeypatch.setattr(searches, "STEPS_MAX", 3)
    answers = [w.say(A, m.Subscribe(2, 6, {"group": "g", "credit": [100, 10_000]}))]
    while isinstance(answers[-1][0], m.Err):
        assert not w.router.groups["g"].members, "refused as a whole"
        answers.append(w.say(A, m.Subscribe(2, 6, {"group": "g", "credit": [100, 10_000]})))
    assert len(answers) > 3
    assert sum(isinstance(said, m.Deliver) for said in answers[-1]) == 3


def test_the_client_asks_again_until_the_position_is_found(tmp_path: Path, short: None) -> None:
    with (
        Hub(tmp_path / "journal", HubOptions(binds=["inproc://searches"])) as hub,
        fabric_client.connect("inproc://searches", context=hub.context) as fab,
    ):
        for n in range(30):
            fab.publish("t", b"%d" % n, key=b"%d" % (n % 4))
        got = [bytes(message.data) for message in fab.consume("t", start="last_per_key", count=4)]
        assert got == [b"26", b"27", b"28", b"29"]
        assert hub.counters["refused_busy"] > 0
