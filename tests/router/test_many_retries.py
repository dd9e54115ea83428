"""Many RETRYs in one ACK, in groups with an order: the leases of a consumer are searched once, not for each RETRY."""

from typing import Any

import pytest

from fabric.router.groups.lease import Lease
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.messages import Verdict
from tests.router.world import World

COUNT = 2_000


@pytest.mark.parametrize("order", ["key", "strict"])
def test_many_retries_look_once_at_what_is_held(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.hello(b"w")
    world.sub(b"w", 1, "raw", group="work", order=order, credit=COUNT)
    for n in range(COUNT):
        block = encode("raw", [b"%d" % n], keys=[b"key %d" % (n % (COUNT // 2))])
        world.say(b"w", m.Publish(9, 0, 0, block))
    assert len(world.delivered(b"w")) == COUNT
    looked = 0
    each, after = Lease.each, Lease.open_after

    def counted(method: Any) -> Any:
        def call(*args: Any) -> Any:
            nonlocal looked
            looked += 1
            return method(*args)

        return call

    monkeypatch.setattr(Lease, "each", counted(each))
    monkeypatch.setattr(Lease, "open_after", counted(after))
    rows = tuple((Verdict.RETRY, n, n, 60_000 + n) for n in range(COUNT, 0, -1))
    (answer,) = [said for said in world.say(b"w", m.Settle(1, 7, rows)) if isinstance(said, m.Ok)]
    assert answer.fields == {"applied": COUNT, "stale": []}
    assert looked < 10 * COUNT
