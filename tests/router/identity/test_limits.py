"""Limits of a principal: rates with a debt, bytes in flight, and groups."""

import pytest

from fabric.router.access import usage as usage_module
from fabric.router.access.principal import Principal
from fabric.router.access.role import Limits, Role
from fabric.router.access.usage import BURST_S, Usage, require_room_for_group
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.errors import Code, ProtocolError
from tests.router.identity.people import ADMIN, ANN, ANN2, BOB, CLIENT, People
from tests.seeds import seeded


def usage(**limits: int) -> Usage:
    made = Usage()
    made.limit(Limits(**limits))
    return made


def wait_of(used: Usage, count: int, size: int, now: float) -> int:
    """The retry_ms of a refusal; 0 when the publish is taken."""
    try:
        used.publish(count, size, now)
    except ProtocolError as error:
        return int(error.fields["retry_ms"])
    return 0


def test_without_limits_nothing_is_checked() -> None:
    used = usage()
    assert not used.is_limited
    assert not usage(sessions=3, groups=3).is_limited
    for _ in range(1_000):
        assert wait_of(used, 1 << 20, 1 << 30, 5.0) == 0


@pytest.mark.parametrize("limits", [{"rate": 100}, {"bytes": 100}])
def test_a_burst_of_a_second_passes_and_then_the_rate(limits: dict[str, int]) -> None:
    used, now = usage(**limits), 1_000.0
    taken = 0
    while not (retry_ms := wait_of(used, 10, 10, now)):
        taken += 10
    assert (taken, retry_ms) == (100 * BURST_S, 1)
    assert wait_of(used, 10, 10, now + 0.001) == 0  # a debt of 99 ms
    assert wait_of(used, 10, 10, now + 0.001) == 100
    assert wait_of(used, 10, 10, now + 0.099) == 2
    assert wait_of(used, 10, 10, now + 0.101) == 0


def test_a_block_larger_than_the_burst_passes_and_is_paid_for() -> None:
    used = usage(rate=10)
    assert wait_of(used, 1_000, 1, 0.0) == 0
    assert wait_of(used, 1, 1, 0.0) == 99_001
    assert wait_of(used, 1, 1, 98.99) > 0
    assert wait_of(used, 1, 1, 99.001) == 0


@pytest.mark.parametrize("number", range(5))
def test_a_client_that_obeys_gets_its_rate_and_is_refused_once_for_each_block(number: int) -> None:
    rng = seeded(f"client {number}")
    used, now, sent, refused = usage(rate=1_000, bytes=100_000), 50.0, 0, 0
    size = 0
    while now < 150.0:
        count = rng.randint(1, 300)
        retry_ms = wait_of(used, count, count * 50, now)
        if retry_ms:
            refused += 1
            now += retry_ms / 1000
            assert wait_of(used, count, count * 50, now) == 0, "the time that was told is right"
        sent, size = sent + count, size + count * 50
    assert 0.97 < sent / 100_000 < 1.03
    assert size / 100 <= 100_000 * 1.03


def test_silence_gives_no_more_than_a_burst() -> None:
    used = usage(rate=10)
    wait_of(used, 1, 1, 0.0)
    taken = 0
    while not wait_of(used, 1, 1, 1_000.0):
        taken += 1
    assert taken == 10


def test_a_refused_publish_costs_nothing() -> None:
    used = usage(rate=10, bytes=10)
    assert wait_of(used, 1, 100, 0.0) == 0
    first = wait_of(used, 1, 1, 0.0)
    assert [wait_of(used, 1, 1, 0.0) for _ in range(50)] == [first] * 50


def test_other_limits_begin_without_a_debt_and_the_same_limits_keep_it() -> None:
    used = usage(rate=1)
    wait_of(used, 1_000, 1, 0.0)
    used.limit(Limits(rate=1))
    assert wait_of(used, 1, 1, 0.0) > 0
    used.limit(Limits(rate=2))
    assert wait_of(used, 1, 1, 0.0) == 0
    used.limit(Limits())
    assert not used.is_limited


def test_bytes_in_flight_have_a_limit_and_one_block_always_passes() -> None:
    used = usage(inflight=100)
    assert wait_of(used, 1, 1_000, 0.0) == 0
    used.inflight_bytes = 60
    assert wait_of(used, 1, 40, 0.0) == 0
    assert wait_of(used, 1, 41, 0.0) == 50


# In the hub.


@pytest.fixture
def world() -> People:
    world = People()
    for peer in (ANN, ANN2, BOB):
        world.opened(peer, producer={"name": peer.decode()})
    return world


def publish(world: People, peer: bytes, pseq: int, count: int = 1, *, commit: bool = True) -> list[m.ToClient]:
    block = encode("t", [b"x" * 100] * count)
    return world.say(peer, m.Publish(9, pseq, m.Level.JOURNALED, block), commit=commit)


def test_sessions_of_a_principal_share_its_rate_and_others_do_not_notice(world: People) -> None:
    world.change(ann=CLIENT._replace(limits=Limits(rate=10)))
    for pseq in range(1, 7):
        publish(world, ANN, pseq)
        publish(world, ANN2, pseq)
    assert len(world.stored()) == 10
    (refusal,) = publish(world, ANN2, 6)
    assert isinstance(refusal, m.Err)
    assert (refusal.code, refusal.fields["retry_ms"]) == (Code.BUSY, 1)
    for pseq in range(1, 50):
        assert isinstance(publish(world, BOB, pseq)[-1], m.PubOk)
    world.pass_time(refusal.fields["retry_ms"] / 1000)
    assert isinstance(publish(world, ANN2, 6)[-1], m.PubOk)


def test_blocks_behind_a_refused_one_cost_nothing(world: People) -> None:
    world.change(ann=CLIENT._replace(limits=Limits(rate=10)))
    publish(world, ANN, 1, 11)
    before = publish(world, ANN, 12)[0]
    for pseq in range(13, 60):  # a window that was on its way
        (gap,) = publish(world, ANN, pseq, 100)
        assert isinstance(gap, m.Err)
        assert gap.code == Code.SEQUENCE_GAP
    assert publish(world, ANN, 12)[0] == before


def test_a_refused_publish_is_not_stored_and_its_resend_is(world: People) -> None:
    world.change(ann=CLIENT._replace(limits=Limits(bytes=1_000)))
    publish(world, ANN, 1, 20)
    assert isinstance(publish(world, ANN, 21)[0], m.Err)
    world.pass_time(10)
    assert isinstance(publish(world, ANN, 21)[0], m.PubOk)
    assert len(world.stored()) == 21


def test_bytes_in_flight_are_those_of_all_sessions_until_they_are_on_disk(world: People) -> None:
    size = len(encode("t", [b"x" * 100]))
    world.change(ann=CLIENT._replace(limits=Limits(inflight=2 * size)))
    assert publish(world, ANN, 1, commit=False) == []
    assert publish(world, ANN2, 1, commit=False) == []
    used = world.router.session_table.session_of(ANN).principal.usage
    assert used.inflight_bytes == 2 * size
    (refusal,) = publish(world, ANN, 2, commit=False)
    assert isinstance(refusal, m.Err)
    assert (refusal.code, refusal.fields["retry_ms"]) == (Code.BUSY, 50)
    publish(world, BOB, 1, commit=False)
    world.commit()
    assert used.inflight_bytes == 0
    assert isinstance(publish(world, ANN, 2)[0], m.PubOk)


def test_bytes_in_flight_of_a_session_that_has_ended_are_given_back(world: People) -> None:
    publish(world, ANN, 1, commit=False)
    used = world.router.session_table.session_of(ANN).principal.usage
    world.say(ANN, m.Goodbye(0), commit=False)
    assert used.inflight_bytes > 0
    world.commit()
    assert used.inflight_bytes == 0


def test_delayed_publishes_and_transactions_are_limited_too(world: People) -> None:
    world.change(ann=CLIENT._replace(limits=Limits(rate=1)))
    publish(world, ANN, 1, 5)
    assert world.later(ANN, "x").code == Code.BUSY
    world.sub(ANN, 1, "t", group="g", start="first")
    answer = world.say(ANN, m.Transact(4, 6, ((1, ((m.Verdict.ACK, 1, 1, None),)),), encode("u", [b"x"])))[-1]
    assert isinstance(answer, m.Err)
    assert answer.code == Code.BUSY
    world.pass_time(4.1)
    answer = world.say(ANN, m.Transact(4, 6, ((1, ((m.Verdict.ACK, 1, 1, None),)),), encode("u", [b"x"])))[-1]
    assert isinstance(answer, m.Ok)


def test_a_schedule_that_repeats_does_not_multiply_the_rate(world: People) -> None:
    world.change(ann=CLIENT._replace(limits=Limits(rate=10)))
    options = {"every_ms": 1_000, "name": "often"}
    block = encode("t", [b"x"] * 300)
    world.say(ANN, m.Publish(7, 0, m.Level.JOURNALED, block, options))
    for _ in range(200):
        world.pass_time(1)
        world.pass_time(0)
    # A minute may be owed, and 200 seconds have passed; the last time is stored as a whole.
    assert 200 * 10 <= len(world.stored()) <= (60 + 200) * 10 + 300
    assert world.router.counters["schedules_missed"] > 190
    told = [fields for topic, fields in world.advised if topic == "$sys.refused"]
    assert told[-1]["code"] == "BUSY"
    assert "schedule 1 of principal 'ann' has missed a time" in told[-1]["why"]
    assert isinstance(publish(world, ANN, 1)[0], m.Err), "what schedules publish counts for all"


def test_a_principal_that_uses_its_rate_misses_no_time_of_its_schedule(world: People) -> None:
    world.change(ann=CLIENT._replace(limits=Limits(rate=10)))
    world.say(ANN, m.Publish(7, 0, m.Level.JOURNALED, encode("t", [b"s"]), {"every_ms": 10_000, "name": "often"}))
    pseq = 1
    for _ in range(600):
        for _ in range(3):
            pseq += isinstance(publish(world, ANN, pseq)[-1], m.PubOk)
        world.pass_time(0.1)
    assert world.stored().count("s") >= 5
    assert world.router.counters["schedules_missed"] == 0


def test_schedules_without_limits_are_not_counted(world: People) -> None:
    world.say(ANN, m.Publish(7, 0, m.Level.JOURNALED, encode("t", [b"x"] * 300), {"every_ms": 1_000, "name": "often"}))
    for _ in range(5):
        world.pass_time(1)
        world.pass_time(0)
    assert len(world.stored()) == 1_500


def test_one_principal_does_not_take_the_place_of_all_subscriptions(
    world: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_module, "SUBSCRIPTIONS_MAX", 3)
    for chan in (1, 2):
        world.sub(ANN, chan, "t")
    world.sub(ANN2, 1, "t")
    world.sub(ANN, 3, "t", group="g")
    (refusal,) = world.sub(ANN, 4, "t")
    assert isinstance(refusal, m.Err)
    assert refusal.code == Code.BUSY
    for chan in (1, 2, 3, 4):
        assert isinstance(world.sub(ADMIN, chan, "t")[0], m.Ok), "local has all rights"
    assert isinstance(world.sub(BOB, 1, "t")[0], m.Ok)
    world.say(ANN, m.Unsubscribe(1, 9))
    assert isinstance(world.sub(ANN, 4, "t")[0], m.Ok)
    world.say(ANN, m.Goodbye(9))
    world.say(ANN2, m.Goodbye(9))
    world.opened(ANN)
    assert world.router.session_table.session_of(ANN).principal.usage.subscriptions == 0


@pytest.mark.parametrize("kind", ["publish", "delayed", "transaction"])
def test_every_way_to_publish_needs_the_right_to_all_topics(world: People, kind: str) -> None:
    world.sub(ANN, 1, "t", group="g")
    publish(world, BOB, 1)
    world.change(ann=CLIENT._replace(publish=("t", "u.#")))
    for topics, expected in ((["t"], True), (["t", "u.x"], True), (["v"], False), (["t", "v"], False)):
        block = encode(topics, [b"x"] * len(topics))
        message: m.ToHub = m.Publish(9, 0, m.Level.JOURNALED, block, {"delay_ms": 1_000} if kind == "delayed" else {})
        if kind == "transaction":
            message = m.Transact(9, 0, ((1, ((m.Verdict.TOUCH, 1, 1, None),)),), block)
        answer = world.say(ANN, message)[-1]
        assert (not isinstance(answer, m.Err)) is expected, answer
        if isinstance(answer, m.Err):
            assert answer.code == Code.FORBIDDEN


class _Group:
    def __init__(self, durable: bool = True) -> None:
        self.durable = durable


def test_groups_with_names_that_a_principal_may_use_are_counted() -> None:
    role = Role("worker", groups=("billing*", "audit"), limits=Limits(groups=2))
    groups = {"billing-1": _Group(), "other": _Group(), "billing-tmp": _Group(durable=False)}
    require_room_for_group(Principal("ann", role), groups)
    groups["audit"] = _Group()
    with pytest.raises(ProtocolError, match="fewer than 2 groups") as refusal:
        require_room_for_group(Principal("ann", role), groups)
    assert refusal.value.code == Code.FORBIDDEN
    require_room_for_group(Principal("ann", role._replace(limits=Limits())), groups)
