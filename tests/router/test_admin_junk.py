"""Random maps in ADMIN, INFO and GET: each is answered, and a refused command changes nothing."""

import random
from typing import Any

from fabric.records import GroupSettings, TopicSettings
from fabric.router.admin.operations import OPERATIONS
from fabric.router.read.get import _FIELDS
from fabric.router.read.info import QUESTIONS
from fabric_protocol import messages as m
from fabric_protocol import wire
from tests.router.world import World
from tests.seeds import seeded

P, C, A = b"P", b"C", b"A"
VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        2,
        3,
        7,
        -1,
        1 << 63,
        (1 << 64) - 1,
        1.5,
        "",
        "g",
        "h",
        "g.DLQ",
        "$dlq.g",
        "a",
        "#",
        "a..b",
    ),
    *(
        b"g",
        [],
        [1],
        [3, 4],
        ["a"],
        ["a", 5],
        [None],
        {},
        {"seq": 1},
        {"seq": "x"},
        {"time_us": 5},
        {"reason": "rejected"},
    ),
    *(
        {"topic": "#"},
        {"topic": "."},
        {"before_us": 1 << 60},
        "first",
        "new",
        "last",
        "key",
        "linear",
        "auto",
        "received",
    ),
    *("\x00", "x" * 300, "é" * 130, [[[[]]]], {"a": {"b": []}}, "last_per_key", "producer", "rejected"),
]
NAMES = ["group", "patterns", "start", "to", "seqs", "filter", "all", "max", "after_seq", "n", "client", "session", "x"]


def world() -> World:
    w = World()
    for peer, client in ((P, "producer"), (C, "consumer"), (A, "admin")):
        w.hello(peer, client=client)
    w.sub(C, 1, "a", group="g")
    w.pub(P, "a", "1", "2")
    w.settle(C, 1, m.Verdict.REJECT, 1, 2)
    return w


def junk(chance: random.Random, names: list[str]) -> dict[str, Any]:
    return {name: chance.choice(VALUES) for name in chance.sample(names, chance.randrange(min(6, len(names))))}


def test_junk_is_answered_and_does_no_harm() -> None:
    chance, w = seeded("junk"), world()
    settings = [*GroupSettings._fields, "events", "advisories"]
    for round_ in range(4000):
        if round_ % 25 == 0:
            w = world()
        kind = chance.randrange(5)
        message: m.ToHub
        if kind == 0:
            message = m.Get(3, junk(chance, list(_FIELDS)))
        elif kind == 1:
            what = chance.choice(list(QUESTIONS))
            message = m.Info(3, {"what": what, **junk(chance, ["name", "group", "after", "n", "since"])})
        else:
            op: Any = chance.choice([*OPERATIONS, "", None, 5, []])
            allowed = OPERATIONS[op][1] if isinstance(op, str) and op in OPERATIONS else ()
            names = [*allowed, "group"] if chance.random() < 0.8 else [*NAMES, *settings]
            is_of_topics = isinstance(op, str) and op.startswith(("topic.", "queue."))
            names += ["topic", "queue", *TopicSettings._fields] if is_of_topics else []
            fields = {"op": op, **junk(chance, sorted(set(names)))}
            message = m.Admin(3, {**fields, "group": "g"} if chance.random() < 0.7 and "group" in names else fields)
        wire.encode(message)  # it can be said
        answers = w.say(A, message, commit=False)
        turn = w.router.seal(int(w.now * 1e6), w.now)
        w.router.take_frames()
        w.write(turn.records)
        refused = [one for one in answers if isinstance(one, m.Err)]
        done = [one for one in [*answers, *(said for _, said in turn.sends)] if isinstance(one, m.Ok)]
        assert len(refused) + len(done) == 1, message
        assert not (refused and turn.records), message
        for answer in [*answers, *(said for _, said in turn.sends)]:
            assert len(wire.encode(answer)[0]) < m.META_BYTES_MAX
        w.router.committed(w.now)
        w.router.take_frames()
        if A not in w.router.session_table._by_peer:  # it has kicked itself
            w = world()
