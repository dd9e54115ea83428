"""What a program that serves others needs of its consumers: leases without renewal, limits of a group, group.settle."""

import asyncio
import time
from typing import Any

import pytest

from fabric.hub import Hub
from fabric_client import AsyncClient, Client, Stale
from fabric_client.options import group_fields
from fabric_protocol.errors import FabricError
from tests.clients.real_hub import another, eventually
from tests.patience import PATIENCE_S

LEASE_S = 0.4


def group(fab: Client) -> dict[str, Any]:
    return dict(fab.info("group", "g", timeout=PATIENCE_S))


def test_a_lease_that_is_not_renewed_goes_to_another_consumer(hub: Hub, fab: Client) -> None:
    fab.publish("a", b"1")
    (held,) = fab.fetch("a", group="g", lease=LEASE_S, renew=False, timeout=PATIENCE_S)
    with another(hub) as other:
        (again,) = other.fetch(group="g", timeout=PATIENCE_S)
        assert (again.body, again.attempt) == (b"1", 2)
        with pytest.raises(Stale):
            held.settle(timeout=PATIENCE_S)
        again.settle(timeout=PATIENCE_S)


def test_a_lease_is_renewed_by_default(hub: Hub, fab: Client) -> None:
    fab.publish("a", b"1")
    (held,) = fab.fetch("a", group="g", lease=LEASE_S, timeout=PATIENCE_S)
    with another(hub) as other:
        assert other.fetch(group="g", timeout=3 * LEASE_S) == []
        held.settle(timeout=PATIENCE_S)


def test_the_asyncio_client_renews_or_does_not(hub: Hub, fab: Client) -> None:
    async def main() -> None:
        async with AsyncClient("inproc://hub", context=hub.context) as one:
            await one.publish("a", b"1")
            (kept,) = await one.fetch("a", group="g", lease=LEASE_S, timeout=PATIENCE_S)
            assert await one.fetch(group="g", renew=False, timeout=3 * LEASE_S) == []
            await kept.settle("touch", lease=5, timeout=PATIENCE_S)
            await kept.settle(timeout=PATIENCE_S)
            await one.publish("a", b"2")
            (held,) = await one.fetch("a", group="g", lease=LEASE_S, renew=False, timeout=PATIENCE_S)
            (again,) = await one.fetch(group="g", timeout=PATIENCE_S)
            assert again.body == b"2"
            with pytest.raises(Stale):
                await held.settle("touch", timeout=PATIENCE_S)
            await again.settle(timeout=PATIENCE_S)

    asyncio.run(main())


def test_a_touch_with_an_answer_leaves_the_message_open(hub: Hub, fab: Client) -> None:
    fab.publish("a", b"1")
    (held,) = fab.fetch("a", group="g", lease=LEASE_S, renew=False, timeout=PATIENCE_S)
    held.settle("touch", lease=PATIENCE_S, timeout=PATIENCE_S)
    with another(hub) as other:
        assert other.fetch(group="g", timeout=2 * LEASE_S) == []
    held.settle(timeout=PATIENCE_S)
    with pytest.raises(FabricError, match="has a verdict already"):
        held.settle("touch")
    assert group(fab)["floor"] == 1


def test_a_touch_with_an_answer_says_that_the_message_is_gone(hub: Hub, fab: Client) -> None:
    fab.publish("a", b"1")
    (held,) = fab.fetch("a", group="g", lease=LEASE_S, renew=False, timeout=PATIENCE_S)
    eventually(lambda: group(fab)["outstanding"] == 0)
    with pytest.raises(Stale):
        held.settle("touch", timeout=PATIENCE_S)


@pytest.mark.parametrize("wrong", [{"verdict": "ack", "lease": 3}, {"verdict": "touch", "delay": 3}])
def test_an_argument_of_another_verdict_is_refused(hub: Hub, fab: Client, wrong: dict[str, Any]) -> None:
    fab.publish("a", b"1")
    (held,) = fab.fetch("a", group="g", timeout=PATIENCE_S)
    with pytest.raises(FabricError, match="takes no"):
        held.settle(**wrong)
    held.settle(timeout=PATIENCE_S)


def test_a_fetch_returns_with_the_first_message(hub: Hub, fab: Client) -> None:
    fab.publish("a", b"1")
    began = time.monotonic()
    assert len(fab.fetch("a", group="g", count=10, timeout=PATIENCE_S)) == 1
    assert time.monotonic() - began < PATIENCE_S / 2


def test_all_consumers_together_hold_no_more_than_max_in_flight(hub: Hub, fab: Client) -> None:
    fab.publish_many("a", [b"%d" % n for n in range(10)])
    first = fab.fetch("a", group="g", max_in_flight=3, count=2, timeout=PATIENCE_S)
    with another(hub) as other:
        second = other.fetch(group="g", count=8, timeout=PATIENCE_S)
        assert (len(first), len(second)) == (2, 1)
        assert other.fetch(group="g", timeout=0.1) == []
        first[0].settle(timeout=PATIENCE_S)
        third = other.fetch(group="g", count=8, timeout=PATIENCE_S)
        assert len(third) == 1
        fab.admin.groups.update("g", max_in_flight=0)
        assert len(other.fetch(group="g", count=8, timeout=PATIENCE_S)) == 6


def test_a_rate_holds_messages_back(hub: Hub, fab: Client) -> None:
    fab.publish_many("a", [b"%d" % n for n in range(10)])
    began = time.monotonic()
    found = fab.fetch("a", group="g", rate="10/s", count=4, at_least=4, timeout=PATIENCE_S)
    assert len(found) == 4
    assert time.monotonic() - began >= 0.29
    assert (group(fab)["rate"], group(fab)["rate_ms"]) == (10, 1000)


def test_a_group_expires_and_its_advisory_tells_it(hub: Hub, fab: Client) -> None:
    with fab.consume("$sys.group.expired", count=1, timeout=PATIENCE_S) as told:
        fab.admin.groups.create("g", "a", expires=0.3)
        (advisory,) = list(told)
    assert advisory.data["group"] == "g"
    assert "g" not in [row["group"] for row in fab.info("groups")["groups"]]


def test_a_group_is_settled_up_to_a_seq(hub: Hub, fab: Client) -> None:
    fab.publish_many("a", [b"%d" % n for n in range(10)])
    held = fab.fetch("a", group="g", count=3, at_least=3, timeout=PATIENCE_S)
    plan = fab.admin.groups.settle("g", 7, dry_run=True)
    assert (plan["settled"], plan["leased"], plan["floor"]) == (7, 3, 0)
    assert fab.admin.groups.settle("g", 7)["floor"] == 7
    with pytest.raises(Stale):
        held[0].settle(timeout=PATIENCE_S)
    assert [message.body for message in fab.fetch(group="g", count=10, at_least=3, timeout=PATIENCE_S)] == [
        b"7",
        b"8",
        b"9",
    ]


@pytest.mark.parametrize(
    ("rate", "fields"),
    [
        ("100/s", (100, 1000)),
        ("10/min", (10, 60_000)),
        ("5/h", (5, 3_600_000)),
        ("1/d", (1, 86_400_000)),
        (0, (0, 1000)),
    ],
)
def test_a_rate_is_messages_in_a_time(rate: Any, fields: tuple[int, int]) -> None:
    assert group_fields({"rate": rate}) == dict(zip(("rate", "rate_ms"), fields, strict=True))


@pytest.mark.parametrize("rate", ["100", 100, "fast", "1.5/s", "10/w", "-1/s", 1.0, True])
def test_a_wrong_rate_is_refused(rate: Any) -> None:
    with pytest.raises(FabricError, match="is not a rate"):
        group_fields({"rate": rate})
