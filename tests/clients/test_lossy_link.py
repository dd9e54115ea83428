"""With a link that loses frames and a hub that restarts, each publish is stored once and in order, is confirmed only
when it is stored, and each message is acked in the end. The client's core talks to the model hub; a seeded random
generator breaks the link at any point."""

import itertools
import random

import pytest

from fabric_client.core.outgoing import PLAIN, prepare
from fabric_client.core.session import Session
from fabric_client.core.state import State
from fabric_client.core.subscription import Subscription
from fabric_client.core.ticket import Ticket
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from tests.clients.model_hub import ModelHub
from tests.clients.talk import take

MESSAGES = 120
STEPS_MAX = 20_000


class Link:
    """Two queues between a session and the hub; a cut loses both."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.hub = ModelHub(flow=(4, 4000), deliver_max=7)
        self.session = Session("test", "p", self.random.random)
        self.up: list[m.ToHub] = []
        self.down: list[m.ToClient] = []
        self.peer = b""
        self.now = 0.0
        self._peers = itertools.count(1)

    def step(self) -> None:
        """Something happens: a message moves one way or the other, or time passes."""
        self.now += 0.001
        if self.session.wants_socket(self.now):
            self.cut()
            self.peer = next(self._peers).to_bytes(5, "big")
            self.session.opened(self.now)
        self.session.tick(self.now)
        self.up += self.session.out
        self.session.out = []
        if self.up and self.random.random() < 0.5:
            self._arrive(self.up.pop(0))
        if self.down and self.random.random() < 0.5:
            self.session.receive(self.down.pop(0), self.now)
        elif not self.up and not self.down:
            self.now = max(self.now, min(self.session.next_deadline(), self.now + 1.0))

    def _arrive(self, message: m.ToHub) -> None:
        answers = self.hub.step(self.peer, message)
        self.down += [answer for peer, answer in answers if peer == self.peer]

    def cut(self) -> None:
        """What is on its way is lost; some of what went up only after the hub has heard it."""
        for message in self.up[: self.random.randrange(len(self.up) + 1)]:
            self._arrive(message)
        for answer in self.down[: self.random.randrange(len(self.down) + 1)]:
            self.session.receive(answer, self.now)
        self.up, self.down = [], []

    def trouble(self) -> None:
        kind = self.random.random()
        if kind < 0.010:
            self.cut()
            self.session.lost(self.now, "cut")
        elif kind < 0.015:
            self.cut()
            self.hub.restart()
            self.session.lost(self.now, "hub restarted")
        elif kind < 0.017:
            self.hub.restart()  # unnoticed: NO_SESSION will tell
        elif kind < 0.030:
            retry = {"retry_ms": self.random.choice((1, 20))}
            self.hub.refuse.append(m.Err(0, 0, self.random.choice((Code.BUSY, Code.DISK_FULL)), "later", retry))


@pytest.mark.parametrize("seed", range(40))
def test_confirmed_publishes_are_stored_once_and_in_order(seed: int) -> None:
    link = Link(seed)
    tickets: list[Ticket] = []
    for _ in range(STEPS_MAX):
        if len(tickets) < MESSAGES and link.random.random() < 0.2:
            ticket = Ticket()
            message = prepare("t", f"{len(tickets)}", None, None, None)
            link.session.publisher.put(message, PLAIN, ticket)
            tickets.append(ticket)
        if len(tickets) < MESSAGES:
            link.trouble()
        link.step()
        if len(tickets) == MESSAGES and all(ticket.done for ticket in tickets):
            break
    stored = [int(payload) for _, payload in link.hub.journal]
    assert stored == list(range(MESSAGES)), f"seed {seed}"
    for index, ticket in enumerate(tickets):
        assert ticket.result().seq == index + 1, f"seed {seed}"


@pytest.mark.parametrize("seed", range(20))
def test_refused_messages_are_told_and_the_others_stored_in_order(seed: int) -> None:
    link = Link(1000 + seed)
    tickets: list[Ticket] = []
    for _ in range(STEPS_MAX):
        if len(tickets) < MESSAGES and link.random.random() < 0.2:
            ticket = Ticket()
            link.session.publisher.put(prepare("t", f"{len(tickets)}", None, None, None), PLAIN, ticket)
            tickets.append(ticket)
            if link.random.random() < 0.1:
                link.hub.refuse.append(m.Err(0, 0, Code.BAD_TOPIC, "never", {}))
        if len(tickets) < MESSAGES:
            link.trouble()
        link.step()
        if len(tickets) == MESSAGES and all(ticket.done for ticket in tickets):
            break
    refused = {index for index, ticket in enumerate(tickets) if ticket.error is not None}
    stored = [int(payload) for _, payload in link.hub.journal]
    assert refused
    assert stored == [index for index in range(MESSAGES) if index not in refused], f"seed {seed}"


@pytest.mark.parametrize("seed", range(30))
def test_every_message_is_handled_and_acked_at_last(seed: int) -> None:
    link = Link(2000 + seed)
    request = {"patterns": ["#"], "group": "g"}
    sub = link.session.subscribe(
        lambda chan: Subscription(chan, request, prefetch=link.random.choice((1, 5, 50))), Ticket()
    )
    handled: set[int] = set()
    held = []
    published = 0
    for _ in range(STEPS_MAX):
        if published < MESSAGES and link.random.random() < 0.2:
            link.session.publisher.put(prepare("t", f"{published}", None, None, None), PLAIN)
            published += 1
        if published < MESSAGES:
            link.trouble()
        link.step()
        if sub.ready and link.random.random() < 0.3:
            held += list(take(sub))
        while held and link.random.random() < 0.6:
            message = held.pop(link.random.randrange(len(held)))
            handled.add(message.seq)
            message.ack()
        if link.session.state is State.LIVE and link.random.random() < 0.2:
            link.session.flush(sub)
        if published == MESSAGES and len(set(link.hub.acked.get("g", []))) == MESSAGES and link.session.settled:
            break
    acked = link.hub.acked["g"]
    assert sorted(acked) == list(range(1, MESSAGES + 1)), f"seed {seed}: each settled once"
    assert handled == set(acked), f"seed {seed}: nothing is acked that was not handled"
