"""A hub with tenants: groups, topics, dead letters, services and schedules of `local`, and one session of `worker`."""

from typing import Any, Final

from fabric.router.access.identity import GUEST_NAME, LOCAL, Identity
from fabric.router.access.role import Role
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from tests.router.access.memory_book import MemoryBook
from tests.router.world import World

L, W, G, O = b"local", b"worker", b"guest", b"other"  # noqa: E741
WORKER: Final = Role(
    "worker",
    publish=("invoices.#", "hidden.*"),
    subscribe=("orders.*", "hidden.*"),
    groups=("billing*",),
    request=("prices.*",),
    respond=("tax.*",),
    deny=("hidden.x",),
)
OTHER: Final = Role("other", publish=("#",), subscribe=("#",), groups=("*",), request=("#",), respond=("#",))
KEY: Final = "K" * 40


def role(*admin: str, **rights: Any) -> Role:
    """The role of `worker`, with other rights."""
    return WORKER._replace(admin=frozenset(admin), **rights)


class Place(World):
    def __init__(self, worker: Role = WORKER, **others: Role) -> None:
        self.advised: list[tuple[str, dict[str, Any]]] = []
        self.identities: dict[bytes, Identity] = {}
        self.book = MemoryBook(worker=worker, other=OTHER, **others)
        super().__init__(
            book=self.book,
            log=lambda topic, fields: self.advised.append((topic, dict(fields))),
            place={"journal": "abcd", "path": "/data/journal"},
        )
        self.hello(L, client="local", ttl_ms=600_000)
        for name, patterns in (
            ("billing", ["orders.*"]),
            ("billing-all", ["#"]),
            ("billing-hidden", ["hidden.x"]),
            ("payroll", ["orders.new"]),
            ("dead", ["$dlq.payroll"]),
        ):
            self.admin("group.create", group=name, patterns=patterns, attempts_max=1)
        self.admin("topic.create", topic="limited", max_msgs=5)
        self.admin("topic.create", topic="orders.limited", max_msgs=5)
        self.admin("queue.create", queue="q")
        self.sub(L, 1, group="payroll")
        self.sub(L, 2, group="billing-all")
        self.say(L, m.Subscribe(3, 5, {"patterns": ["vault.*"], "respond": True, "group": "vault"}))
        self.say(L, m.Subscribe(4, 5, {"patterns": ["prices.*"], "respond": True, "group": "shop"}))
        self.say(L, m.Publish(5, 0, 0, encode("later", [b"1"]), {"delay_ms": 60_000, "name": "s"}))
        self.pub(L, "orders.new", "1")  # seq 1
        self.pub(L, "secret.a", "2")  # seq 2
        self.settle(L, 1, m.Verdict.REJECT, 1, 1)
        self.settle(L, 2, m.Verdict.REJECT, 1, 2)
        self.come(W, "worker")
        self.sub(W, 1, group="billing")
        self.come(O, "other", client="other")
        self.come(G, GUEST_NAME, enrol=True)

    def come(self, peer: bytes, principal: str, **fields: Any) -> m.ToClient:
        """A session of a principal."""
        self.identities[peer] = Identity(principal, KEY, "10.0.0.7")
        return self.hello(peer, ttl_ms=600_000, **fields)

    def say(self, peer: bytes, message: m.ToHub, *, commit: bool = True) -> list[m.ToClient]:
        """As the hub does it: with the identity of the connection."""
        heard = len(self.said.setdefault(peer, []))
        self.step(peer, message)
        self.router.tick(self.now)
        self._hear(self.router.take_frames())
        if commit:
            self.commit()
        return self.said[peer][heard:]

    def step(self, peer: bytes, message: m.ToHub) -> None:
        self.router.step(message, peer, self.now, self.identities.get(peer, LOCAL))
        self._hear(self.router.take_frames())

    def admin(self, op: str, **fields: Any) -> m.Ok:
        answer = self.say(L, m.Admin(5, {"op": op, **fields}))[-1]
        assert isinstance(answer, m.Ok), answer
        return answer

    def ask(self, peer: bytes, what: str, **fields: Any) -> dict[str, Any]:
        answer = self.say(peer, m.Info(6, {"what": what, **fields}))[-1]
        assert isinstance(answer, m.Ok), answer
        return dict(answer.fields)

    def audits(self) -> list[dict[str, Any]]:
        return [fields for topic, fields in self.advised if topic == "$sys.audit"]
