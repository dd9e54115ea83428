"""Helpers for tests that talk to the client's core by hand: time is a number, the hub is a list of messages."""

from collections.abc import Sequence
from typing import Any

from fabric_client.core.batch import Batch
from fabric_client.core.outgoing import PLAIN, Options, prepare
from fabric_client.core.publisher import Publisher
from fabric_client.core.session import Session
from fabric_client.core.subscription import Subscription
from fabric_client.core.ticket import Ticket
from fabric_protocol import block
from fabric_protocol import messages as m

BLOCK_BYTES_MAX = 1 << 20


class Desk:
    """A Publisher, and what it said."""

    def __init__(self, flow: tuple[int, int] = (4, 1 << 20), last_pseq: int = 0) -> None:
        self.said: list[m.Publish] = []
        self._rid = 0
        self.publisher = Publisher(self.said.append, self._next_rid)  # type: ignore[arg-type]
        self.flow = flow
        self.welcome(last_pseq)

    def _next_rid(self) -> int:
        self._rid += 1
        return self._rid

    def welcome(self, last_pseq: int = 0, same_journal: bool = True) -> None:
        self.publisher.welcomed(last_pseq, same_journal, self.flow, BLOCK_BYTES_MAX)

    def put(self, body: str | bytes, topic: str = "t", options: Options = PLAIN, **columns: Any) -> Ticket:
        ticket = Ticket()
        raw = body.encode() if isinstance(body, str) else body
        message = prepare(topic, raw, columns.get("key"), columns.get("id"), columns.get("headers"))
        self.publisher.put(message, options, ticket)
        return ticket

    def pump(self, now: float = 0.0) -> list[m.Publish]:
        """What leaves now."""
        self.publisher.send_blocks(now)
        said, self.said[:] = list(self.said), []
        return said

    def confirm(self, *sent: m.Publish, seq: int = 1, dups: int = 0) -> None:
        rows = []
        for publish in sent:
            count = block.Block(publish.block).count
            rows.append((publish.rid, seq, count - dups, dups))
            seq += count
        self.publisher.confirmed(m.PubOk(0, tuple(rows)))

    def refuse(self, sent: m.Publish, code: int, now: float = 0.0, **fields: Any) -> bool:
        return self.publisher.refused(m.Err(0, sent.rid, code, "no", fields), now)


def bodies(publish: m.Publish) -> list[bytes]:
    return block.Block(publish.block).payloads()


def welcome(
    session: Session, *, resumed: bool = False, subs: Sequence[int] = (), now: float = 0.0, **more: Any
) -> None:
    """Answer the HELLO that is on its way, and forget it."""
    (hello,) = (message for message in session.out if isinstance(message, m.Hello))
    session.out.clear()
    fields = {
        "proto": 1, "hub": "0", "journal": b"J" * 16, "epoch": 1, "session": b"S" * 16, "resumed": resumed,
        "hb_ms": 5000, "ttl_ms": 30000, "limits": {"block_bytes": BLOCK_BYTES_MAX}, "flow": [4, 1 << 20],
        "producer": {"epoch": 1, "last_pseq": 0, "last_seq": 0}, "subs": list(subs), **more,
    }  # fmt: skip
    session.receive(m.Welcome(hello.rid, fields), now)


def said(session: Session) -> list[m.ToHub]:
    """What the session has to say, taken away."""
    out, session.out = session.out, []
    return out


def live_session(now: float = 0.0) -> Session:
    session = Session("test", "p", lambda: 0.5)
    session.opened(now)
    welcome(session, now=now)
    return session


def deliver(chan: int, ordinal: int, *payloads: bytes, seq: int = 1, attempt: int = 1) -> m.Deliver:
    raw = block.stamp(block.encode("t", payloads), seq, 1_700_000_000_000_000)
    return m.Deliver(chan, ordinal, attempt, (), raw)


def take(sub: Subscription) -> Batch:
    batch = sub.take()
    assert isinstance(batch, Batch)
    return batch
