"""Several addresses: a hub and its standbys. One socket at a time, the next address after each loss."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import fabric_client
from fabric_client import AuthFailed, ConnectionLost
from fabric_client.core import reconnect
from fabric_client.core.session import ANOTHER_S, Session
from fabric_client.core.state import State
from fabric_client.keys import new_pair
from fabric_protocol import messages as m
from tests.clients.curve_hub import CurveServed
from tests.clients.model_hub import ModelHub, Served
from tests.clients.real_hub import eventually, free_port
from tests.clients.talk import said, welcome
from tests.patience import PATIENCE_S


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnect, "REFUSED_S", 0.1)
    monkeypatch.setattr(reconnect, "KEYED_S", (0.01, 0.05, 0.1))


class EpochHub(ModelHub):
    """A model hub whose journal has an epoch."""

    def __init__(self, epoch: int = 1) -> None:
        super().__init__()
        self.epoch = epoch

    def _say(self, peer: bytes, message: m.ToClient) -> None:
        if isinstance(message, m.Welcome):
            message = m.Welcome(message.rid, {**message.fields, "epoch": self.epoch})
        super()._say(peer, message)


@pytest.fixture
def pair() -> Iterator[tuple[Served, Served]]:
    """Two hubs at addresses that stay the same, the second with a newer epoch."""
    a, b = (Served(f"tcp://127.0.0.1:{free_port()}", EpochHub(epoch)) for epoch in (1, 2))
    yield a, b
    a.close()
    b.close()


def both(a: Any, b: Any) -> str:
    return f"{a.url},{b.url}"


def test_the_next_address_is_tried_when_a_hub_is_absent(served: Served) -> None:
    with fabric_client.connect(f"tcp://127.0.0.1:{free_port()}, {served.url}", timeout=PATIENCE_S) as fab:
        assert fab.publish("t", b"x").seq == 1


def test_all_addresses_are_named_when_none_answers() -> None:
    one, two = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    with pytest.raises(ConnectionLost, match=f"no hub at {one},{two}"):
        fabric_client.connect(f"{one},{two}", timeout=0.5)


def test_a_hub_that_does_not_answer_is_left(served: Served) -> None:
    """It accepts connections and says nothing, as a hub that is frozen."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with fabric_client.connect(f"{url},{served.url}", timeout=PATIENCE_S) as fab:
            assert fab.publish("t", b"x").seq == 1


def test_a_client_goes_to_the_other_hub_and_back(pair: tuple[Served, Served]) -> None:
    a, b = pair
    b.hub.epoch = 1  # type: ignore[attr-defined]
    with fabric_client.connect(both(a, b), timeout=PATIENCE_S) as fab:
        fab.publish("t", b"1")
        a.stop()
        assert fab.publish("t", b"2", timeout=PATIENCE_S).seq == 1
        assert len(b.hub.journal) == 1
        a.restart()
        b.stop()
        fab.publish("t", b"3", timeout=PATIENCE_S)
        b.restart()
    assert [payload for _, payload in a.hub.journal] == [b"1", b"3"]


def test_a_hub_with_an_older_epoch_is_not_used(pair: tuple[Served, Served], caplog: pytest.LogCaptureFixture) -> None:
    old, new = pair
    with fabric_client.connect(both(new, old), timeout=PATIENCE_S) as fab:
        fab.publish("t", b"1")
        new.stop()
        eventually(lambda: not fab.connected)
        with pytest.raises(ConnectionLost):
            fab.publish("t", b"withdrawn", timeout=0.5)
        eventually(lambda: "has epoch 1 of its journal, and this client has seen epoch 2" in caplog.text)
        assert old.hub.journal == []
        new.restart()
        fab.publish("t", b"2", timeout=PATIENCE_S)
        assert [payload for _, payload in new.hub.journal] == [b"1", b"2"]
    assert caplog.text.count("has epoch 1 of its journal") == 1, "one line, not one for each attempt"


def test_asyncio_goes_to_the_newer_epoch_and_stays(pair: tuple[Served, Served]) -> None:
    old, new = pair

    async def main() -> None:
        async with fabric_client.aconnect(both(old, new), timeout=PATIENCE_S) as fab:
            await fab.publish("t", b"1")
            old.stop()
            await fab.publish("t", b"2", timeout=PATIENCE_S)
            old.restart()
            new.restart()
            await fab.publish("t", b"3", timeout=PATIENCE_S)

    asyncio.run(main())
    assert [payload for _, payload in old.hub.journal] == [b"1"]
    assert [payload for _, payload in new.hub.journal] == [b"2", b"3"]


@pytest.mark.parametrize("is_invited", [False, True])
def test_a_client_that_one_hub_refuses_goes_to_the_other(is_invited: bool) -> None:
    """While an invitation is open, a hub refuses a key in its answer to HELLO, and not in the handshake."""
    hub_pair = new_pair()
    a, b = CurveServed(hub_pair), CurveServed(hub_pair)
    try:
        if is_invited:
            a.invite()
        found = b.credentials()
        with fabric_client.connect(both(a, b), credentials=found, timeout=PATIENCE_S) as fab:
            assert fab.publish("t", b"x").seq == 1
        b.revoke()
        timeout, kind = (1.0, ConnectionLost) if is_invited else (PATIENCE_S, AuthFailed)
        with pytest.raises(kind, match="not known to the hub"):
            fabric_client.connect(both(a, b), credentials=found, timeout=timeout)
    finally:
        a.close()
        b.close()


def test_a_refusal_is_told_although_another_address_is_dead() -> None:
    keyed = CurveServed(new_pair())
    nowhere = f"tcp://127.0.0.1:{free_port()}"
    try:
        found = keyed.credentials()
        with fabric_client.connect(f"{nowhere},{keyed.url}", credentials=found, timeout=PATIENCE_S) as fab:
            keyed.revoke()
            keyed.restart()

            def both_are_told() -> bool:
                with pytest.raises(ConnectionLost) as caught:
                    fab.publish("t", b"x", timeout=0.02)
                told = str(caught.value)
                return f"not known to the hub at {keyed.url}; no hub at {nowhere}" in told

            eventually(both_are_told)
            keyed.enrol(found)
            fab.publish("t", b"x", timeout=PATIENCE_S)
    finally:
        keyed.close()


# The session, without sockets.


def test_epochs_count_for_each_journal() -> None:
    session = Session("me", "p", lambda: 0.5)

    def greeted(journal: bytes, epoch: int) -> bool:
        session.lost(0.0, "test")
        session.opened(session.reopen_at)
        welcome(session, journal=journal, epoch=epoch)
        said(session)
        return session.state is State.LIVE

    assert greeted(b"a" * 16, 3)
    assert greeted(b"b" * 16, 1)
    assert not greeted(b"a" * 16, 2)
    assert "epoch 2 of its journal" in str(session.lost_reason)
    assert greeted(b"a" * 16, 3)
    assert greeted(b"a" * 16, 4)
    assert not greeted(b"a" * 16, 3)


def test_a_client_with_several_addresses_waits_less_for_each() -> None:
    one, several = (Session("me", "p", lambda: 0.5, several=is_several) for is_several in (False, True))
    for session in (one, several):
        session.opened(0.0)
        session.tick(ANOTHER_S)
    assert (one.state, several.state) == (State.OPENING, State.LOST)
