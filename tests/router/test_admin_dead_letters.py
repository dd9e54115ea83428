"""ADMIN of dead letters: list, redrive, discard; and their rows on disk."""

from typing import Any

import pytest

from fabric.router.admin import dead_letters as admin_dead_letters
from fabric.router.publish.publishing import Refusal
from fabric_protocol import messages as m
from fabric_protocol.block import BLOCK_BYTES_MAX, Block, encode
from fabric_protocol.errors import Code
from tests.router.world import World

P, C, A = b"P", b"C", b"A"


def world(**settings: Any) -> World:
    """A producer, a consumer of group g, and an administrator."""
    w = World()
    for peer in (P, C, A):
        w.hello(peer)
    w.sub(C, 1, "job.#", group="g", **settings)
    return w


def admin(w: World, op: str, **fields: Any) -> dict[str, Any]:
    *_, answer = w.say(A, m.Admin(3, {"op": op, **fields}))
    assert isinstance(answer, m.Ok), answer
    return dict(answer.fields)


def refused(w: World, op: str, **fields: Any) -> m.Err:
    *_, answer = w.say(A, m.Admin(3, {"op": op, **fields}))
    assert isinstance(answer, m.Err), answer
    return answer


def die(w: World, *bodies: str, topic: str = "job.x", why: str = "no") -> list[int]:
    """Publish messages and reject them one by one; returns the seqs of their letters."""
    first = len(w.delivered(C))
    w.pub(P, topic, *bodies)
    seqs = []
    for ordinal, *_ in w.delivered(C)[first:]:
        w.settle(C, 1, m.Verdict.REJECT, ordinal, ordinal, why)
        seqs.append(w.reader.blocks[-1].last_seq)
    return seqs


def listed(w: World, **fields: Any) -> list[int]:
    return [row["seq"] for row in admin(w, "dlq.list", group="g", n=1000, **fields)["letters"]]


def came(w: World, since: int) -> list[tuple[str, dict[str, Any], str]]:
    """(topic, headers, body) of the deliveries to C after the first so many."""
    rows = []
    for message in w.said[C]:
        if isinstance(message, m.Deliver):
            block = Block(message.block)
            bodies = [body.decode() for body in block.payloads()]
            rows += list(zip(block.topic_names(), block.headers(), bodies, strict=True))
    return rows[since:]


def test_letters_are_listed_with_what_happened() -> None:
    w = world()
    (seq,) = die(w, "1", why="no such account")
    answer = admin(w, "dlq.list", group="g")
    (row,) = answer["letters"]
    assert (answer["count"], answer["more"], answer["next"]) == (1, False, seq)
    assert (row["seq"], row["topic"], row["origin_seq"], row["attempts"], row["hops"]) == (seq, "job.x", 1, 1, 1)
    assert row["reason"] == "rejected"
    assert row["error"] == "no such account"
    assert row["time_us"] == int(w.now * 1e6)
    assert not row["parked"]


@pytest.mark.parametrize("name", ["g", "g.DLQ", "$dlq.g"])
def test_a_dead_letter_group_has_three_names(name: str) -> None:
    w = world()
    die(w, "1")
    assert admin(w, "dlq.list", group=name)["count"] == 1
    assert admin(w, "dlq.redrive", group=name, all=True)["redriven"] == 1
    assert admin(w, "dlq.discard", group=name, all=True)["discarded"] == 0


def test_the_list_comes_in_pages() -> None:
    w = world()
    seqs = die(w, *map(str, range(10)))
    found, after, more = list[int](), 0, True
    while more:
        answer = admin(w, "dlq.list", group="g", n=3, after_seq=after)
        assert answer["count"] == 10
        found += [row["seq"] for row in answer["letters"]]
        after, more = answer["next"], answer["more"]
    assert found == seqs


def test_a_list_of_long_errors_ends_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_dead_letters, "ROWS_CHARS_MAX", 3000)
    w = world()
    seqs = die(w, *map(str, range(5)), why="x" * 900)
    first = admin(w, "dlq.list", group="g")
    assert 1 <= len(first["letters"]) < 5
    assert first["more"]
    rest = admin(w, "dlq.list", group="g", after_seq=first["next"])
    assert [row["seq"] for row in first["letters"] + rest["letters"]] == seqs[: len(first["letters"] + rest["letters"])]


def test_redriven_letters_come_to_their_group_alone_as_they_were() -> None:
    w = world()
    w.hello(b"D")
    w.sub(b"D", 1, "#", group="other")
    w.say(P, m.Publish(9, 0, 0, encode("job.x", [b"1"], keys=[b"k"], headers=[{"h": "v"}])))
    w.settle(C, 1, m.Verdict.REJECT, 1, 1, "no")
    others = len(w.delivered(b"D"))
    assert admin(w, "dlq.redrive", group="g", all=True) == {
        "group": "g", "redriven": 1, "skipped": 0, "more": False, "next": 2,
    }  # fmt: skip
    assert came(w, 1) == [("job.x", {"h": "v", "fabric-redriven": "1"}, "1")]
    ordinal, seq, attempt, _ = w.delivered(C)[-1]
    assert (seq, attempt) == (3, 1)
    assert len(w.delivered(b"D")) == others
    assert listed(w) == []
    w.settle(C, 1, m.Verdict.ACK, ordinal, ordinal)
    assert listed(w) == []


def test_a_redriven_message_has_all_its_attempts_again() -> None:
    w = world(attempts_max=2, backoff_ms=0)
    w.pub(P, "job.x", "1")
    for ordinal in (1, 2):
        w.settle(C, 1, m.Verdict.RETRY, ordinal, ordinal)
    assert len(listed(w)) == 1
    admin(w, "dlq.redrive", group="g", all=True)
    w.settle(C, 1, m.Verdict.RETRY, 3, 3)
    assert [attempt for _, _, attempt, _ in w.delivered(C)] == [1, 2, 1, 2]
    assert listed(w) == []
    w.settle(C, 1, m.Verdict.RETRY, 4, 4)
    (row,) = admin(w, "dlq.list", group="g")["letters"]
    assert (row["hops"], row["redriven"], row["topic"], row["origin_seq"]) == (2, 1, "job.x", 1)


def test_a_message_that_died_three_times_is_parked() -> None:
    w = world()
    die(w, "poison", "other")
    w.settle(C, 1, m.Verdict.ACK, 1, 1)
    for _ in range(2):
        seen = len(w.delivered(C))
        assert admin(w, "dlq.redrive", group="g", filter={"topic": "job.*"})["redriven"] > 0
        for ordinal, _, _, body in w.delivered(C)[seen:]:
            w.settle(C, 1, m.Verdict.REJECT if body == "poison" else m.Verdict.ACK, ordinal, ordinal)
    for choice in ({"all": True}, {"filter": {"reason": "rejected"}}):
        answer = admin(w, "dlq.redrive", group="g", **choice)
        assert (answer["redriven"], answer["skipped"]) == (0, 1)
    (row,) = admin(w, "dlq.list", group="g")["letters"]
    assert row["parked"]
    assert row["hops"] == 3
    assert admin(w, "dlq.redrive", group="g", seqs=[row["seq"]])["redriven"] == 1
    assert w.bodies(C)[-1] == "poison"


def test_redrive_and_discard_by_seq_by_filter_and_up_to_a_number() -> None:
    w = world()
    seqs = die(w, *"abcdef", topic="job.x") + die(w, *"ghij", topic="job.y", why="other")
    assert admin(w, "dlq.discard", group="g", seqs=[seqs[1], seqs[0]])["discarded"] == 2
    assert admin(w, "dlq.redrive", group="g", all=True, max=2) == {
        "group": "g", "redriven": 2, "skipped": 0, "more": True, "next": seqs[3],
    }  # fmt: skip
    assert w.bodies(C)[-2:] == ["c", "d"]
    answer = admin(w, "dlq.redrive", group="g", filter={"topic": "job.y"}, max=1)
    assert (answer["redriven"], answer["more"], w.bodies(C)[-1]) == (1, True, "g")
    answer = admin(w, "dlq.discard", group="g", filter={"topic": "*.y", "reason": "rejected"}, max=2)
    assert (answer["discarded"], answer["more"]) == (2, True)
    assert listed(w) == [seqs[4], seqs[5], seqs[9]]
    assert admin(w, "dlq.discard", group="g", all=True, max=1)["discarded"] == 1
    assert admin(w, "dlq.discard", group="g", all=True) == {
        "group": "g", "discarded": 2, "skipped": 0, "more": False, "next": seqs[9],
    }  # fmt: skip
    assert listed(w) == []


def test_a_filter_by_time_is_about_the_death() -> None:
    w = world()
    old = die(w, "1")
    w.pass_time(1)
    noon = int(w.now * 1e6)
    new = die(w, "2")
    assert admin(w, "dlq.discard", group="g", filter={"before_us": noon})["discarded"] == 1
    assert listed(w) == new
    assert old != new


def test_a_seq_that_is_no_letter_is_named_and_nothing_is_done() -> None:
    w = world()
    seqs = die(w, "1", "2")
    for op in ("dlq.redrive", "dlq.discard"):
        for wrong in (1, seqs[-1] + 1, 1 << 60, 0):
            error = refused(w, op, group="g", seqs=[seqs[0], wrong])
            assert error.code == Code.NOT_FOUND
            assert f"dead letter {wrong};" in error.text
    assert listed(w) == seqs
    admin(w, "dlq.redrive", group="g", seqs=seqs)
    assert refused(w, "dlq.redrive", group="g", seqs=seqs).code == Code.NOT_FOUND


def test_discarded_and_redriven_letters_are_gone_from_get_too() -> None:
    w = world()
    seqs = die(w, "1", "2", "3")
    admin(w, "dlq.discard", group="g", seqs=[seqs[0]])
    admin(w, "dlq.redrive", group="g", seqs=[seqs[1]])
    *frames, _ = w.say(A, m.Get(4, {"topic": "g.DLQ", "n": 10}))
    assert [Block(f.block).payloads() for f in frames if isinstance(f, m.Got)] == [[b"3"]]


def test_a_redrive_that_is_not_on_disk_has_not_happened() -> None:
    w = world()
    seqs = die(w, "1", "2")
    w.say(A, m.Admin(3, {"op": "dlq.redrive", "group": "g", "seqs": [seqs[0]]}), commit=False)
    assert not any(isinstance(message, m.Ok) and message.rid == 3 for message in w.said[A])
    w.restart()
    w.hello(A)
    assert listed(w) == seqs
    admin(w, "dlq.redrive", group="g", seqs=[seqs[0]])
    w.restart()
    w.hello(A)
    assert listed(w) == seqs[1:]
    w.hello(C)
    w.sub(C, 1, group="g")
    assert w.bodies(C) == ["1"]


def test_without_a_request_id_it_is_done_and_not_answered() -> None:
    w = world()
    die(w, "1")
    w.say(A, m.Admin(0, {"op": "dlq.discard", "group": "g", "all": True}), commit=False)
    w.now += 1
    assert w.router.wants_commit(w.now)
    w.commit()
    w.restart()
    w.hello(A)
    assert listed(w) == []


def test_a_group_without_letters_has_an_empty_list_and_an_unknown_one_none() -> None:
    w = world()
    assert admin(w, "dlq.list", group="g") == {"group": "g", "letters": [], "next": 0, "more": False, "count": 0}
    for op, fields in (("dlq.list", {}), ("dlq.redrive", {"all": True}), ("dlq.discard", {"all": True})):
        error = refused(w, op, group="nobody", **fields)
        assert error.code == Code.NOT_FOUND
        assert "nobody" in error.text


def test_letters_outlive_their_group_but_are_redriven_only_with_it() -> None:
    w = world()
    seqs = die(w, "1")
    admin(w, "group.delete", group="g")
    assert listed(w) == seqs
    error = refused(w, "dlq.redrive", group="g", all=True)
    assert (error.code, "'g'" in error.text) == (Code.NOT_FOUND, True)
    assert admin(w, "dlq.discard", group="g", all=True)["discarded"] == 1


def test_nothing_is_redriven_while_publishes_are_refused() -> None:
    w = world()
    seqs = die(w, "1")
    w.router.refuse_publishes(Refusal(Code.DISK_FULL, "the disk is full", 1000))
    error = refused(w, "dlq.redrive", group="g", all=True)
    assert (error.code, error.fields) == (Code.DISK_FULL, {"retry_ms": 1000})
    assert listed(w) == seqs
    assert admin(w, "dlq.discard", group="g", all=True)["discarded"] == 1


def test_the_work_of_one_command_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_dead_letters, "LOOKED_MAX", 3)
    w = world()
    seqs = die(w, *"abcdefgh", topic="job.x") + die(w, "z", topic="job.z")
    answer = admin(w, "dlq.redrive", group="g", filter={"topic": "job.z"})
    assert answer == {"group": "g", "redriven": 0, "skipped": 0, "more": True, "next": seqs[2]}
    calls = 0
    while answer["more"]:
        answer = admin(w, "dlq.redrive", group="g", filter={"topic": "job.z"}, after_seq=answer["next"])
        calls += 1
    assert (answer["redriven"], calls) == (1, 2)
    monkeypatch.setattr(admin_dead_letters, "RUNS_MAX", 2)
    admin(w, "dlq.discard", group="g", seqs=seqs[1:8:2])  # a, c, e and g are left
    answer = admin(w, "dlq.discard", group="g", all=True)
    assert (answer["discarded"], answer["more"]) == (2, True)


def test_a_letter_without_a_body_is_not_redriven() -> None:
    w = world()
    w.say(P, m.Publish(9, 0, 0, encode("job.x", [bytes(BLOCK_BYTES_MAX - 120)])))
    w.settle(C, 1, m.Verdict.REJECT, 1, 1, "no")
    (seq,) = listed(w)
    assert admin(w, "dlq.redrive", group="g", all=True)["skipped"] == 1
    error = refused(w, "dlq.redrive", group="g", seqs=[seq])
    assert (error.code, "seq 1 anew" in error.text) == (Code.CONFLICT, True)
    assert listed(w) == [seq]


def test_letters_that_retention_took_are_counted_no_more() -> None:
    w = world()
    seqs = die(w, "1", "2", "3")
    w.router.trimmed(seqs[1])
    w.router.take_frames()
    assert listed(w) == seqs[1:]
    assert admin(w, "dlq.list", group="g")["count"] == 2


def test_letters_of_a_purged_topic_are_gone() -> None:
    w = world()
    seqs = die(w, "1", "2", "3")
    admin(w, "topic.create", topic="$dlq.g", max_msgs=1, on_full="drop_old")
    assert listed(w) == seqs[2:]
    w.restart()
    w.hello(A)
    assert listed(w) == seqs[2:]


def test_info_changes_nothing() -> None:
    w = world()
    seqs = die(w, "1", "2", "3")
    w.router.shared.removed["$dlq.g"] = seqs[2]
    for _ in range(2):
        w.say(A, m.Info(4, {"what": "dlq", "group": "g"}), commit=False)
    out: list[tuple[bytes, m.ToClient]] = []
    assert w.router.seal(w.wall_us(), w.now).records == []
    out += w.router.take_frames()
    assert w.router.dead_letters.by_group["g"].size == 3


def test_a_letter_beside_a_publish_of_the_same_turn_stays_one() -> None:
    w = world(credit=2)
    w.pub(P, "job.x", "1")
    w.say(C, m.Settle(1, 0, ((m.Verdict.REJECT, 1, 1, "no"),)), commit=False)
    w.pub(P, "job.x", "2")
    w.settle(C, 1, m.Verdict.REJECT, 2, 2, "neither")
    assert [row["origin_seq"] for row in admin(w, "dlq.list", group="g")["letters"]] == [1, 3]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "one of seqs, filter and all"),
        ({"all": True, "seqs": [1]}, "one of seqs, filter and all"),
        ({"all": False}, "all is true"),
        ({"all": 1}, "all is true"),
        ({"seqs": []}, "1..1000"),
        ({"seqs": ["1"]}, "1..1000"),
        ({"seqs": [True]}, "1..1000"),
        ({"seqs": [1], "max": 1}, "max and after_seq exclude seqs"),
        ({"filter": {}}, "one or more of reason"),
        ({"filter": {"raeson": "x"}}, "one or more of reason"),
        ({"filter": {"reason": 5}}, "texts"),
        ({"filter": {"before_us": "x"}}, "before_us"),
        ({"all": True, "max": 0}, "max"),
        ({"all": True, "limit": 5}, "limit"),
    ],
)
def test_a_wrong_choice_is_refused(fields: dict[str, Any], says: str) -> None:
    w = world()
    die(w, "1")
    for op in ("dlq.redrive", "dlq.discard"):
        error = refused(w, op, group="g", **fields)
        assert error.code == Code.BAD_OPTION
        assert says in error.text
    assert len(listed(w)) == 1


def test_clients_cannot_publish_to_dead_letter_topics() -> None:
    w = world()
    for topic in ("g.DLQ", "a.b.DLQ", "$dlq.g"):
        (answer,) = w.pub(P, topic, "1")
        assert isinstance(answer, m.Err)
        assert answer.code == Code.FORBIDDEN
    for topic in ("DLQ", "g.dlq", "g.DLQ.x"):
        assert isinstance(w.pub(P, topic, "1")[0], m.PubOk)


def test_dead_letters_are_consumed_under_both_names() -> None:
    w = world()
    die(w, "1")
    for chan, name in ((1, "$dlq.g"), (2, "g.DLQ")):
        w.sub(A, chan, name, start="first")
    assert w.bodies(A) == ["1", "1"]
