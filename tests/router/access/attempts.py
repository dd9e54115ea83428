"""Attempts of `worker`, in the hub of `place`, that must be refused: one row each."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from fabric.router.access.role import ADMIN_RIGHTS, Limits, Role
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.errors import Code
from tests.router.access.place import WORKER, role

ALL: Final = ADMIN_RIGHTS
OPERATIONS: Final[dict[str, dict[str, Any]]] = {  # good commands, but for the rights
    "group.create": {"group": "billing-new", "patterns": ["orders.new"]},
    "group.update": {"group": "billing", "lease_ms": 1000},
    "group.delete": {"group": "billing"},
    "group.seek": {"group": "billing", "to": "first"},
    "group.settle": {"group": "billing", "up_to": 1},
    "group.pause": {"group": "billing"},
    "group.resume": {"group": "billing"},
    "group.refresh": {"group": "billing"},
    "dlq.list": {"group": "billing"},
    "dlq.redrive": {"group": "billing-all", "all": True},
    "dlq.discard": {"group": "billing-all", "all": True},
    "topic.create": {"topic": "orders.new", "max_msgs": 5},
    "topic.update": {"topic": "orders.limited", "max_msgs": 6},
    "topic.delete": {"topic": "orders.limited"},
    "topic.purge": {"topic": "orders.new"},
    "queue.create": {"queue": "billing-jobs"},
    "queue.delete": {"queue": "q"},
    "queue.purge": {"queue": "q"},
    "hub.update": {"events": True},
    "session.kick": {"client": "other"},
    "producer.delete": {"name": "p"},
    "keys.invite": {"name": "new", "role": "admin"},
    "keys.create": {"name": "new", "role": "admin", "key": "N" * 40},
    "keys.revoke": {"name": "other"},
}
NEEDED: Final = {  # the words in `admin` that each needs
    **{op: (f"{op.partition('.')[0]}s",) for op in OPERATIONS if op.startswith(("group.", "topic.", "session."))},
    **{op: ("dlq",) for op in OPERATIONS if op.startswith("dlq.")},
    **dict.fromkeys(("queue.create", "queue.delete"), ("topics", "groups")),
    **{op: ("keys",) for op in OPERATIONS if op.startswith("keys.")},
    "queue.purge": ("topics",),
    "hub.update": ("hub",),
    "producer.delete": ("hub",),
}


class Attempt(NamedTuple):
    name: str
    message: m.ToHub
    role: Role = WORKER
    code: Code = Code.FORBIDDEN


def attempts() -> Iterator[Attempt]:
    yield from _publishing()
    yield from _subscribing()
    yield from _groups()
    yield from _requests()
    yield from _reading()
    yield from _questions()
    yield from _operations()
    yield from _operations_elsewhere()


def _publish(topics: str | list[str], **options: Any) -> m.Publish:
    bodies = [b"x"] * (1 if isinstance(topics, str) else len(topics))
    return m.Publish(9, 0, 0, encode(topics, bodies), options or {})


def _publishing() -> Iterator[Attempt]:
    topics: list[str | list[str]] = [
        "secret.a",
        "invoice",
        "orders.new",
        "hidden.x",
        "hidden",
        "$sys.x",
        "$dlq.billing",
    ]
    topics += ["billing.DLQ", "$redrive.billing", ["invoices.1", "secret.a"], ["secret.a", "invoices.1"]]
    for topic in topics:
        yield Attempt(f"PUB {topic}", _publish(topic))
    for topic in ("secret.a", "hidden.x", "orders.new"):
        yield Attempt(f"PUB later {topic}", _publish(topic, delay_ms=1000))
        yield Attempt(f"PUB repeated {topic}", _publish(topic, cron="0 0 * * *"))
        yield Attempt(f"PUB with ttl {topic}", _publish(topic, ttl_ms=1000))
        settles = ((1, ((m.Verdict.ACK, 1, 1, None),)),)
        yield Attempt(f"TXN {topic}", m.Transact(9, 0, settles, encode(topic, [b"x"])))
    born = (b"j" * 16, 1, 1, 0)
    yield Attempt("PUB under an origin", _publish("invoices.1", origin=born))
    yield Attempt(
        "PUB under an origin with other rights", _publish("invoices.1", origin=born), role(*(set(ALL) - {"links"}))
    )
    yield Attempt("PUB without the right", _publish("invoices.1"), role(publish=()))


def _subscribe(*patterns: str, **fields: Any) -> m.Subscribe:
    return m.Subscribe(9, 9, {"credit": [10, 1 << 20], **({"patterns": list(patterns)} if patterns else {}), **fields})


def _widening() -> Iterator[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]]:
    """Asked patterns, allowed ones and denied ones."""
    orders = ("orders.*",)
    for asked in ("orders.>", "orders.#", "orders", "*.new", "#", ">", "*", "*.*", "order.*", "orders.*.*", "#.new"):
        yield (asked,), orders, ()
    yield ("#",), ("a.#",), ()
    yield ("*.x",), ("a.x",), ()
    yield ("*.x",), ("a.*", "b.*"), ()
    yield ("orders.new", "secret.a"), orders, ()
    yield ("$sys.#",), ("#",), ()
    yield ("$sys.audit",), ("#", "$sys.health"), ()
    yield ("$gateway.x",), ("#", "$sys.#"), ()
    for asked in ("a.secret", "a.*", "a.#", "#", "*.secret", ">"):
        yield (asked,), ("#",), ("a.secret",)
    yield ("a.b.*",), ("#",), ("a.*.secret.#",)
    yield ("$sys.#",), ("#", "$sys.#"), ("$sys.audit",)


def _subscribing() -> Iterator[Attempt]:
    for asked, allowed, denied in _widening():
        given = role(subscribe=allowed, deny=denied)
        name = f"{' '.join(asked)} with {' '.join(allowed)} but {' '.join(denied) or 'nothing'}"
        yield Attempt(f"SUB {name}", _subscribe(*asked), given)
        yield Attempt(f"SUB group {name}", _subscribe(*asked, group="billing-new"), given)
        yield Attempt(f"GET {name}", m.Get(9, {"pattern": list(asked)}), given)
    every = role(subscribe=("#", "$dlq.#"), groups=("*",), deny=("secret.#",))
    for topic in ("$dlq.payroll", "payroll.DLQ", "$redrive.payroll", "$dlq.billing-all", "billing-all.DLQ", "$dlq.#"):
        yield Attempt(f"SUB {topic}", _subscribe(topic))
        yield Attempt(f"GET {topic}", m.Get(9, {"pattern": topic}))
    for topic in ("$dlq.billing-all", "$dlq.#", "$dlq.*", "$redrive.billing-all"):
        yield Attempt(f"SUB {topic} with a denied topic", _subscribe(topic), every)
    some_groups = role(subscribe=("#", "$dlq.#", "$redrive.#"), deny=())
    for topic in ("$dlq.#", "$dlq.*", "$redrive.*", "$dlq.*.x"):
        yield Attempt(f"SUB {topic} with some groups", _subscribe(topic), some_groups)
    only_payroll = role(groups=("dead",), subscribe=("orders.*", "$dlq.payroll"))
    yield Attempt("SUB dead letters of a group that consumes dead letters", _subscribe("$dlq.dead"), only_payroll)


def _groups() -> Iterator[Attempt]:
    yield Attempt("SUB a foreign group", _subscribe(group="payroll"))
    yield Attempt("SUB a foreign group with its patterns", _subscribe("orders.new", group="payroll"))
    yield Attempt("SUB a foreign group with other patterns", _subscribe("orders.x", group="payroll"))
    yield Attempt("SUB a new foreign group", _subscribe("orders.new", group="accounts"))
    yield Attempt("SUB a group whose stored patterns are too wide", _subscribe(group="billing-all"))
    yield Attempt("SUB such a group with patterns", _subscribe("orders.new", group="billing-all"))
    yield Attempt("SUB a group whose stored pattern is denied", _subscribe(group="billing-hidden"))
    yield Attempt("SUB without the right to groups", _subscribe("orders.new", group="billing"), role(groups=()))
    yield Attempt("SUB the group of a queue", _subscribe(group="q"))
    yield Attempt("SUB by the name that the hub gives", _subscribe("orders.new", group="$sub.1"), role(groups=("*",)))
    limited = role(limits=Limits(groups=3))
    yield Attempt("SUB one group more than the limit", _subscribe("orders.new", group="billing-4"), limited)
    create = {"op": "group.create", "group": "billing-4", "patterns": ["orders.new"]}
    limited = role("groups", limits=Limits(groups=3))
    yield Attempt("group.create one more than the limit", m.Admin(9, create), limited)


def _requests() -> Iterator[Attempt]:
    for topic in ("vault.a", "prices", "tax.a", "prices.a.b", "$sys.x"):
        yield Attempt(f"REQ {topic}", m.Request(0, 9, {}, encode(topic, [b"?"])))
    yield Attempt("REQ denied", m.Request(0, 9, {}, encode("prices.a", [b"?"])), role(deny=("prices.a",)))
    yield Attempt("REQ without the right", m.Request(0, 9, {}, encode("prices.a", [b"?"])), role(request=()))
    for pattern in ("prices.*", "tax.#", "*.a", "#", "tax", "$sys.#"):
        yield Attempt(f"SUB respond {pattern}", _subscribe(pattern, respond=True))
    yield Attempt("SUB respond denied", _subscribe("tax.*", respond=True), role(deny=("tax.a",)))
    yield Attempt("SUB respond in a foreign service", _subscribe(respond=True, group="vault"))
    stored = role(groups=("vault",))
    yield Attempt("SUB respond in a service with other patterns", _subscribe(respond=True, group="vault"), stored)
    yield Attempt("SUB respond as a service of a foreign name", _subscribe("tax.*", respond=True, group="shop"))


def _reading() -> Iterator[Attempt]:
    yield Attempt("GET all", m.Get(9, {}))
    yield Attempt("GET last of all", m.Get(9, {"last": True, "n": 10}))
    for topic in ("secret.a", "hidden.x", "limited", "$dlq.payroll", "$dlq.billing-all", "$redrive.payroll"):
        yield Attempt(f"GET topic {topic}", m.Get(9, {"topic": topic}))
    yield Attempt("GET one of two", m.Get(9, {"pattern": ["orders.new", "secret.a"], "by_key": True}))


def _info(what: str, **fields: Any) -> m.Info:
    return m.Info(9, {"what": what, **fields})


def _questions() -> Iterator[Attempt]:
    for what in ("counters", "settings", "pulse", "keys"):
        yield Attempt(f"INFO {what}", _info(what))
    yield Attempt("INFO keys with other rights", _info("keys"), role(*(set(ALL) - {"keys"})))
    for what in ("counters", "settings", "pulse"):
        yield Attempt(f"INFO {what} with other rights", _info(what), role(*(set(ALL) - {"info", "hub"})))
    for group in ("payroll", "not-there", "q"):
        yield Attempt(f"INFO group {group}", _info("group", name=group))
        yield Attempt(f"INFO dlq {group}", _info("dlq", group=group))
    yield Attempt("INFO dlq by alias", _info("dlq", group="payroll.DLQ"))
    yield Attempt("INFO dlq by topic", _info("dlq", name="$dlq.payroll"))
    for topic in ("secret.a", "limited", "not-there", "hidden.x", "$dlq.payroll", "$sys.x", "invoices.1"):
        yield Attempt(f"INFO topic {topic}", _info("topic", name=topic))
    for seq in (2, 4):  # of secret.a; a dead letter of billing-all
        yield Attempt(f"INFO story {seq}", _info("story", seq=seq))
        yield Attempt(f"INFO copies {seq}", _info("copies", seq=seq))
    yield Attempt("INFO story with info", _info("story", seq=2), role("info"))
    yield Attempt("INFO find", _info("find", key="k"))
    yield Attempt("INFO find by topic", _info("find", id="k", topic="secret.a"))
    yield Attempt("INFO find by pattern", _info("find", key="k", pattern="*.new"))


def _admin(op: str, **fields: Any) -> m.Admin:
    return m.Admin(9, {"op": op, **fields})


def _operations() -> Iterator[Attempt]:
    """Each operation without a word that it needs, and with all others."""
    for op, fields in OPERATIONS.items():
        yield Attempt(f"{op} without rights", _admin(op, **fields), role(groups=("*",), subscribe=("#",)))
        for word in NEEDED[op]:
            given = role(*(set(ALL) - {word}), groups=("*",), subscribe=("#", "$dlq.#"))
            yield Attempt(f"{op} without {word}", _admin(op, **fields), given)
    for op in ("group.seek", "group.settle", "topic.purge"):
        yield Attempt(f"{op} as a dry run", _admin(op, **OPERATIONS[op], dry_run=True))


def _operations_elsewhere() -> Iterator[Attempt]:
    """Each operation with all words, on what is not the worker's."""
    every = role(*ALL)
    for op, fields in OPERATIONS.items():
        if op.startswith(("group.", "dlq.")):
            yield Attempt(f"{op} of a foreign group", _admin(op, **{**fields, "group": "payroll"}), every)
        if op.startswith("topic."):
            yield Attempt(f"{op} of a foreign topic", _admin(op, **{**fields, "topic": "limited"}), every)
            yield Attempt(f"{op} of a denied topic", _admin(op, **{**fields, "topic": "hidden.x"}), every)
            yield Attempt(f"{op} of dead letters", _admin(op, **{**fields, "topic": "payroll.DLQ"}), every)
        if op.startswith("queue."):
            yield Attempt(f"{op} of a foreign queue", _admin(op, **{**fields, "queue": "q"}), every)
            named = {**fields, "queue": "billing-q"}
            yield Attempt(f"{op} of a topic that it may not read", _admin(op, **named), every)
    for alias in ("payroll.DLQ", "$dlq.payroll"):
        yield Attempt(f"dlq.redrive {alias}", _admin("dlq.redrive", group=alias, all=True), every)
    yield Attempt("dlq.list of topics that it may not read", _admin("dlq.list", group="billing-all"), every)
    unread = _admin("group.update", group="billing-all", patterns=["orders.new"])
    yield Attempt("group.update of patterns that it may not read", unread, every)
    yield Attempt("group.delete of one with such patterns", _admin("group.delete", group="billing-all"), every)
    queue = role(*ALL, subscribe=("orders.*", "billing-all"))
    yield Attempt("queue.create with such a group", _admin("queue.create", queue="billing-all"), queue)
    for patterns in (["#"], ["orders.>"], ["orders.new", "secret.a"], ["hidden.*"], ["$dlq.payroll"], ["$sys.#"]):
        name = " ".join(patterns)
        created = _admin("group.create", group="billing-new", patterns=patterns)
        yield Attempt(f"group.create with {name}", created, every)
        yield Attempt(f"group.update with {name}", _admin("group.update", group="billing", patterns=patterns), every)
    exists = _admin("group.create", group="billing-all", patterns=["orders.new"])
    yield Attempt("group.create of one with patterns that are too wide", exists, every)


ATTEMPTS: Final = tuple(attempts())
