"""Topics with settings: refused publishes, dropped and kept messages, and advisories."""

from pathlib import Path
from typing import Any

import pytest

from fabric.records import TopicSettings
from fabric.router.topics.compaction import LATEST_KEYS_MAX
from fabric.router.topics.settings import CHOICES, NUMBERS, SETTINGS
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.errors import Code
from tests.router.world import World

P, C, D = b"producer", b"consumer", b"other"


@pytest.fixture
def world() -> World:
    world = World()
    for peer in (P, C, D):
        world.hello(peer)
    return world


def admin(world: World, op: str, **fields: Any) -> dict[str, Any]:
    answer = world.say(P, m.Admin(3, {"op": op, **fields}))[-1]
    assert isinstance(answer, m.Ok), answer
    return dict(answer.fields)


def refused(world: World, op: str, **fields: Any) -> m.Err:
    answer = world.say(P, m.Admin(3, {"op": op, **fields}))[-1]
    assert isinstance(answer, m.Err), answer
    return answer


def topic(world: World, name: str) -> dict[str, Any]:
    world.commit()
    answer = world.say(P, m.Info(4, {"what": "topic", "name": name}))[-1]
    assert isinstance(answer, m.Ok), answer
    return dict(answer.fields)


def amounts(world: World, name: str) -> tuple[int, int]:
    row = topic(world, name)
    return row["msgs"], row["bytes"]


def keyed(world: World, name: str, *pairs: str) -> None:
    """Publish `key=value` messages."""
    keys, bodies = zip(*(pair.encode().split(b"=") for pair in pairs), strict=True)
    world.say(P, m.Publish(9, 0, m.Level.JOURNALED, encode(name, bodies, keys=keys)))


def replayed(world: World, *patterns: str) -> list[str]:
    """The messages that a GET from the beginning returns."""
    world.said[D] = []
    world.sub(D, 1, *patterns, start="first")
    bodies = world.bodies(D)
    world.say(D, m.Unsubscribe(1, 6))
    return bodies


def on_disk(world: World) -> list[int]:
    return [block.base_seq for block in world.reader.blocks]


def test_the_protocol_names_every_setting_with_its_default_and_what_is_allowed() -> None:
    text = (Path(__file__).parents[2] / "clients/PROTOCOL.md").read_text(encoding="utf-8").split("\n### 16.6 ")[1]
    for name in SETTINGS:
        default = getattr(TopicSettings(), name)
        assert f"| `{name}` | " + (f'"{default}" |' if isinstance(default, str) else f"{default:,} |") in text
        assert name not in NUMBERS or f"0..{NUMBERS[name]:,} |" in text or NUMBERS[name] == 1 << 53
    for values in CHOICES.values():
        assert ", ".join(f'"{value}"' for value in values) in text
    for op in ("create", "update", "delete", "purge"):
        assert f"| `topic.{op}` |" in text
        assert f"| `queue.{op}` |" in text or op == "update"
    assert f"over {LATEST_KEYS_MAX:,} keys" in text


# Settings.


def test_a_topic_has_defaults_until_it_gets_settings(world: World) -> None:
    assert world.router.topics.settings_of("a") == TopicSettings()
    answer = admin(world, "topic.create", topic="a", max_msgs=3, on_full="drop_old")
    assert (answer["created"], answer["settings"]["max_msgs"], answer["msgs"]) == (True, 3, 0)
    assert world.router.topics.settings_of("a") == TopicSettings(max_msgs=3, on_full="drop_old")
    assert topic(world, "a")["configured"] is True
    assert topic(world, "b")["configured"] is False


def test_creating_the_same_twice_is_no_error_and_something_else_is(world: World) -> None:
    admin(world, "topic.create", topic="a", max_msgs=3)
    assert admin(world, "topic.create", topic="a", max_msgs=3)["created"] is False
    assert admin(world, "topic.create", topic="a")["created"] is False
    error = refused(world, "topic.create", topic="a", max_msgs=4, keep="last_per_key")
    assert error.code == Code.CONFLICT
    assert error.fields["differences"] == {"max_msgs": [3, 4], "keep": ["limits", "last_per_key"]}


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({}, Code.BAD_OPTION, "topic is missing"),
        ({"topic": "a.*"}, Code.BAD_TOPIC, "bad word"),
        ({"topic": "$sys.x"}, Code.FORBIDDEN, "belongs to the hub"),
        ({"topic": "a", "max_msgs": -1}, Code.BAD_OPTION, "max_msgs is 0..9007199254740992, not -1"),
        ({"topic": "a", "max_bytes": "big"}, Code.BAD_OPTION, "max_bytes is 0.."),
        ({"topic": "a", "max_age_ms": 1e3}, Code.BAD_OPTION, "max_age_ms is 0.."),
        ({"topic": "a", "on_full": "explode"}, Code.BAD_OPTION, "on_full is one of refuse, drop_old, not 'explode'"),
        ({"topic": "a", "keep": 7}, Code.BAD_OPTION, "keep is one of limits, until_acked, last_per_key, not 7"),
        ({"topic": "a", "dedupe": ""}, Code.BAD_OPTION, "dedupe is one of window, slide, until_ack"),
        ({"topic": "a", "max_mgs": 1}, Code.BAD_OPTION, "topic.create does not know max_mgs; it knows topic, max_age"),
        ({"topic": "a", "queue": True}, Code.BAD_OPTION, "does not know queue"),
        ({"topic": "$dlq.g", "on_full": "refuse"}, Code.BAD_OPTION, "is drop_old, not refuse"),
    ],
)
def test_wrong_fields_are_named(world: World, fields: dict[str, Any], code: Code, said: str) -> None:
    error = refused(world, "topic.create", **fields)
    assert (error.code, said in error.text) == (code, True), error.text
    assert world.topic_rows == {}


@pytest.mark.parametrize("op", ["topic.update", "topic.delete", "queue.delete", "queue.purge"])
def test_what_does_not_exist_cannot_be_changed(world: World, op: str) -> None:
    fields = {"queue": "a"} if op.startswith("queue") else {"topic": "a"}
    assert refused(world, op, **fields, **({"max_msgs": 1} if op == "topic.update" else {})).code == Code.NOT_FOUND


def test_unknown_operations_are_refused(world: World) -> None:
    assert refused(world, "topic.rename", topic="a").code == Code.NOT_FOUND
    assert refused(world, "queue.rename", queue="a").code == Code.NOT_FOUND
    assert refused(world, "topic.update", topic="a").code == Code.NOT_FOUND
    admin(world, "topic.create", topic="a")
    assert "names no setting" in refused(world, "topic.update", topic="a").text


# Limits.


def test_a_full_topic_refuses_whole_blocks_and_stores_nothing(world: World) -> None:
    admin(world, "topic.create", topic="a", max_msgs=3)
    world.pub(P, "a", "1", "2")
    (error,) = world.pub(P, ["a", "b", "a"], "x", "y", "z")
    assert isinstance(error, m.Err)
    assert (error.code, error.fields["topic"]) == (Code.TOPIC_FULL, "a")
    assert "2 of max_msgs 3 messages, and 2 more do not fit" in error.text
    (ok,) = world.pub(P, "a", "3")
    assert isinstance(ok, m.PubOk)
    assert ok.confirms[0][:3] == (9, 3, 1)
    assert amounts(world, "a") == (3, 3)
    assert isinstance(world.pub(P, "b", "other topics do not care")[0], m.PubOk)


def test_bytes_are_counted_too(world: World) -> None:
    admin(world, "topic.create", topic="a", max_bytes=10)
    world.pub(P, "a", "12345")
    assert "5 of max_bytes 10 bytes, and 6 more" in world.pub(P, "a", "123456")[0].text  # type: ignore[union-attr]
    assert isinstance(world.pub(P, "a", "12345")[0], m.PubOk)
    assert amounts(world, "a") == (2, 10)


def test_a_refused_publish_does_not_use_up_its_number(world: World) -> None:
    till = b"till"
    world.hello(till, producer={"name": "till"})
    admin(world, "topic.create", topic="a", max_msgs=1)
    world.pub(till, "a", "1", pseq=1)
    assert world.pub(till, "a", "2", pseq=2)[0].code == Code.TOPIC_FULL  # type: ignore[union-attr]
    again = world.pub(till, "a", "1", pseq=1)[0]  # a resend is a duplicate, not one too many
    assert isinstance(again, m.PubOk)
    assert again.confirms == ((9, 1, 0, 1),)
    admin(world, "topic.update", topic="a", max_msgs=2)
    assert isinstance(world.pub(till, "a", "2", pseq=2)[0], m.PubOk)


def test_the_oldest_are_dropped_when_asked_for(world: World) -> None:
    admin(world, "topic.create", topic="a", max_msgs=3, on_full="drop_old")
    for body in "abcdef":
        world.pub(P, "a", body)
    world.pub(P, "a", "g", "h")
    assert amounts(world, "a") == (3, 3)
    assert replayed(world, "a") == ["f", "g", "h"]


def test_within_a_block_too(world: World) -> None:
    admin(world, "topic.create", topic="a", max_bytes=4, on_full="drop_old")
    world.pub(P, ["a", "b", "a", "a", "b"], "111", "b1", "22", "33", "b2")
    assert amounts(world, "a") == (2, 4)
    assert replayed(world, "#") == ["b1", "22", "33", "b2"]
    assert on_disk(world) == [1]


def test_messages_grow_old_and_go(world: World) -> None:
    admin(world, "topic.create", topic="a", max_age_ms=10_000)
    world.pub(P, "a", "old")
    world.pub(P, "b", "stays")
    world.pass_time(6)
    world.pub(P, "a", "young")
    world.pass_time(3.9)
    assert amounts(world, "a") == (2, 8)
    world.pass_time(0.2)
    assert amounts(world, "a") == (1, 5)
    assert replayed(world, "#") == ["stays", "young"]
    world.pass_time(6)
    assert amounts(world, "a") == (0, 0)
    assert replayed(world, "#") == ["stays"]
    world.pub(P, "a", "new")
    world.pass_time(10.1)
    assert amounts(world, "a") == (0, 0)


def test_a_group_that_had_not_settled_hears_of_the_gap(world: World) -> None:
    admin(world, "topic.create", topic="a", max_msgs=2, on_full="drop_old")
    world.sub(C, 1, "a", group="slow", credit=0)
    for body in "abcd":
        world.pub(P, "a", body)
    world.say(C, m.Credit(1, 100, 1 << 30))
    gaps = [said[1:] for said in world.said[C] if isinstance(said, m.Gap)]
    assert gaps == [(1, 1, "removed by retention"), (2, 2, "removed by retention")]
    assert world.bodies(C) == ["c", "d"]
    assert world.router.counters["retention_unsettled"] == 2


def test_a_group_without_consumers_hears_of_it_when_the_blocks_are_gone_from_disk(world: World) -> None:
    world.sub(C, 1, "a", group="slow", credit=0)
    world.say(C, m.Unsubscribe(1, 6))
    admin(world, "topic.create", topic="a", max_msgs=1, on_full="drop_old")
    for body in "abc":
        world.pub(P, "a", body)
    assert on_disk(world) == [1, 2, 3]  # the group may still come by in memory
    world.restart()
    for peer in (P, C, D):
        world.hello(peer)
    world.commit()
    world.commit()
    assert on_disk(world) == [3]
    world.sub(C, 1, group="slow")
    assert world.bodies(C) == ["c"]
    gaps = [said[1:3] for said in world.said[C] if isinstance(said, m.Gap)]
    assert gaps == [(1, 1), (2, 2)]


# Until acked.


def test_messages_stay_until_all_groups_have_settled_them(world: World) -> None:
    admin(world, "topic.create", topic="a", keep="until_acked")
    world.pub(P, "a", "1", "2", "3")
    world.pub(P, "z", "something else")
    assert amounts(world, "a") == (3, 3)  # no group wants them yet
    world.sub(C, 1, "a", group="one")
    world.sub(D, 2, "#", group="two")
    world.settle(C, 1, m.Verdict.ACK, 1, 3)
    world.commit()
    assert amounts(world, "a") == (3, 3)
    world.settle(D, 2, m.Verdict.ACK, 1, 2)
    world.commit()
    assert amounts(world, "a") == (1, 1)
    world.settle(D, 2, m.Verdict.ACK, 3, 3)
    world.commit()
    assert amounts(world, "a") == (0, 0)
    world.commit()
    assert on_disk(world) == [4]
    assert world.router.counters["retention_unsettled"] == 0


def test_a_group_that_goes_holds_nothing_any_more(world: World) -> None:
    admin(world, "topic.create", topic="a", keep="until_acked")
    world.sub(C, 1, "a", group="one")
    admin(world, "group.create", group="two", patterns=["a"])
    world.pub(P, "a", "1")
    world.settle(C, 1, m.Verdict.ACK, 1, 1)
    assert amounts(world, "a") == (1, 1)
    admin(world, "group.delete", group="two")
    world.pass_time(1)
    assert amounts(world, "a") == (0, 0)


# The latest of each key.


def test_only_the_latest_of_a_key_is_delivered_and_counted(world: World) -> None:
    admin(world, "topic.create", topic="a", keep="last_per_key")
    keyed(world, "a", "x=1", "y=22", "x=333")
    keyed(world, "a", "z=4", "y=5")
    keyed(world, "a", "=no key", "=no key either")
    assert replayed(world, "a") == ["333", "4", "5", "no key", "no key either"]
    assert amounts(world, "a") == (5, 3 + 1 + 1 + 6 + 13)


def test_a_limit_on_a_topic_of_keys_limits_the_keys(world: World) -> None:
    admin(world, "topic.create", topic="a", keep="last_per_key", max_msgs=2)
    keyed(world, "a", "x=1", "y=1")
    keyed(world, "a", "x=2", "y=2", "x=3")
    assert amounts(world, "a") == (2, 2)
    keyed(world, "a", "z=1")
    assert world.said[P][-1].code == Code.TOPIC_FULL  # type: ignore[union-attr]
    admin(world, "topic.update", topic="a", on_full="drop_old")
    keyed(world, "a", "z=1")
    assert replayed(world, "a") == ["3", "1"]


def test_the_index_is_made_again_after_a_restart(world: World) -> None:
    admin(world, "topic.create", topic="a", keep="last_per_key")
    keyed(world, "a", "x=1", "y=1")
    keyed(world, "a", "x=2")
    world.restart()
    for peer in (P, C, D):
        world.hello(peer)
    assert replayed(world, "a") == ["1", "2"]
    assert amounts(world, "a") == (2, 2)


def test_blocks_of_superseded_messages_go_from_disk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from fabric.router.topics import retention as retention_module

    monkeypatch.setattr(retention_module, "COMPACT_MIN", 4)
    admin(world, "topic.create", topic="a", keep="last_per_key")
    keyed(world, "a", "x=1", "y=1")
    keyed(world, "a", "z=1")
    keyed(world, "a", "x=2", "y=2")
    keyed(world, "a", "x=3", "y=3")
    keyed(world, "a", "x=4", "y=4")
    world.commit()
    world.commit()
    assert on_disk(world) == [3, 8]
    assert replayed(world, "a") == ["1", "4", "4"]


def test_with_too_many_keys_everything_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from fabric.router.topics import compaction as latest

    monkeypatch.setattr(latest, "LATEST_KEYS_MAX", 3)
    admin(world, "topic.create", topic="a", keep="last_per_key")
    keyed(world, "a", "x=1", "y=1", "x=2")
    assert amounts(world, "a") == (2, 2)
    keyed(world, "a", "p=1", "q=1", "x=3")
    row = topic(world, "a")
    assert (row["msgs"], row["overflowed"], row["counting"]) == (6, True, False)
    assert replayed(world, "a") == ["1", "1", "2", "1", "1", "3"]


# Purging and deleting.


def test_a_purged_topic_is_empty_and_goes_on(world: World) -> None:
    admin(world, "topic.create", topic="a", max_msgs=5)
    world.pub(P, "a", "1", "2", "3")
    world.pub(P, "b", "other")
    assert admin(world, "topic.purge", topic="a") == {"topic": "a", "purged": True, "floor": 5, "removed": 3}
    assert amounts(world, "a") == (0, 0)
    world.pub(P, "a", "4")
    assert replayed(world, "#") == ["other", "4"]
    assert on_disk(world) == [4, 5]


def test_a_topic_is_purged_up_to_a_seq(world: World) -> None:
    admin(world, "topic.create", topic="a", max_msgs=5)
    world.pub(P, "a", "1", "22", "333")
    world.pub(P, "b", "other")
    answer = {"topic": "a", "purged": True, "floor": 3, "removed": 2, "up_to": 2}
    assert admin(world, "topic.purge", topic="a", up_to=2) == answer
    assert amounts(world, "a") == (1, 3)
    assert admin(world, "topic.purge", topic="a", up_to=1) == {**answer, "removed": 0, "up_to": 1}
    assert replayed(world, "#") == ["333", "other"]
    assert admin(world, "topic.purge", topic="a", up_to=999)["floor"] == 5
    assert amounts(world, "a") == (0, 0)


def test_a_topic_is_purged_up_to_a_seq_within_a_block_of_several_topics(world: World) -> None:
    world.say(P, m.Publish(9, 0, m.Level.JOURNALED, encode(["a", "b", "a", "b"], [b"1", b"2", b"3", b"4"])))
    assert admin(world, "topic.purge", topic="a", up_to=1) == {"topic": "a", "purged": True, "floor": 2, "up_to": 1}
    assert replayed(world, "#") == ["2", "3", "4"]
    world.restart()
    world.hello(D)
    assert replayed(world, "#") == ["2", "3", "4"]


def test_a_topic_is_purged_before_a_time(world: World) -> None:
    world.pub(P, "a", "1")
    world.pass_time(5)
    world.pub(P, "a", "2")
    middle = world.reader.blocks[-1].ts_us
    assert admin(world, "topic.purge", topic="a", before_us=middle)["floor"] == 2
    assert replayed(world, "#") == ["2"]
    assert admin(world, "topic.purge", topic="a", before_us=world.wall_us() + 1_000_000)["floor"] == 3
    assert replayed(world, "#") == []


def test_a_purge_takes_a_seq_or_a_time(world: World) -> None:
    why = refused(world, "topic.purge", topic="a", up_to=1, before_us=1)
    assert (why.code, why.text) == (
        Code.BAD_OPTION,
        "topic.purge takes up_to (a seq) or before_us (a time): give one of them",
    )


def test_a_purge_of_a_part_keeps_what_groups_wait_for_exact(world: World) -> None:
    admin(world, "topic.create", topic="a", max_msgs=50)
    admin(world, "group.create", group="g", patterns=["a"], start="first")
    for n in range(6):
        world.pub(P, "a", str(n), "x")
    admin(world, "topic.purge", topic="a", up_to=5)
    world.pass_time(1)
    answer = world.say(P, m.Info(4, {"what": "group", "name": "g"}))[-1]
    assert isinstance(answer, m.Ok), answer
    row = answer.fields
    assert (row["ready"], row["ready_exact"]) == (7, True)


def test_a_topic_without_settings_is_deleted_while_it_has_messages(world: World) -> None:
    world.pub(P, "a", "1")
    assert admin(world, "topic.delete", topic="a") == {"topic": "a", "deleted": True}
    assert replayed(world, "#") == []
    why = refused(world, "topic.delete", topic="a")
    assert why.code == Code.NOT_FOUND
    assert why.text == "there is no topic 'a': it has no settings, and no message is stored on it"


def test_a_topic_without_settings_can_be_purged(world: World) -> None:
    world.pub(P, "a", "1")
    world.pub(P, "b", "2")
    assert admin(world, "topic.purge", topic="a") == {"topic": "a", "purged": True, "floor": 3}
    world.pub(P, "a", "3")
    assert replayed(world, "#") == ["2", "3"]
    assert world.router.topics.tracked == set()
    world.pass_time(1)
    assert on_disk(world) == [2, 3]
    assert world.topic_rows == {}  # nothing is left that a floor would have to hide


def test_a_deleted_topic_does_not_come_back(world: World) -> None:
    admin(world, "topic.create", topic="a", max_msgs=5)
    world.pub(P, ["a", "b"], "1", "2")
    assert admin(world, "topic.delete", topic="a") == {"topic": "a", "deleted": True, "removed": 1}
    assert refused(world, "topic.delete", topic="a").code == Code.NOT_FOUND
    world.pub(P, "a", "3")
    assert replayed(world, "#") == ["2", "3"]
    world.restart()
    for peer in (P, C, D):
        world.hello(peer)
    assert replayed(world, "#") == ["2", "3"]
    answer = admin(world, "topic.create", topic="a", max_msgs=5)
    assert answer["created"] is True
    assert amounts(world, "a") == (1, 1)
    assert replayed(world, "#") == ["2", "3"]


def test_settings_for_a_topic_that_has_messages_count_them(world: World) -> None:
    for n in range(5):
        world.pub(P, ["a", "b", "a"], f"{n}", "b", "a")
    admin(world, "topic.create", topic="a", max_msgs=20)
    assert amounts(world, "a") == (10, 10)
    admin(world, "topic.update", topic="a", max_msgs=3, on_full="drop_old")
    assert amounts(world, "a") == (3, 3)
    assert replayed(world, "a") == ["a", "4", "a"]


def test_settings_and_counts_survive_a_restart(world: World) -> None:
    admin(world, "topic.create", topic="a", max_msgs=3, on_full="drop_old")
    for body in "abcde":
        world.pub(P, "a", body)
    before = topic(world, "a")
    assert before["msgs"] == 3
    world.restart()
    world.hello(P)
    assert topic(world, "a") == before


def test_dead_letters_may_have_limits_of_their_own(world: World) -> None:
    admin(world, "topic.create", topic="work.DLQ", max_msgs=1)
    world.sub(C, 1, "a", group="work")
    world.pub(P, "a", "1", "2", "3")
    for ordinal in (1, 2, 3):
        world.settle(C, 1, m.Verdict.REJECT, ordinal, ordinal, "bad")
    world.commit()
    assert topic(world, "$dlq.work")["msgs"] == 1
    letters = admin(world, "dlq.list", group="work")["letters"]
    assert [letter["origin_seq"] for letter in letters] == [3]


def test_all_topics_are_listed(world: World) -> None:
    admin(world, "topic.create", topic="b")
    admin(world, "topic.create", topic="a")
    world.pub(P, ["a", "c", "c"], "1", "2", "3")
    answer = world.say(P, m.Info(4, {"what": "topics"}))[-1]
    assert isinstance(answer, m.Ok)
    assert [row["topic"] for row in answer.fields["topics"]] == ["a", "b", "c"]
    assert (answer.fields["others"], answer.fields["complete"]) == (["c"], True)
    page = world.say(P, m.Info(4, {"what": "topics", "n": 1}))[-1]
    assert isinstance(page, m.Ok)
    assert ([row["topic"] for row in page.fields["topics"]], page.fields["next"]) == (["a"], "a")


# Queues.


def test_a_queue_is_a_topic_and_a_group(world: World) -> None:
    answer = admin(world, "queue.create", queue="jobs", max_msgs=3, lease_ms=5000)
    assert answer["created"] is True
    assert answer["topic"]["settings"]["keep"] == "until_acked"
    assert answer["group"]["settings"]["lease_ms"] == 5000
    assert admin(world, "queue.create", queue="jobs", max_msgs=3, lease_ms=5000)["created"] is False
    world.pub(P, "jobs", "1", "2", "3")
    assert world.pub(P, "jobs", "4")[0].code == Code.TOPIC_FULL  # type: ignore[union-attr]
    world.sub(C, 1, group="jobs")
    world.settle(C, 1, m.Verdict.ACK, 1, 2)
    world.commit()
    assert amounts(world, "jobs") == (1, 1)
    assert isinstance(world.pub(P, "jobs", "4", "5")[0], m.PubOk)
    world.settle(C, 1, m.Verdict.ACK, 3, 5)
    world.pub(P, "other", "x")
    world.pub(P, "other", "y")
    assert amounts(world, "jobs") == (0, 0)
    assert on_disk(world) == [6, 7]


def test_a_queue_with_other_settings_is_a_conflict(world: World) -> None:
    admin(world, "queue.create", queue="jobs", max_msgs=3)
    assert refused(world, "queue.create", queue="jobs", max_msgs=4).fields["differences"] == {"max_msgs": [3, 4]}
    assert refused(world, "queue.create", queue="jobs", lease_ms=777).code == Code.CONFLICT
    assert refused(world, "topic.update", topic="jobs", keep="limits").code == Code.CONFLICT
    assert refused(world, "topic.delete", topic="jobs").code == Code.CONFLICT
    assert refused(world, "queue.create", queue="jobs", patterns=["x"]).code == Code.BAD_OPTION
    admin(world, "topic.create", topic="plain")
    assert refused(world, "queue.create", queue="plain").code == Code.CONFLICT
    assert "plain" not in world.router.groups
    admin(world, "group.create", group="taken", patterns=["x"])
    assert refused(world, "queue.create", queue="taken").code == Code.CONFLICT
    assert "taken" not in world.router.topics.tracked


def test_a_deleted_queue_is_gone_with_its_group_and_messages(world: World) -> None:
    admin(world, "queue.create", queue="jobs")
    world.sub(C, 1, group="jobs", credit=1)
    world.pub(P, "jobs", "1", "2")
    assert admin(world, "queue.delete", queue="jobs") == {
        "queue": "jobs",
        "topic": "jobs",
        "deleted": True,
        "removed": 2,
    }
    assert any(isinstance(said, m.Notice) and said.kind == "unsubscribed" for said in world.said[C])
    assert world.groups == {}
    admin(world, "queue.create", queue="jobs")
    world.pub(P, "jobs", "3")
    world.said[C] = []
    world.sub(C, 2, group="jobs")
    assert world.bodies(C) == ["3"]


def test_a_purged_queue_has_nothing_to_hand_out(world: World) -> None:
    admin(world, "queue.create", queue="jobs")
    world.pub(P, "jobs", "1", "2")
    assert admin(world, "queue.purge", queue="jobs")["removed"] == 2
    world.pub(P, "jobs", "3")
    world.sub(C, 1, group="jobs")
    assert world.bodies(C) == ["3"]


# The retention of the whole journal.


def test_the_journal_waits_until_the_book_has_given_way(world: World) -> None:
    assert world.router.trim_limit > 1 << 60
    admin(world, "topic.create", topic="a")
    for n in range(6):
        world.pub(P, ["a", "b"], f"{n}", "b")
    table = world.router.topics
    assert table.trim_limit == 1
    table.request_trim(6)
    assert table.trim_limit == 1
    world.pass_time(0.01)
    assert table.trim_limit == 6
    assert amounts(world, "a") == (3, 3)
    assert world.topic_rows["a"].floor == 7
    world.router.trimmed(6)
    world.router.take_frames()
    assert amounts(world, "a") == (3, 3)
    admin(world, "topic.delete", topic="a")
    assert table.trim_limit > 1 << 60


def test_floors_of_topics_that_are_gone_are_forgotten_when_memory_has_nothing_below(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fabric.router import block_store as block_store

    monkeypatch.setattr(block_store, "MEMORY_BYTES_MAX", 1000)
    for n in range(20):
        world.pub(P, f"t.{n}", "x")
        admin(world, "topic.purge", topic=f"t.{n}")
        world.pass_time(0.5)
    world.pub(P, "other", "x" * 2000)
    for _ in range(4):
        world.pass_time(0.5)
    assert (world.topic_rows, world.router.shared.removed) == ({}, {})
    assert on_disk(world) == [21]


def test_what_comes_before_and_after_the_settings_in_one_turn_counts_once(world: World) -> None:
    publish = m.Publish(9, 0, m.Level.JOURNALED, encode("a", [b"1", b"22"]))
    world.say(P, publish, commit=False)
    world.say(P, m.Admin(3, {"op": "topic.create", "topic": "a", "max_msgs": 9}), commit=False)
    world.say(P, publish)
    assert on_disk(world) == [1]  # one block
    assert amounts(world, "a") == (4, 6)


def test_a_group_that_the_journal_overtakes_hears_of_it_and_is_counted(world: World) -> None:
    world.sub(C, 1, "a", group="slow", credit=1)
    world.sub(D, 1, "a", group="quick")
    for n in range(6):
        world.pub(P, "a", f"{n}")
    world.settle(D, 1, m.Verdict.ACK, 1, 6)
    out: list[tuple[bytes, m.ToClient]] = []
    world.reader.blocks = world.reader.blocks[3:]
    world.router.trimmed(4)
    out += world.router.take_frames()
    gaps = [(peer, said.first_seq, said.last_seq) for peer, said in out if isinstance(said, m.Gap)]
    assert gaps == [(C, 1, 3)]
    assert world.router.counters["groups_overtaken"] == 1
