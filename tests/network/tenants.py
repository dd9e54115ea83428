"""The table of refused attempts for a real hub: the principals of its rows, their access file, and the hub's contents.

The lines of one principal in the hub's log are bounded, so the rows of a role are shared by several principals.
"""

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import zmq

from fabric.access.keys import KeyPair, make_pair
from fabric.router.access.role import Role
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from tests.hub.kit import Talker
from tests.router.access.attempts import ATTEMPTS, Attempt
from tests.router.access.controls import FULL
from tests.router.access.place import OTHER

ROWS_MAX: Final = 15  # of one principal: fewer than the lines that the hub's log has for one source
PATIENT: Final = {"hb_ms": 60_000, "ttl_ms": 600_000}
FREE: Final = "free"  # the principal of the controls
GROUPS: Final = {
    "billing": ["orders.*"],
    "billing-all": ["#"],
    "billing-hidden": ["hidden.x"],
    "payroll": ["orders.new"],
    "dead": ["$dlq.payroll"],
}


class Row(NamedTuple):
    """An attempt, and the principal that makes it."""

    principal: str
    attempt: Attempt


def rows() -> tuple[Row, ...]:
    roles: dict[Role, int] = {}
    counts: Counter[Role] = Counter()
    found = []
    for attempt in ATTEMPTS:
        number = roles.setdefault(attempt.role, len(roles))
        found.append(Row(f"tenant{number}-{counts[attempt.role] // ROWS_MAX}", attempt))
        counts[attempt.role] += 1
    return tuple(found)


ROWS: Final = rows()


def make_keys() -> dict[str, KeyPair]:
    """A key pair for each principal of the table."""
    return {name: make_pair() for name in dict.fromkeys((*(row.principal for row in ROWS), FREE, "keeper"))}


def access_file(keys: Mapping[str, KeyPair]) -> str:
    roles = {row.principal: row.attempt.role for row in ROWS} | {FREE: FULL, "keeper": OTHER}
    named = "".join(_role(f"of-{name}", role) for name, role in roles.items())
    kinds = _role("admin", FULL) + _role("reader", Role("reader", subscribe=("#",)))
    return kinds + named + "".join(_principal(name, f"of-{name}", keys[name].public) for name in roles)


def _role(name: str, role: Role) -> str:
    lists = {field: sorted(value) for field, value in role._asdict().items() if field not in ("name", "limits")}
    limits = ", ".join(f"{field} = {value}" for field, value in role.limits._asdict().items() if value)
    text = "".join(f"{field} = {json.dumps(value)}\n" for field, value in lists.items())
    return f"[role.{name}]\n{text}limits = {{ {limits} }}\n"


def _principal(name: str, role: str, key: str) -> str:
    return f'[principal.{name}]\nrole = "{role}"\nkey = "{key}"\n'


def answer(peer: Talker, message: m.ToHub) -> m.ToClient:
    """Send a command of the table; what answers it."""
    peer.send(message)
    while True:
        said = peer.receive()
        match said:
            case m.Err(rid=9) | m.Ok(rid=9) | m.Reply(rid=9):
                return said
            case m.PubOk(confirms=confirms) if any(row[0] == 9 for row in confirms):
                return said
            case None:
                raise AssertionError(f"no answer to {message}")
            case _:
                pass


class Contents:
    """What `place` has, in a real hub: made by the owner of the data folder, and made again after a control."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", admin_bind: str) -> None:
        self._context = context
        self._bind = admin_bind
        self._stack = ExitStack()
        self.admin, self.audits = self._talker(), self._talker()
        self._keeper: Talker | None = None  # it has services and the sessions of others
        self._other = make_pair().public
        self.furnish()

    def _talker(self, **hello: Any) -> Talker:
        talker = self._stack.enter_context(Talker(self._context, self._bind))
        talker.hello(**PATIENT, **hello)
        return talker

    def furnish(self) -> None:
        """Remove all that the hub has, then make what the table needs."""
        self._clear()
        self._make()
        self.audits.subscribe("$sys.audit")

    def _clear(self) -> None:
        info, admin = self.admin.info, self.admin.admin
        if self._keeper is not None:
            self._leave(self._keeper)
            self._keeper = None
            self._leave(self.audits)
            self.audits = self._talker()
        for row in info("schedules")["schedules"]:
            self.admin.send(m.Cancel(rid := self.admin.next_rid(), {"id": row["id"]}))
            self.admin.until(m.Ok, rid)
        topics = [row for row in info("topics")["topics"] if row["configured"]]
        for row in topics:
            op = "queue.delete" if row["settings"]["queue"] else "topic.delete"
            admin(op, **{op.partition(".")[0]: row["topic"]})
        for row in info("groups")["groups"]:
            if row["durable"]:
                admin("group.delete", group=row["group"])
        found = info("keys")
        enrolled = [row["principal"] for row in found["principals"] if row["file"] == "enrolled"]
        for name in (*enrolled, *(row["name"] for row in found["invitations"])):
            admin("keys.revoke", name=name)
        admin("hub.update", events=False)

    @staticmethod
    def _leave(talker: Talker) -> None:
        talker.send(m.Goodbye(rid := talker.next_rid()))
        while not isinstance(said := talker.receive(), m.Ok | m.Err) or said.rid != rid:  # it may have been kicked
            assert said is not None

    def _make(self) -> None:
        admin = self.admin.admin
        for name, patterns in GROUPS.items():
            admin("group.create", group=name, patterns=patterns, attempts_max=1)
        admin("topic.create", topic="limited", max_msgs=5)
        admin("topic.create", topic="orders.limited", max_msgs=5)
        admin("queue.create", queue="q")
        admin("keys.create", name="other", role="reader", key=self._other)
        self._keeper = keeper = self._talker(client="other")
        keeper.subscribe(group="payroll", chan=1)
        keeper.subscribe(group="billing-all", chan=2)
        keeper.subscribe("vault.*", respond=True, group="vault", chan=3)
        keeper.subscribe("prices.*", respond=True, group="shop", chan=4)
        keeper.send(m.Publish(5, 0, 0, encode("later", [b"1"]), {"delay_ms": 600_000, "name": "s"}))
        keeper.until(m.Ok, 5)
        keeper.publish("orders.new", b"1")
        keeper.publish("secret.a", b"2")
        for chan, last in ((1, 1), (2, 2)):
            keeper.send(m.Settle(chan, rid := keeper.next_rid(), ((m.Verdict.REJECT, 1, last, None),)))
            keeper.until(m.Ok, rid)

    def reply(self) -> None:
        """Answer the request that a service has got."""
        assert self._keeper is not None
        asked = self._keeper.until(m.Request)
        self._keeper.send(m.Reply(asked.chan, asked.rid, {"final": True}, encode("r", [b"!"])))

    def audit(self) -> dict[str, Any]:
        """The next advisory of the audit."""
        return dict(json.loads(self.audits.take(1)[0][1]))

    def digest(self) -> Any:
        """What a refused attempt must not change."""
        info = self.admin.info
        groups = [
            [row[field] for field in ("group", "patterns", "lease_ms", "paused", "floor", "refresh", "dead")]
            for row in info("groups")["groups"]
            if row["durable"]
        ]
        topics = [(row["topic"], row["settings"], row["msgs"], row["floor"]) for row in info("topics")["topics"]]
        schedules = [(row["id"], row["topic"]) for row in info("schedules")["schedules"]]
        services = [(row["service"], row["patterns"], row["members"]) for row in info("services")["services"]]
        return groups, topics, schedules, services, info("settings"), info("keys"), info("hub")["last_seq"]

    def close(self) -> None:
        self._stack.close()
