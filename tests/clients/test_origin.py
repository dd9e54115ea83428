"""Origins in the Python client: given with a publish, and read from each message."""

import asyncio
import json
from typing import Any

import pytest

from fabric.cli.support.message_format import record
from fabric.hub import Hub
from fabric_client import BadMessage, Client, FabricError, Origin, aconnect, connect

BORN = Origin(b"j" * 16, 3, 700, 1_600_000_000_500_000)


def test_a_message_tells_where_it_was_born(fab: Client) -> None:
    fab.publish("a", b"local")
    fab.publish("a", b"1", origin=BORN)
    fab.publish("a", b"2", origin=BORN)  # the same again: it is another message with that origin
    fab.publish_nowait("a", b"3", origin=BORN.shifted(9))
    fab.publish_nowait("a", b"local")
    fab.publish_many("a", [b"4", b"5", b"6"], origin=BORN._replace(epoch=4))
    fab.flush()
    expected = [None, BORN, BORN, BORN.shifted(9), None, *(BORN._replace(epoch=4, seq=700 + n) for n in range(3))]
    assert [message.origin for message in fab.get(n=100)] == expected
    found = [message.origin for message in fab.fetch("a", group="g", start="first", count=8, at_least=8, timeout=10)]
    assert found == expected
    assert BORN.time == 1_600_000_000.5


def test_many_messages_of_one_origin_are_several_blocks(fab: Client) -> None:
    fab.publish_many("a", [b"x" * 1000] * 1000, origin=BORN)
    seqs = [message.origin.seq for message in fab.get(n=1000) if message.origin is not None]
    assert seqs == list(range(700, 1700))


def test_a_numbered_source_gives_origins(hub: Hub) -> None:
    with connect(hub.binds[1], source="link") as fab:
        for n in range(3):
            fab.publish_numbered_nowait(700 + 5 * n, "a", b"x", origin=BORN.shifted(5 * n))
        fab.flush()
        assert fab.position == 710
        assert [message.origin and message.origin.seq for message in fab.get(n=9)] == [700, 705, 710]


def test_a_wrong_origin_is_refused_in_the_call(fab: Client) -> None:
    wrongs: tuple[Any, ...] = ((1, 2, 3), BORN._replace(journal=b"short"), BORN._replace(seq=0), "text")
    for wrong in wrongs:
        with pytest.raises(BadMessage, match="origin"):
            fab.publish("a", b"x", origin=wrong)
    with pytest.raises(BadMessage, match="not scheduled"):
        fab.publish("a", b"x", origin=BORN, delay=5)


def test_the_asyncio_client_has_the_same(hub: Hub) -> None:
    async def run() -> None:
        async with aconnect(hub.binds[1]) as fab:
            await fab.publish("a", b"1", origin=BORN)
            await fab.publish_many("a", [b"2", b"3"], origin=BORN.shifted(1))
            assert [message.origin async for message in fab.get(n=9)] == [BORN.shifted(n) for n in range(3)]

    asyncio.run(run())


def test_the_json_of_a_message_has_its_origin(fab: Client) -> None:
    fab.publish("a", b"local")
    fab.publish("a", b"x", origin=BORN)
    local, foreign = (record(message) for message in fab.get(n=2))
    assert "origin" not in local
    assert json.loads(json.dumps(foreign["origin"]))["seq"] == 700
    assert foreign["origin"]["journal"] == BORN.journal.hex()


def test_a_hub_refuses_messages_of_its_own_journal(fab: Client) -> None:
    own = BORN._replace(journal=bytes.fromhex(fab.info("hub")["journal"]))
    with pytest.raises(FabricError, match="own journal"):
        fab.publish("a", b"x", origin=own)
    assert fab.publish("a", b"x", origin=BORN).seq == 1
