"""A key is revoked while its client publishes as fast as it can, through a real hub."""

import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

import fabric_client
from fabric.access.keys import make_pair
from fabric_client import AuthFailed, Client, ConnectionLost, Credentials
from fabric_client.core import reconnect
from tests.hub.curve_kit import Keyed, keyed
from tests.hub.kit import eventually
from tests.patience import PATIENCE_S

THREADS = 3
BLOCK = 20
GIVE_UP_S = 5.0  # of a publish: longer than any commit, and waited for once, after the key was revoked


class Flood:
    """Threads of one client that publish blocks of keyed messages until one is not confirmed."""

    def __init__(self, fab: Client) -> None:
        self.confirmed: list[bytes] = []
        self.tried: set[bytes] = set()
        self.errors: list[ConnectionLost] = []
        self.topic = "before"
        self._fab = fab
        self._threads = [threading.Thread(target=self._publish, args=(number,)) for number in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def _publish(self, thread: int) -> None:
        keys = [f"{thread}.{number}" for number in range(BLOCK)]
        for first in range(0, 1 << 40, BLOCK):
            bodies = [b"%d.%d" % (thread, number) for number in range(first, first + BLOCK)]
            self.tried |= set(bodies)
            try:
                self._fab.publish_many(self.topic, bodies, keys=keys, timeout=GIVE_UP_S)
            except ConnectionLost as error:
                self.errors.append(error)
                return
            self.confirmed += bodies

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def stored(hub: Keyed) -> "Counter[bytes]":
    """How often each message is stored."""
    with fabric_client.connect(hub.access.admin_bind, timeout=PATIENCE_S) as owner:
        last = owner.info("hub")["last_seq"]
        return Counter(message.body for message in owner.get("#", n=last, timeout=PATIENCE_S))


@pytest.mark.parametrize("times", range(2))
def test_a_key_is_revoked_while_its_client_publishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(reconnect, "REFUSED_S", 0.1)
    pair = make_pair()
    with keyed(tmp_path) as hub:
        credentials = Credentials(hub.url, hub.key, pair.public, pair.secret, "billing")
        hub.admin.admin("keys.create", name="billing", role="client", key=pair.public)
        # What was not confirmed is in the errors of the flood.
        with suppress(ConnectionLost), fabric_client.connect(credentials=credentials, timeout=PATIENCE_S) as fab:
            flood = Flood(fab)
            eventually(lambda: len(flood.confirmed) > 2_000, "it publishes")
            assert hub.admin.admin("keys.revoke", name="billing")["keys"] == 1
            flood.topic = "late"
            last = hub.admin.info("hub")["last_seq"]
            flood.join()
            assert len(flood.errors) == THREADS
            for error in flood.errors:
                assert "the key of this client is not known to the hub" in str(error)
            with pytest.raises(AuthFailed, match="is not known to the hub") as caught:
                fabric_client.connect(credentials=credentials, timeout=PATIENCE_S)
            assert "fabric join" in caught.value.hint
            assert [row["topic"] for row in hub.admin.info("topics")["topics"]] == ["before"]
            assert hub.admin.info("hub")["last_seq"] == last, "nothing was stored after the answer"
            hub.admin.admin("keys.create", name="billing", role="client", key=pair.public)
            fab.publish("after", b"the running client", timeout=PATIENCE_S)
        with fabric_client.connect(credentials=credentials, timeout=PATIENCE_S) as new:
            new.publish("after", b"a new client")
        found = stored(hub)
    assert set(flood.confirmed) <= set(found)
    assert set(found) <= flood.tried | {b"the running client", b"a new client"}
    assert set(found.values()) == {1}, "no message is stored twice"
    assert found.keys() >= {b"the running client", b"a new client"}
