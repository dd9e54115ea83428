"""A schedule belongs to a principal: its name, its cancelling, what INFO tells, and the right to publish when due."""

from typing import Any

import pytest

from fabric.records import SaveSchedule
from fabric.router.access.identity import LOCAL
from fabric.router.access.role import NOTHING, Role
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.errors import Code
from tests.router.identity.people import ADMIN, ANN, BOB, CLIENT, EVE, People

OPER = b"oper"


@pytest.fixture
def world() -> People:
    world = People()
    for peer in (ANN, BOB, EVE, OPER):
        world.opened(peer, ttl_ms=600_000)
    return world


def wait(world: People, seconds: float = 11) -> None:
    world.pass_time(seconds)
    world.pass_time(0)


def owners(world: People) -> list[tuple[str, str]]:
    return [(row.owner, row.name) for row in world.reader.schedules.rows.values()]


def test_a_schedule_has_its_owner_on_disk_and_is_published_when_due(world: People) -> None:
    world.later(ANN, "a")
    world.later(ADMIN, "x")
    assert owners(world) == [("ann", ""), ("local", "")]
    world.restart()
    wait(world)
    assert world.stored() == ["a", "x"]
    assert world.reader.schedules.rows == {}


def test_two_principals_have_a_schedule_of_the_same_name(world: People) -> None:
    for peer in (ANN, BOB, ADMIN):
        assert "replaced" not in world.later(peer, peer.decode(), name="nightly").fields
    assert "replaced" in world.later(ANN, "ann again", name="nightly").fields
    assert sorted(owners(world)) == [("ann", "nightly"), ("bob", "nightly"), ("local", "nightly")]
    assert world.cancel(BOB, name="nightly").fields["cancelled"] is True
    wait(world)
    assert world.stored() == ["admin", "ann again"]


def test_a_repeated_schedule_keeps_its_owner_and_its_name(world: People) -> None:
    world.later(ANN, "a", name="often", every_ms=10_000)
    wait(world)
    wait(world)
    assert owners(world) == [("ann", "often")]
    assert world.cancel(ANN, name="often").fields["cancelled"] is True
    assert world.reader.schedules.owned.total() == 0


def test_names_are_apart_before_they_are_on_disk(world: People) -> None:
    options = {"delay_ms": 10_000, "name": "n"}
    for peer in (ANN, BOB):
        world.say(peer, m.Publish(7, 0, m.Level.JOURNALED, encode("t", [b"x"]), options), commit=False)
    world.say(ANN, m.Cancel(8, {"name": "n"}), commit=False)
    world.commit()
    assert owners(world) == [("bob", "n")]


def test_a_schedule_of_another_principal_is_not_found_and_stays(world: People) -> None:
    number = world.later(ANN, "a", name="nightly").fields["schedule"]
    by_id, by_name = world.cancel(EVE, id=number), world.cancel(EVE, name="nightly")
    by_owner = world.cancel(EVE, name="nightly", owner="ann")
    assert {answer.code for answer in (by_id, by_name, by_owner)} == {Code.NOT_FOUND}
    assert owners(world) == [("ann", "nightly")]
    assert [told["principal"] for told in world.audits(verb="CANCEL", kind="refused")] == ["eve", "eve"]
    assert "schedule 1 belongs to principal 'ann'" in world.audits()[0]["why"]


def test_the_answer_does_not_tell_whether_a_schedule_of_another_principal_exists(world: People) -> None:
    present = world.later(ANN, "a", name="here").fields["schedule"]
    ended = world.later(ANN, "b").fields["schedule"]
    world.cancel(ANN, id=ended)
    texts = {world.cancel(EVE, id=n).text.replace(str(n), "N") for n in (present, ended, 77)}
    assert len(texts) == 1
    texts = {
        world.cancel(EVE, name=name, owner=owner).text.replace(name, "N").replace(owner, "O")
        for name, owner in (("here", "ann"), ("gone", "ann"), ("here", "nobody"))
    }
    assert len(texts) == 1
    assert world.cancel(ANN, id=ended).text == f"schedule {ended} was cancelled"
    assert "never existed; the latest is 2" in world.cancel(OPER, id=77).text


def test_an_administrator_cancels_by_id_and_by_owner(world: People) -> None:
    number = world.later(ANN, "a").fields["schedule"]
    world.later(ANN, "b", name="nightly")
    assert world.cancel(OPER, name="nightly").code == Code.NOT_FOUND  # its own
    assert world.cancel(OPER, id=number).fields["cancelled"] is True
    assert world.cancel(OPER, name="nightly", owner="ann").fields["cancelled"] is True
    world.later(ANN, "c", name="nightly")
    assert world.cancel(ADMIN, name="nightly", owner="ann").fields["cancelled"] is True
    assert [told["principal"] for told in world.audits(verb="CANCEL", kind="admin")] == ["oper", "oper", "local"]


def test_an_owner_goes_with_a_name(world: People) -> None:
    assert world.cancel(ANN, id=1, owner="ann").code == Code.BAD_OPTION
    assert world.cancel(ANN, name="n", owner=5).code == Code.BAD_OPTION


# INFO.


def listed(world: People, peer: bytes, **fields: Any) -> tuple[int, int, dict[str, int], list[tuple[str, int]]]:
    answer = world.info(peer, "schedules", **fields)
    rows = [(row.get("owner", "local"), row["id"]) for row in answer["schedules"]]
    return answer["count"], answer["messages"], answer["topics"], rows


def test_info_tells_a_principal_of_its_own_schedules_only(world: People) -> None:
    for peer, topic in ((ANN, "a"), (ANN, "t"), (BOB, "t"), (ADMIN, "t"), (ADMIN, "l")):
        world.later(peer, "x", topic)
    assert listed(world, ANN) == (2, 2, {"a": 1, "t": 1}, [("ann", 1), ("ann", 2)])
    assert listed(world, BOB) == (1, 1, {"t": 1}, [("bob", 3)])
    assert listed(world, EVE) == (0, 0, {}, [])
    for peer in (ADMIN, OPER):
        assert listed(world, peer)[:3] == (5, 5, {"a": 1, "l": 1, "t": 3})
        assert listed(world, peer, owner="ann") == listed(world, ANN)
    assert world.info(EVE, "schedules", owner="ann").code == Code.FORBIDDEN
    assert listed(world, ANN, owner="ann") == listed(world, ANN)


def test_info_by_name_is_of_the_own_name(world: People) -> None:
    for peer in (ANN, BOB, ADMIN):
        world.later(peer, "x", name="n")
    assert listed(world, ANN, name="n")[3] == [("ann", 1)]
    assert listed(world, EVE, name="n")[3] == []
    assert listed(world, ADMIN, name="n")[3] == [("local", 3)]
    assert listed(world, ADMIN, name="n", owner="bob")[3] == [("bob", 2)]


def test_pages_of_a_principal_are_its_own(world: People) -> None:
    for _ in range(5):
        world.later(BOB, "b")
        world.later(ANN, "a")
    first = world.info(ANN, "schedules", n=2)
    assert ([row["id"] for row in first["schedules"]], first["more"]) == ([2, 4], True)
    rest = world.info(ANN, "schedules", n=9, after=first["next"])
    assert ([row["id"] for row in rest["schedules"]], rest["more"]) == ([6, 8, 10], False)


def test_connections_without_a_key_may_be_restricted_to_their_own(world: People) -> None:
    world.later(ADMIN, "x", "l")
    world.later(ANN, "x", "t")
    world.later(ADMIN, "x", "t")
    world.change(local=CLIENT)
    assert listed(world, ADMIN) == (2, 2, {"l": 1, "t": 1}, [("local", 1), ("local", 3)])
    assert world.cancel(ADMIN, id=2).code == Code.NOT_FOUND


# When due.


@pytest.mark.parametrize("role", [None, NOTHING, CLIENT._replace(publish=("other.#",))])
@pytest.mark.parametrize("options", [{}, {"every_ms": 10_000}, {"cron": "* * * * *"}])
def test_a_schedule_whose_owner_may_not_publish_ends_loudly(
    world: People, role: Role | None, options: dict[str, Any]
) -> None:
    world.later(ANN, "secret", "t", name="n", **options)
    world.later(BOB, "fine", "t")
    world.change(ann=role)
    wait(world, 61)
    assert world.stored() == ["fine"]
    assert owners(world) == []
    assert world.reader.schedules.counts(9) == (2, 0, 0, {})
    (ended,) = [fields for topic, fields in world.advised if topic == "$sys.schedule.ended"]
    assert (ended["schedule"], ended["name"], ended["owner"]) == (1, "n", "ann")
    (told,) = world.audits(kind="refused", principal="ann")
    assert (told["code"], told["schedule"]) == ("FORBIDDEN", 1)
    assert ended["why"] in told["why"]
    assert world.router.counters["schedules_ended"] == 1
    assert "has ended without a publish" in world.cancel(OPER, id=1).text


def test_one_topic_that_is_not_allowed_ends_the_whole_schedule(world: People) -> None:
    block = encode(["t", "u"], [b"1", b"2"])
    world.say(ANN, m.Publish(7, 0, m.Level.JOURNALED, block, {"delay_ms": 10_000}))
    world.change(ann=CLIENT._replace(publish=("t",)))
    wait(world)
    assert world.stored() == []
    assert "may not publish to topic 'u' any more" in world.audits()[0]["why"]


def test_the_right_is_looked_at_when_due_and_not_before(world: People) -> None:
    world.later(ANN, "a")
    world.change(ann=NOTHING)
    world.pass_time(5)
    world.change(ann=CLIENT)
    wait(world)
    assert world.stored() == ["a"]


def test_after_a_restart_the_owner_is_looked_at(world: People) -> None:
    world.later(ANN, "a")
    assert world.book is not None
    del world.book.principals["ann"]
    world.restart()
    wait(world)
    assert world.stored() == []
    assert len(world.audits(principal="ann")) == 1


def test_connections_without_a_key_may_lose_the_right_too(world: People) -> None:
    world.later(ADMIN, "x")
    world.change(local=NOTHING)
    wait(world)
    assert world.stored() == []


def test_a_hub_without_keys_publishes_schedules_of_all_owners(world: People) -> None:
    world.later(ANN, "a", name="n")
    world.book = None
    world.restart()
    world.identities[b"x"] = LOCAL
    world.opened(b"x")
    assert listed(world, b"x")[3] == [("ann", 1)]
    wait(world)
    assert world.stored() == ["a"]


def test_a_delayed_publish_needs_the_right_when_it_is_accepted(world: People) -> None:
    world.change(ann=CLIENT._replace(publish=("other",)))
    answer = world.later(ANN, "a")
    assert answer.code == Code.FORBIDDEN
    assert world.reader.schedules.rows == {}


def test_a_row_of_an_older_program_is_of_local() -> None:
    assert SaveSchedule(1, 2, b"").owner == "local"
