"""A principal sends commands with fields at random: no answer names a topic that it may not read, and none fails."""

import random
from collections.abc import Mapping
from typing import Any

import pytest

from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.errors import ProtocolError
from tests.commands import SAMPLES
from tests.router.access.place import Place, W, role
from tests.seeds import seeded

HUBS, COMMANDS = 12, 60
WORDS = ("groups", "topics", "dlq", "schedules", "sessions")  # those that see all numbers see the topics
GROUPS: tuple[tuple[str, ...], ...] = (("*",), ("billing*",))
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**63 - 1, 2**64 - 1, 1.5, b"x", [], [[]], [1], {}, {"a": {"b": [1]}}),
    *("", ".", "a..b", "\n", "*", "#", ">", "$", "$sub.1", "$dlq.#", "x" * 300, "first", "last", "last_per_key"),
    *("billing", "billing-all", "billing-all.DLQ", "$dlq.billing-all", "payroll", "$dlq.payroll", "local", "other"),
    *("orders.new", "secret.a", "secret.*", ["secret.a"], ["#"], ["orders.*"], ["$dlq.payroll"], ["a"] * 64),
    *({"seq": 1}, {"time_us": 1}, {"name": "other/p", "epoch": 1}, [0, 0], [1, 1 << 40]),
)
NAMES = (
    *("group", "topic", "queue", "name", "patterns", "pattern", "what", "seq", "seqs", "filter", "all", "max", "after"),
    *("n", "to", "up_to", "dry_run", "start", "respond", "credit", "owner", "id", "key", "from", "last", "by_key"),
    *("client", "session", "producer", "resume", "before", "time_us", "lease_ms", "order", "keep", "max_msgs", "op"),
)


def changed(chance: random.Random, fields: Mapping[str, Any]) -> dict[str, Any]:
    fields = dict(fields)
    for _ in range(chance.randint(1, 3)):
        name = chance.choice([*fields, chance.choice(NAMES)])
        if chance.random() < 0.2:
            fields.pop(name, None)
        else:
            fields[name] = chance.choice(VALUES)
    return fields


def command(chance: random.Random) -> m.ToHub:
    """A good command with other fields."""
    while True:
        message: Any = chance.choice(SAMPLES).message
        maps = [name for name, value in message._asdict().items() if isinstance(value, dict)]
        if maps:
            message = message._replace(**{maps[0]: changed(chance, getattr(message, maps[0]))})
        try:
            return wire.decode_command(wire.encode(message))  # type: ignore[return-value]
        except (ProtocolError, OverflowError):
            pass


@pytest.mark.parametrize("number", range(HUBS))
def test_no_command_tells_of_a_topic_that_is_not_allowed(number: int) -> None:
    chance = seeded(f"commands {number}")
    words = chance.sample(WORDS, chance.randint(0, len(WORDS)))
    place = Place(role(*words, groups=chance.choice(GROUPS), subscribe=("orders.*",)))
    told = False  # the client has named the topic itself, as the name of what it made
    for _ in range(COMMANDS):
        message = command(chance)
        place.said[W].clear()
        place.say(W, message)
        told |= "secret" in repr(message)
        assert told or "secret" not in repr(place.said[W]), (message, place.said[W])


def test_the_same_commands_tell_a_principal_with_all_rights() -> None:
    place = Place(role("info", groups=("*",), subscribe=("#", "$dlq.#"), deny=()))
    for message in (m.Info(9, {"what": "topics"}), m.Info(9, {"what": "story", "seq": 2}), m.Get(9, {"n": 10})):
        place.said[W].clear()
        place.say(W, message)
        assert "secret" in repr(place.said[W]), message
