"""GET: messages read without a group, in pages."""

from typing import Any

import pytest

from fabric.router.block_store import Found
from fabric.router.patterns.trie import Trie
from fabric.router.patterns.view import View
from fabric.router.read import get as reading
from fabric_protocol import messages as m
from fabric_protocol.block import Block, encode
from fabric_protocol.errors import Code
from fabric_protocol.names import canonical
from tests.router.world import World
from tests.seeds import seeded

P, R = b"P", b"R"


def world() -> World:
    w = World()
    w.hello(P)
    w.hello(R)
    return w


def put(w: World, topic: str | list[str], *bodies: str, **columns: Any) -> None:
    block = encode(topic, [body.encode() for body in bodies], **columns)
    w.say(P, m.Publish(9, 0, m.Level.JOURNALED, block))


def get(w: World, **fields: Any) -> tuple[list[tuple[int, str]], dict[str, Any]]:
    """[(seq, body)] and what the OK says."""
    *frames, last = w.say(R, m.Get(3, fields))
    rows = []
    for frame in frames:
        assert isinstance(frame, m.Got)
        assert frame.rid == 3
        block = Block(frame.block)
        block.verify()
        block.verify_stamp()
        seqs = [s for a, n in zip(frame.seqs[::2], frame.seqs[1::2], strict=True) for s in range(a, a + n)]
        seqs = seqs or list(range(block.base_seq, block.last_seq + 1))
        rows += [(seq, body.decode()) for seq, body in zip(seqs, block.payloads(), strict=True)]
    assert isinstance(last, m.Ok), last
    assert last.fields["count"] == len(rows)
    return rows, dict(last.fields)


def refused(w: World, **fields: Any) -> m.Err:
    (answer,) = w.say(R, m.Get(3, fields))
    assert isinstance(answer, m.Err), answer
    return answer


def test_get_reads_one_message_from_the_start_unless_told_otherwise() -> None:
    w = world()
    put(w, "a", "1", "2", "3")
    assert get(w) == ([(1, "1")], {"count": 1, "next": 2, "more": True})
    assert get(w, seq=2)[0] == [(2, "2")]
    assert get(w, seq=3) == ([(3, "3")], {"count": 1, "next": 4, "more": False})
    assert get(w, seq=4) == ([], {"count": 0, "next": 4, "more": False})


def test_get_picks_the_wanted_messages_out_of_their_blocks() -> None:
    w = world()
    put(w, ["a.x", "b", "a.y", "b"], "1", "2", "3", "4")
    put(w, "b", "5")
    put(w, "a.x", "6")
    assert get(w, pattern="a.*", n=10)[0] == [(1, "1"), (3, "3"), (6, "6")]
    assert get(w, topic="b", n=10)[0] == [(2, "2"), (4, "4"), (5, "5")]
    assert get(w, pattern=["a.x", "b"], n=10)[0] == [(1, "1"), (2, "2"), (4, "4"), (5, "5"), (6, "6")]
    assert get(w, topic="c", n=10) == ([], {"count": 0, "next": 7, "more": False})


def test_pages_follow_each_other_without_gap_or_overlap() -> None:
    w = world()
    for i in range(20):
        put(w, ["a", "b", "a"], f"{i}x", f"{i}y", f"{i}z")
    seq, bodies = 1, []
    while True:
        rows, answer = get(w, topic="a", n=7, seq=seq)
        bodies += [body for _, body in rows]
        seq = answer["next"]
        if not answer["more"]:
            break
    assert bodies == [f"{i}{c}" for i in range(20) for c in "xz"]


def test_an_answer_is_bounded_in_bytes_and_a_large_message_comes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BYTES_MAX", 10_000)
    w = world()
    put(w, "a", *("x" * 3000 for _ in range(6)))
    put(w, "a", "y" * 50_000)
    put(w, "a", "z")
    rows, answer = get(w, n=100)
    assert (len(rows), answer["next"], answer["more"]) == (3, 4, True)
    assert len(get(w, n=100, seq=4)[0]) == 3
    rows, answer = get(w, n=100, seq=7)
    assert ([body[0] for _, body in rows], answer["next"]) == (["y"], 8)


def test_a_search_is_bounded_and_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_BYTES_MAX", 500)
    w = world()
    for i in range(20):
        put(w, ["a", "b"], f"{i}", "other")
    pages, seq, seen = 0, 1, list[str]()
    more = True
    while more:
        rows, answer = get(w, topic="a", n=1000, seq=seq)
        seen += [body for _, body in rows]
        seq, more, pages = answer["next"], answer["more"], pages + 1
    assert seen == [f"{i}" for i in range(20)]
    assert pages > 3


def test_what_is_not_on_disk_is_not_read() -> None:
    w = world()
    w.say(P, m.Publish(9, 0, m.Level.JOURNALED, encode("a", [b"1"])), commit=False)
    answer = w.say(R, m.Get(3, {"n": 5}), commit=False)
    assert answer == [m.Ok(0, 3, {"count": 0, "next": 1, "more": False})]


def test_get_starts_at_a_time() -> None:
    w = world()
    put(w, "a", "1")
    w.pass_time(10)
    put(w, "a", "2")
    assert get(w, time_us=int((w.now - 5) * 1e6), n=5)[0] == [(2, "2")]
    assert get(w, time_us=int((w.now + 5) * 1e6), n=5) == ([], {"count": 0, "next": 3, "more": False})


def test_the_last_ones_come_oldest_first() -> None:
    w = world()
    put(w, "a", "1", "2")
    put(w, "b", "3")
    put(w, ["a", "b", "a", "b"], "4", "5", "6", "7")
    put(w, "b", "8")
    assert get(w, topic="a", last=True)[0] == [(6, "6")]
    assert get(w, topic="a", last=True, n=3)[0] == [(2, "2"), (4, "4"), (6, "6")]
    assert get(w, topic="a", last=True, n=100)[0] == [(1, "1"), (2, "2"), (4, "4"), (6, "6")]
    assert get(w, topic="c", last=True, n=100) == ([], {"count": 0, "next": 9, "more": False})


def test_by_key_gives_the_latest_of_each_key() -> None:
    w = world()
    put(w, "a", "1", "2", "3", keys=[b"k", b"l", b"k"])
    put(w, "b", "4", keys=[b"k"])
    put(w, "a", "5", "6", keys=[b"l", b""])
    put(w, "a", "7")
    rows, answer = get(w, pattern="#", by_key=True, n=100)
    assert rows == [(3, "3"), (4, "4"), (5, "5"), (6, "6"), (7, "7")]
    assert answer == {"count": 5, "next": 8, "more": False}


def test_later_pages_by_key_override_earlier_ones() -> None:
    w, chance = world(), seeded("by key")
    truth: dict[str, int] = {}
    for seq in range(1, 200):
        key = str(chance.randrange(30))
        put(w, "a", str(seq), keys=[key.encode()])
        truth[key] = seq
    seen: dict[str, int] = {}
    seq, more = 1, True
    while more:
        for message in w.say(R, m.Get(3, {"topic": "a", "by_key": True, "n": 7, "seq": seq})):
            if isinstance(message, m.Got):
                block = Block(message.block)
                seen |= {k.decode(): int(p) for k, p in zip(block.keys(), block.payloads(), strict=True)}
            elif isinstance(message, m.Ok):
                seq, more = message.fields["next"], message.fields["more"]
    assert seen == truth


def test_expired_messages_are_not_read() -> None:
    w = world()
    put(w, "a", "1", expires_us=int((w.now + 5) * 1e6))
    put(w, "a", "2")
    assert [body for _, body in get(w, n=5)[0]] == ["1", "2"]
    w.pass_time(6)
    assert [body for _, body in get(w, n=5)[0]] == ["2"]
    assert [body for _, body in get(w, n=5, last=True)[0]] == ["2"]


def test_what_was_removed_from_a_topic_or_superseded_is_not_read() -> None:
    w = world()
    put(w, ["a", "b"], "1", "2")
    put(w, ["a", "b", "a"], "3", "4", "5")
    w.router.shared.removed["a"] = 4
    assert [body for _, body in get(w, n=9)[0]] == ["2", "4", "5"]
    w.router.shared.superseded = lambda block, at: block.base_seq + at == 4
    assert [body for _, body in get(w, n=9)[0]] == ["2", "5"]


def test_the_hubs_own_topics_are_read_only_by_name() -> None:
    w = world()
    w.sub(R, 1, "a", group="g")
    put(w, "a", "1")
    w.settle(R, 1, m.Verdict.REJECT, 1, 1, "no")
    assert [seq for seq, _ in get(w, n=9)[0]] == [1]
    for name in ("$dlq.g", "g.DLQ"):
        assert get(w, topic=name, n=9)[0] == [(2, "1")]
    assert get(w, pattern="$dlq.#", n=9)[0] == [(2, "1")]
    assert get(w, pattern="*.DLQ", n=9)[0] == [(2, "1")]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"n": 0}, "n is 1..1000"),
        ({"n": 1001}, "n is 1..1000"),
        ({"n": True}, "n is 1..1000"),
        ({"seq": -1}, "seq"),
        ({"tiem_us": 5}, "tiem_us"),
        ({"seq": 1, "time_us": 2}, "exclude"),
        ({"seq": 1, "last": True}, "exclude"),
        ({"last": True, "by_key": True}, "exclude"),
        ({"last": 1}, "last is true or false"),
        ({"before": 1}, "before needs last"),
        ({"last": True, "before": -1}, "before"),
        ({"topic": "a", "pattern": "b"}, "exclude"),
        ({"topic": ["a"]}, "topic is a text"),
        ({"pattern": []}, "1..64"),
        ({"pattern": [5]}, "topic is a text"),
    ],
)
def test_a_wrong_field_is_refused_by_name(fields: dict[str, Any], says: str) -> None:
    error = refused(world(), **fields)
    assert error.code == Code.BAD_OPTION
    assert says in error.text


def test_a_bad_topic_or_pattern_is_refused() -> None:
    w = world()
    assert refused(w, topic="a.*").code == Code.BAD_TOPIC
    assert refused(w, pattern="a..b").code == Code.BAD_PATTERN


def test_all_answers_of_one_turn_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "TURN_BYTES_MAX", 200)
    w = world()
    put(w, "a", "x" * 500)
    out: list[tuple[bytes, m.ToClient]] = []
    for _ in range(3):
        w.router.step(m.Get(3, {}), R, w.now)
        out += w.router.take_frames()
    w.router.step(m.Get(4, {"last": True}), R, w.now)
    out += w.router.take_frames()
    kinds = [type(message).__name__ for _, message in out]
    assert kinds == ["Got", "Ok", "Ok", "Ok", "Err"]
    assert out[2][1] == m.Ok(0, 3, {"count": 0, "next": 1, "more": True})
    w.router.tick(w.now)
    out += w.router.take_frames()
    assert len(get(w)[0]) == 1


def test_the_last_ones_are_searched_in_several_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCKS_MAX", 2)
    monkeypatch.setattr(reading, "STEPS_BACK_MAX", 1)
    w = world()
    for i in range(1, 9):
        put(w, "a", str(i))
    assert get(w, last=True, n=5) == ([(6, "6"), (7, "7"), (8, "8")], {"count": 3, "next": 6, "more": True})
    assert get(w, last=True, before=6, n=2) == ([(4, "4"), (5, "5")], {"count": 2, "next": 4, "more": True})
    assert get(w, last=True, before=3, n=5) == ([(1, "1"), (2, "2")], {"count": 2, "next": 9, "more": False})
    assert get(w, last=True, before=0) == ([], {"count": 0, "next": 9, "more": False})


def test_searches_that_find_no_block_are_few_in_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may read a summary of thousands of topics, also when the journal remembers which blocks match."""
    w = world()
    for i in range(1, 100):
        put(w, "a", str(i))
    searches: list[int] = []

    def find(cursor: int, *_: object) -> Found:
        searches.append(cursor)
        return Found(None, cursor + 1, more=True)

    def previous_block(before: int, *_: object) -> tuple[None, int]:
        searches.append(before)
        return None, before - 1

    monkeypatch.setattr(w.router.shared.block_store, "find", find)
    monkeypatch.setattr(w.router.shared.reader, "previous_block", previous_block, raising=False)
    assert get(w, topic="b", n=10) == ([], {"count": 0, "next": 1 + reading.FINDS_MAX, "more": True})
    assert len(searches) == reading.FINDS_MAX
    answer = {"count": 0, "next": 100 - reading.STEPS_BACK_MAX, "more": True}
    assert get(w, topic="b", last=True, n=10) == ([], answer)
    assert len(searches) == reading.FINDS_MAX + reading.STEPS_BACK_MAX


def test_blocks_of_one_answer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a read of its own, however few bytes it has."""
    monkeypatch.setattr(reading, "BLOCKS_MAX", 10)
    monkeypatch.setattr(reading, "FINDS_MAX", 2)
    w = world()
    for i in range(1, 31):
        put(w, "a", str(i))
    rows, answer = get(w, n=100)
    assert (len(rows), answer) == (12, {"count": 12, "next": 13, "more": True})


def test_a_large_answer_to_last_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BYTES_MAX", 1_000)
    w = world()
    for i in range(1, 5):
        put(w, "a", str(i) * 600)
    rows, said = get(w, last=True, n=4)
    assert [seq for seq, _ in rows] == [3, 4]
    assert said == {"count": 2, "next": 3, "more": True}
    assert [seq for seq, _ in get(w, last=True, before=3, n=2)[0]] == [1, 2]


def test_a_view_agrees_with_the_trie() -> None:
    chance = seeded("views")
    words = ["a", "b", "$dlq", "x+y"]
    for _ in range(3000):
        pattern = ".".join(chance.choice([*words, "*", "#"]) for _ in range(chance.randrange(1, 5)))
        topic = ".".join(chance.choice(words) for _ in range(chance.randrange(1, 5)))
        trie: Trie[int] = Trie()
        trie.add(canonical(pattern), 1)
        assert View((canonical(pattern),))(topic) == bool(trie.match(topic)), (pattern, topic)


def test_a_client_that_does_not_read_gets_no_more_pages() -> None:
    w = world()
    put(w, "a", "1")
    w.router.peer_blocked(R, True)
    assert refused(w).code == Code.BUSY
    w.router.peer_blocked(R, False)
    assert len(get(w)[0]) == 1


@pytest.mark.parametrize("asked", [{"pattern": "a.*"}, {"pattern": "a.*", "by_key": True}, {"last": True}])
def test_a_long_block_is_looked_at_in_several_answers(monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]) -> None:
    """However many messages a block has, one answer looks at a few of them; all answers together give all of it."""
    monkeypatch.setattr(reading, "MESSAGES_MAX", 10)
    w, looked = world(), list[int]()
    put(w, [f"a.{n % 3}" for n in range(95)], *map(str, range(95)), keys=[b"%d" % n for n in range(95)])

    def superseded(block: Block, at: int) -> bool:
        looked.append(at)
        return False

    w.router.shared.superseded = superseded
    rows, answers, more, following = list[tuple[int, str]](), 0, True, 0
    while more:
        looked.clear()
        place = {"before" if "last" in asked else "seq": following} if following else {}
        found, answer = get(w, n=1_000, **asked, **place)
        assert len(looked) <= 10
        rows, answers = sorted(rows + found), answers + 1
        more, following = answer["more"], answer["next"]
    assert rows == [(n + 1, str(n)) for n in range(95)]
    assert answers == 10
