"""One valid command for each verb and each operation of ADMIN.

They need a peer whose session has the producer `p`, whose first message was b"1" on `t`; channel 1 in group `g` on
topic `t` with ordinals 1 to 3 outstanding; channel 2 that answers requests to `ask`; group `r` with a refresh that has
ended, on channel 3; a schedule `s`; the queue `q`; dead letters of group `d`; the topic `limited` with settings;
the producer `away`, which no session has. Operations on keys need a book with the principal `tenant` and the
invitation `code-0`; OF_GUEST needs a peer whose key is not known, and OF_TENANT a peer with the key of `tenant`.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from fabric.router.admin import operations as admin
from fabric.router.read import info
from fabric_protocol import block as b
from fabric_protocol import messages as m

OF_GUEST: Final = "Admin keys.enrol"
OF_TENANT: Final = "Admin keys.rotate"
READ_ONLY: Final = {"Ping", "Info", "Get", "Admin dlq.list"}
SECRET: Final = b"?" * 16  # replaced by that of the session
NAMED: Final[dict[str, dict[str, Any]]] = {  # questions that are about one
    "group": {"name": "g"},
    "topic": {"name": "limited"},
    "pulse": {"since": 1},
    "story": {"seq": 1},
    "find": {"key": "k"},
    "copies": {"seq": 1},
}


class Sample(NamedTuple):
    name: str
    message: m.ToHub


def _admin(op: str, **fields: Any) -> Sample:
    return Sample(f"Admin {op}", m.Admin(50, {"op": op, **fields}))


def _block(topic: str = "t", ids: list[bytes] | None = None) -> bytes:
    return b.encode(topic, [b"new"], ids=ids)


def samples() -> Iterator[Sample]:
    yield Sample("Hello", m.Hello(10, {"proto": 1, "client": "new", "producer": {"name": "new"}}))
    yield Sample("Hello of a source", m.Hello(10, {"proto": 1, "producer": {"name": "source", "jumps": True}}))
    yield Sample("Hello resumed", m.Hello(10, {"proto": 1, "resume": {"session": SECRET, "subs": [[1, 1]]}}))
    yield Sample("Ping", m.Ping(11))
    yield Sample("Publish", m.Publish(12, 2, 0, _block()))
    yield Sample("Publish with ids", m.Publish(12, 2, 0, _block(ids=[b"id"])))
    yield Sample("Publish again", m.Publish(12, 1, 0, b.encode("t", [b"1"])))
    yield Sample("Publish to a topic with limits", m.Publish(12, 2, 0, _block("limited")))
    yield Sample("Publish later", m.Publish(12, 2, 0, _block(), {"delay_ms": 1000, "name": "s"}))
    yield Sample("Publish with a priority", m.Publish(12, 2, 0, b.encode("t", [b"new"], priority=9)))
    yield Sample("Transact", m.Transact(13, 2, ((1, ((0, 1, 1, None), (1, 2, 2, None))),), _block()))
    yield Sample("Cancel", m.Cancel(14, {"name": "s"}))
    yield Sample("Subscribe", m.Subscribe(9, 15, {"patterns": ["t"], "group": "new", "credit": [9, 9999]}))
    yield Sample("Subscribe again", m.Subscribe(9, 15, {"group": "r", "credit": [9, 9999]}))
    yield Sample("Subscribe alone", m.Subscribe(9, 15, {"patterns": ["t"], "start": "first"}))
    yield Sample("Subscribe to answer", m.Subscribe(9, 15, {"patterns": ["x"], "respond": True}))
    yield Sample("Unsubscribe", m.Unsubscribe(1, 16))
    yield Sample("Unsubscribe from answering", m.Unsubscribe(2, 16))
    yield Sample("Credit", m.Credit(1, 100, 9999))
    for verdict in m.Verdict:
        yield Sample(f"Settle {verdict.name}", m.Settle(1, 17, ((verdict, 1, 2, None),)))
    yield Sample("Fetch", m.Fetch(1, 18, 5, 1000))
    yield Sample("Ready", m.Ready(3, 19, 1))
    for what in info.QUESTIONS:
        yield Sample("Info", m.Info(20, {"what": what, **NAMED.get(what, {})}))
    yield Sample("Get", m.Get(21, {"pattern": "#", "n": 10}))
    yield Sample("Request", m.Request(0, 22, {}, _block("ask")))
    yield Sample("Reply", m.Reply(2, 1, {}, _block("ask")))
    yield _admin("group.create", group="new", patterns=["t"])
    yield _admin("group.update", group="g", lease_ms=1000)
    yield _admin("group.delete", group="g")
    yield _admin("group.seek", group="g", to="first")
    yield _admin("group.settle", group="g", up_to=1)
    yield _admin("group.pause", group="g")
    yield _admin("group.resume", group="paused")
    yield _admin("group.refresh", group="g")
    yield _admin("dlq.list", group="d")
    yield _admin("dlq.redrive", group="d", all=True)
    yield _admin("dlq.discard", group="d", all=True)
    yield _admin("hub.update", events=True)
    yield _admin("session.kick", client="victim")
    yield _admin("producer.delete", name="away")
    yield _admin("topic.create", topic="new", max_msgs=5)
    yield _admin("topic.update", topic="limited", max_msgs=6)
    yield _admin("topic.delete", topic="limited")
    yield _admin("topic.purge", topic="t")
    yield _admin("topic.purge", topic="t", up_to=1)
    yield _admin("topic.purge", topic="limited", before_us=1)
    yield _admin("topic.purge", topic="t", dry_run=True, after=1)
    yield _admin("queue.create", queue="new")
    yield _admin("queue.delete", queue="q")
    yield _admin("queue.purge", queue="q")
    yield _admin("queue.purge", queue="q", dry_run=True)
    yield _admin("keys.invite", name="billing", role="reader", ttl_ms=60_000)
    yield _admin("keys.enrol", code="code-0")
    yield _admin("keys.create", name="image", role="reader", key="K" * 40)
    yield _admin("keys.rotate", key="L" * 40)
    yield _admin("keys.revoke", name="tenant")
    yield Sample("Goodbye", m.Goodbye(23))


SAMPLES: Final = tuple(samples())


def handlers() -> set[str]:
    """What there is: each verb, and each operation of ADMIN."""
    verbs = {kind.__name__ for kind in m.ToHub.__args__} - {"Admin"}
    return verbs | {f"Admin {op}" for op in admin.OPERATIONS}


def handler_of(sample: Sample) -> str:
    return sample.name if sample.name.startswith("Admin") else type(sample.message).__name__
