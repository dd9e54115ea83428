"""Names of producers: no principal takes over, fences or squats a name of another principal."""

from typing import Any

import pytest

from fabric.router.access.globs import matches
from fabric.router.access.identity import LOCAL
from fabric.router.access.role import EVERYTHING
from fabric.router.sessions import session_table
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.errors import Code
from tests.router.identity.people import ADMIN, ANN, ANN2, BOB, CLIENT, EVE, People

SHARED = CLIENT._replace(name="shared", producers=("shop.*", "kafka:*"))


@pytest.fixture
def world() -> People:
    return People()


def claim(world: People, peer: bytes, name: str, **more: Any) -> dict[str, Any]:
    return dict(world.opened(peer, producer={"name": name, **more})["producer"])


def delete(world: People, name: str) -> Any:
    return world.say(ADMIN, m.Admin(7, {"op": "producer.delete", "name": name}))[-1]


def test_two_principals_have_the_same_name_without_knowing_of_each_other(world: People) -> None:
    claim(world, ANN, "p")
    world.pub(ANN, "t", "a1", pseq=1)
    assert claim(world, BOB, "p")["last_pseq"] == 0
    world.pub(BOB, "t", "b1", pseq=1)
    world.pub(ANN, "t", "a2", pseq=2)  # not fenced
    assert world.stored() == ["a1", "b1", "a2"]
    assert set(world.producers) == {"ann/p", "bob/p"}
    world.restart()
    assert claim(world, ANN, "p")["last_pseq"] == 2
    assert claim(world, BOB, "p")["last_pseq"] == 1


def test_a_principal_takes_over_its_own_name(world: People) -> None:
    claim(world, ANN, "p")
    claim(world, ANN2, "p")
    (refusal,) = world.pub(ANN, "t", "late", pseq=1)
    assert isinstance(refusal, m.Err)
    assert refusal.code == Code.FENCED
    assert "producer 'p' was claimed" in refusal.text  # its own name for it


@pytest.mark.parametrize("name", ["ann/p", "p", "/p", "../ann/p", "ann//p", "ANN/p", "ann/p\0", "local/p"])
def test_no_name_reaches_the_producer_of_another_principal(world: People, name: str) -> None:
    epoch = claim(world, ANN, "p")["epoch"]
    assert claim(world, EVE, name)["last_pseq"] == 0
    world.opened(b"eve2", producer={"name": name, "epoch": epoch + (1 << 40)})
    assert not world.router.session_table.session_of(ANN).fenced
    world.pub(ANN, "t", "one", pseq=1)
    assert world.stored() == ["one"]


def test_a_high_epoch_fences_no_other_principal(world: People) -> None:
    claim(world, ANN, "p")
    world.opened(EVE, producer={"name": "p", "epoch": 1 << 50})
    world.pub(EVE, "t", "e", pseq=1)
    world.pub(ANN, "t", "a", pseq=1)
    assert world.stored() == ["e", "a"]


def test_a_name_of_a_connection_without_a_key_is_not_that_of_a_principal(world: People) -> None:
    world.identities[b"x"] = world.identities[b"y"] = world.identities[b"z"] = LOCAL
    claim(world, b"x", "p")
    claim(world, EVE, "p")
    assert not world.router.session_table.session_of(b"x").fenced
    refusal = world.refused(b"y", producer={"name": "ann/p"})
    assert (refusal.code, "belong to principal 'ann'" in refusal.text) == (Code.FORBIDDEN, True)
    claim(world, b"z", "file:/var/log/x")  # as before there were principals
    claim(world, b"y", "jobs/nightly")


def test_without_keys_all_names_are_free() -> None:
    world = People(roles=None)
    world.identities[b"x"] = LOCAL
    claim(world, b"x", "ann/p")
    assert set(world.producers) == {"ann/p"}


def test_granted_names_are_shared(world: People) -> None:
    world.change(ann=SHARED, bob=SHARED)
    claim(world, ANN, "shop.orders")
    world.pub(ANN, "t", "one", pseq=1)
    assert claim(world, BOB, "shop.orders")["last_pseq"] == 1
    assert world.router.session_table.session_of(ANN).fenced  # as agreed
    assert claim(world, EVE, "shop.orders")["last_pseq"] == 0  # not granted: a name of its own
    assert not world.router.session_table.session_of(BOB).fenced
    world.identities[b"x"] = LOCAL
    assert claim(world, b"x", "shop.orders")["last_pseq"] == 1
    assert set(world.producers) == {"shop.orders", "eve/shop.orders"}


@pytest.mark.parametrize("name", ["bob/p", "nobody-yet/p", "ann/p"])
def test_a_grant_does_not_reach_names_that_belong_to_principals(world: People, name: str) -> None:
    world.change(ann=EVERYTHING._replace(name="all"))
    refusal = world.refused(ANN, producer={"name": name})
    assert (refusal.code, "use a name without /" in refusal.text) == (Code.FORBIDDEN, True)
    claim(world, ANN, "kafka:c/t:0")  # no principal has such a name


def test_a_guest_has_no_producer_whatever_it_names(world: People) -> None:
    assert "producer" not in world.opened(b"guest1", enrol=True, producer={"name": "p"})
    assert not world.router.publishing.producers
    assert world.producers == {}


def test_a_resumed_session_keeps_its_producer(world: People) -> None:
    welcome = world.opened(ANN, producer={"name": "p"})
    again = world.opened(ANN2, producer={"name": "p"}, resume={"session": welcome["session"], "subs": []})
    assert (again["resumed"], again["producer"]["epoch"]) == (True, welcome["producer"]["epoch"])


def test_errors_have_the_name_that_the_client_gave(world: People) -> None:
    claim(world, ANN, "p")
    (gap,) = world.pub(ANN, "t", "x", pseq=9)
    assert isinstance(gap, m.Err)
    assert "producer 'p': pseq 9" in gap.text
    claim(world, ANN2, "s", jumps=True)
    world.pub(ANN2, "t", "x", pseq=5)
    (taken,) = world.pub(ANN2, "t", "y", pseq=5)
    assert isinstance(taken, m.Err)
    assert "source 's'" in taken.text


def test_the_longest_name_is_stored_and_deleted_by_its_name_in_the_journal(world: People) -> None:
    long = "a" * 64
    world.change(**{long: CLIENT})
    name = "ü" * session_table.SOURCE_CHARS_MAX
    claim(world, long.encode(), name, jumps=True)
    world.pub(long.encode(), "t", "x", pseq=7)
    assert set(world.producers) == {f"{long}/{name}"}
    assert len(f"{long}/{name}") == session_table.PRODUCER_CHARS_MAX
    world.say(long.encode(), m.Goodbye(0))
    assert delete(world, name).code == Code.NOT_FOUND
    assert delete(world, f"{long}/{name}").fields["deleted"] is True
    assert world.producers == {}


def test_marks_of_the_same_name_differ(world: People) -> None:
    claim(world, ANN, "p")
    claim(world, BOB, "p")
    marks = [row["producer"] for row in world.info(ADMIN, "sessions")["sessions"]]
    assert len(set(marks)) == 3


def test_a_principal_does_not_take_the_room_for_sources_of_others(
    world: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_table, "SOURCES_PER_PRINCIPAL_MAX", 2)
    for number in range(2):
        claim(world, b"eve%d" % number, f"s{number}", jumps=True)
        world.pub(b"eve%d" % number, "t", "x", pseq=1)
    refusal = world.refused(EVE, producer={"name": "s2", "jumps": True})
    assert (refusal.code, "at most 2 numbered sources of a principal" in refusal.text) == (Code.BAD_OPTION, True)
    claim(world, b"eve7", "s1", jumps=True)  # one that is known
    claim(world, ANN, "s2", jumps=True)
    world.restart()
    assert world.refused(EVE, producer={"name": "s2", "jumps": True}).code == Code.BAD_OPTION
    delete(world, "eve/s0")
    claim(world, EVE, "s2", jumps=True)


def test_many_producers_of_one_principal_do_not_push_out_those_of_others(
    world: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_table, "PRODUCERS_MAX", 10)
    claim(world, ANN, "old")
    world.pub(ANN, "t", "x", pseq=1)
    world.say(ANN, m.Goodbye(0))
    for number in range(15):
        peer = b"eve%d" % number
        claim(world, peer, f"p{number}")
        world.say(peer, m.Publish(1, 1, m.Level.JOURNALED, encode("t", [b"x"])))
        world.say(peer, m.Goodbye(0))
        world.pass_time(1)
    names = set(world.router.publishing.producers)
    assert "ann/old" in names
    assert len(names) <= 10
    assert "eve/p14" in names


@pytest.mark.parametrize(
    ("glob", "name", "expected"),
    [
        ("*", "", True),
        ("a", "a", True),
        ("a", "ab", False),
        ("a*", "a", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("*b*", "abc", True),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("a*bc*c", "abc", False),
        ("**", "x", True),
        ("a.b", "axb", False),
    ],
)
def test_a_star_stands_for_any_characters(glob: str, name: str, expected: bool) -> None:
    assert matches(glob, name) is expected
