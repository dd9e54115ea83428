"""Sessions: HELLO, resume, heartbeats; producers: numbers, epochs, fences; the publish window."""

from typing import Any

import pytest

from fabric.router.publish.producers import WINDOW_BLOCKS
from fabric.router.publish.publishing import PENDING_BYTES_MAX, Refusal
from fabric.router.sessions.session import CHANNELS_MAX
from fabric_protocol import messages as m
from fabric_protocol.block import BLOCK_BYTES_MAX, encode
from fabric_protocol.bounds import EPOCH_MAX
from fabric_protocol.errors import Code
from fabric_protocol.messages import Level, Verdict
from tests.router.world import World

P, Q, A, B = b"\0p", b"\0q", b"\0a", b"\0b"


def welcome(answer: m.ToClient) -> dict[str, Any]:
    assert isinstance(answer, m.Welcome), answer
    return dict(answer.fields)


def error(answers: "list[m.ToClient] | m.ToClient") -> m.Err:
    answer = answers[0] if isinstance(answers, list) else answers
    assert isinstance(answer, m.Err), answer
    return answer


# Hello.


def test_welcome_has_the_name_of_the_hub_and_its_limits() -> None:
    w = World()
    fields = welcome(w.hello(A, client="me", hb_ms=700, ttl_ms=9000))
    assert (fields["proto"], fields["resumed"], fields["subs"]) == (1, False, [])
    assert (fields["hb_ms"], fields["ttl_ms"]) == (700, 9000)
    assert len(fields["session"]) == 16
    assert fields["limits"]["block_bytes"] == BLOCK_BYTES_MAX
    assert fields["flow"][0] > 0
    assert "producer" not in fields


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"proto": 2}, Code.UNSUPPORTED_VERSION),
        ({"proto": "1"}, Code.UNSUPPORTED_VERSION),
        ({"hb_ms": 1}, Code.BAD_OPTION),
        ({"hb_ms": "fast"}, Code.BAD_OPTION),
        ({"ttl_ms": 10**9}, Code.BAD_OPTION),
        ({"client": "x" * 129}, Code.BAD_OPTION),
        ({"client": 7}, Code.BAD_OPTION),
        ({"producer": "me"}, Code.BAD_OPTION),
        ({"producer": {}}, Code.BAD_OPTION),
        ({"producer": {"name": "x" * 129}}, Code.BAD_OPTION),
        ({"producer": {"name": "me", "epoch": "1"}}, Code.BAD_OPTION),
        ({"producer": {"name": "me", "epoch": 2**64 - 1}}, Code.BAD_OPTION),  # the next one would not fit the wire
        ({"producer": {"name": "me", "epoch": -1}}, Code.BAD_OPTION),
        ({"resume": 5}, Code.BAD_OPTION),
        ({"resume": {"session": b"", "subs": [[1]]}}, Code.BAD_OPTION),
    ],
)
def test_wrong_hello_is_refused_and_leaves_no_session(fields: dict[str, Any], code: Code) -> None:
    w = World()
    answer = w.say(A, m.Hello(1, {"proto": 1, **fields}))
    assert error(answer).code == code
    assert error(w.say(A, m.Ping(2))).code == Code.NO_SESSION
    assert w.router.session_table.sessions == {}
    welcome(w.hello(A))


def test_second_hello_is_refused_and_the_session_goes_on() -> None:
    w = World()
    w.hello(A)
    assert error(w.hello(A)).code == Code.SESSION_EXISTS
    assert w.say(A, m.Ping(4)) == [m.Pong(4)]


def test_nothing_is_processed_without_a_session() -> None:
    w = World()
    for message in (
        m.Ping(3),
        m.Publish(3, 0, 0, encode("a", [b"x"])),
        m.Subscribe(1, 3, {"patterns": ["#"], "group": "g"}),
        m.Settle(1, 3, ((0, 1, 1, None),)),
        m.Goodbye(3),
    ):
        answer = error(w.say(A, message))
        assert (answer.code, answer.rid) == (Code.NO_SESSION, 3)
    assert not w.reader.blocks
    assert not w.router.groups


def test_after_goodbye_there_is_no_session_to_speak_in_or_to_resume() -> None:
    w = World()
    token = welcome(w.hello(A))["session"]
    assert w.say(A, m.Goodbye(8)) == [m.Ok(0, 8, {})]
    assert error(w.say(A, m.Ping(1))).code == Code.NO_SESSION
    assert welcome(w.hello(B, resume={"session": token, "subs": []}))["resumed"] is False


def test_channels_are_bounded_and_checked() -> None:
    w = World()
    w.hello(A)
    for chan in (0, 65_536):
        assert error(w.sub(A, chan, "#")).code == Code.BAD_OPTION
    for chan in range(1, CHANNELS_MAX + 1):
        w.sub(A, chan, "#", credit=0)
    assert error(w.sub(A, CHANNELS_MAX + 1, "#")).code == Code.BAD_OPTION
    assert error(w.sub(A, 1, "#")).code == Code.BAD_OPTION


# Resume.


def resumable(lease_ms: int = 30_000, **fields: Any) -> tuple[World, bytes]:
    w = World()
    w.hello(P)
    token = welcome(w.hello(A, **fields))["session"]
    w.sub(A, 3, "#", group="g", lease_ms=lease_ms)
    for body in ("1", "2", "3"):
        w.pub(P, "a", body)
    return w, token


@pytest.mark.parametrize("seen", [0, 1, 2, 3])
def test_resumed_session_gets_what_it_has_not_seen_under_the_same_ordinals(seen: int) -> None:
    w, token = resumable()
    w.router.peer_gone(A)
    fields = welcome(w.hello(B, resume={"session": token, "subs": [[3, seen]]}))
    assert (fields["resumed"], fields["subs"], fields["session"]) == (True, [3], token)
    assert w.delivered(B) == [(n, n, 1, str(n)) for n in range(seen + 1, 4)]
    assert w.said[A][-1] == m.Notice("taken_over", {})
    assert w.settle(B, 3, Verdict.ACK, 1, 3) == [m.Ok(3, 7, {"applied": 3, "stale": []})]
    w.pub(P, "a", "4")
    assert w.delivered(B)[-1] == (4, 4, 1, "4")


def test_what_was_published_while_the_connection_was_gone_comes_after_the_resume() -> None:
    w, token = resumable()
    w.router.peer_gone(A)
    w.pub(P, "a", "4")
    assert w.bodies(A) == ["1", "2", "3"]
    w.hello(B, resume={"session": token, "subs": [[3, 3]]})
    assert w.delivered(B) == [(4, 4, 1, "4")]


def test_old_connection_has_no_session_after_a_takeover() -> None:
    w, token = resumable()
    w.hello(B, resume={"session": token, "subs": [[3, 3]]})
    assert error(w.settle(A, 3, Verdict.ACK, 1, 3)).code == Code.NO_SESSION
    assert w.router.groups["g"].open


def test_subscription_that_the_client_does_not_name_is_given_up() -> None:
    w, token = resumable()
    w.hello(Q)
    w.sub(Q, 1, group="g", credit=0)
    assert welcome(w.hello(B, resume={"session": token, "subs": []}))["subs"] == []
    w.say(Q, m.Credit(1, 10, 1 << 40))
    assert [(seq, attempt) for _, seq, attempt, _ in w.delivered(Q)] == [(2, 2), (3, 2)]
    w.pass_time(0.6)  # the first one can have been begun, so it failed and waits
    assert [(seq, attempt) for _, seq, attempt, _ in w.delivered(Q)] == [(2, 2), (3, 2), (1, 2)]


def test_what_lapsed_meanwhile_is_not_sent_again_under_its_old_ordinal() -> None:
    w, token = resumable(lease_ms=1000)
    w.router.peer_gone(A)
    w.pass_time(1.2)
    w.hello(B, resume={"session": token, "subs": [[3, 0]]})
    assert [row[:3] for row in w.delivered(B)] == [(4, 2, 2), (5, 3, 2)]
    w.pass_time(0.6)  # what can have been begun has failed, and waits
    assert [row[:3] for row in w.delivered(B)] == [(4, 2, 2), (5, 3, 2), (6, 1, 2)]


def test_wrong_secret_or_restarted_hub_means_a_new_session() -> None:
    w, token = resumable()
    wrong = bytes(16)
    assert welcome(w.hello(B, resume={"session": wrong, "subs": [[3, 0]]}))["resumed"] is False
    w.restart()
    fields = welcome(w.hello(A, resume={"session": token, "subs": [[3, 3]]}))
    assert (fields["resumed"], fields["subs"]) == (False, [])
    w.sub(A, 3, group="g")
    assert [row[:2] for row in w.delivered(A)] == [(1, 1), (2, 2), (3, 3)]


def test_session_is_lost_after_its_ttl_and_cannot_be_resumed() -> None:
    w, token = resumable(hb_ms=1000, ttl_ms=5000)
    for _ in range(12):
        w.pass_time(0.5)
        w.say(P, m.Ping(0))
    assert welcome(w.hello(B, resume={"session": token, "subs": [[3, 3]]}))["resumed"] is False


def test_any_word_is_a_sign_of_life() -> None:
    w, _ = resumable(hb_ms=1000, ttl_ms=5000)
    for _ in range(12):
        w.pass_time(2)
        w.say(A, m.Credit(3, 100, 1 << 40))
        w.say(P, m.Ping(0))
    assert w.say(A, m.Ping(9)) == [m.Pong(9)]


def test_suspect_is_served_again_when_it_speaks() -> None:
    w, _ = resumable(hb_ms=1000, ttl_ms=60_000)
    for _ in range(8):
        w.pass_time(0.5)
    w.pub(P, "a", "4")
    assert w.bodies(A) == ["1", "2", "3"]
    w.say(A, m.Ping(0))
    assert w.bodies(A) == ["1", "2", "3", "4"]


def test_congested_connection_gets_the_rest_when_it_flows_again() -> None:
    w, _ = resumable()
    w.router.peer_blocked(A, True)
    w.pub(P, "a", "4")
    w.pub(P, "a", "5")
    assert w.bodies(A) == ["1", "2", "3"]
    w.router.peer_blocked(A, False)
    w.commit()
    assert w.bodies(A) == ["1", "2", "3", "4", "5"]


# Producers.


def test_numbers_are_confirmed_and_a_resend_is_answered_with_its_first_seq() -> None:
    w = World()
    w.hello(Q)
    w.hello(P, producer={"name": "p"})
    w.pub(Q, "other", "x")
    assert w.pub(P, "a", "1", "2", pseq=1) == [m.PubOk(0, ((9, 2, 2, 0),))]
    w.pub(Q, "other", "y")
    assert w.pub(P, "a", "3", pseq=3) == [m.PubOk(0, ((9, 5, 1, 0),))]
    assert w.pub(P, "a", "1", "2", pseq=1, rid=21) == [m.PubOk(0, ((21, 2, 0, 2),))]
    assert w.pub(P, "a", "3", pseq=3, rid=23) == [m.PubOk(0, ((23, 5, 0, 1),))]
    assert sum(block.count for block in w.reader.blocks) == 5


def test_resend_is_recognised_after_a_restart_too() -> None:
    w = World()
    epoch = welcome(w.hello(P, producer={"name": "p"}))["producer"]["epoch"]
    w.pub(P, "a", "1", "2", pseq=1)
    w.restart()
    fields = welcome(w.hello(P, producer={"name": "p", "epoch": epoch}))
    assert fields["producer"] == {"epoch": epoch, "last_pseq": 2, "last_seq": 2}
    assert w.pub(P, "a", "1", "2", pseq=1) == [m.PubOk(0, ((9, 1, 0, 2),))]
    assert w.pub(P, "a", "3", pseq=3) == [m.PubOk(0, ((9, 3, 1, 0),))]


def test_what_the_crash_took_is_taken_anew() -> None:
    w = World()
    epoch = welcome(w.hello(P, producer={"name": "p"}))["producer"]["epoch"]
    w.pub(P, "a", "1", pseq=1)
    w.say(P, m.Publish(5, 2, 0, encode("a", [b"2"])), commit=False)
    w.restart()
    assert welcome(w.hello(P, producer={"name": "p", "epoch": epoch}))["producer"]["last_pseq"] == 1
    assert w.pub(P, "a", "2", pseq=2) == [m.PubOk(0, ((9, 2, 1, 0),))]


def test_resend_of_what_is_still_on_its_way_is_confirmed_no_sooner() -> None:
    w = World()
    w.hello(P, producer={"name": "p"})
    raw = encode("a", [b"1"])
    assert w.say(P, m.Publish(1, 1, 0, raw), commit=False) == []
    turn = w.router.seal(0, w.now)
    w.router.take_frames()
    assert w.say(P, m.Publish(2, 1, 0, raw), commit=False) == []
    assert turn.sends == [(P, m.PubOk(0, ((1, 1, 1, 0),)))]
    later = w.router.seal(0, w.now)
    w.router.take_frames()
    assert later.sends == [(P, m.PubOk(0, ((2, 1, 0, 1),)))]


def test_gap_in_the_numbers_is_refused_and_says_what_is_expected() -> None:
    w = World()
    w.hello(P, producer={"name": "p"})
    w.pub(P, "a", "1", pseq=1)
    answer = error(w.pub(P, "a", "3", pseq=3))
    assert answer.code == Code.SEQUENCE_GAP
    assert answer.fields["expected"] == 2
    assert answer.fields["retry_ms"] > 0


def test_numbers_that_overlap_in_part_are_refused() -> None:
    w = World()
    w.hello(P, producer={"name": "p"})
    w.pub(P, "a", "1", "2", pseq=1)
    assert error(w.pub(P, "a", "2", "3", pseq=2)).code == Code.PSEQ_TAKEN
    assert error(w.pub(P, "a", "2", pseq=2)).code == Code.PSEQ_TAKEN
    assert error(w.pub(P, "a", "1", pseq=1)).code == Code.PSEQ_TAKEN
    assert sum(block.count for block in w.reader.blocks) == 2


def test_numbers_need_a_producer() -> None:
    w = World()
    w.hello(P)
    assert error(w.pub(P, "a", "1", pseq=1)).code == Code.BAD_OPTION


def test_newer_session_of_a_producer_fences_the_older() -> None:
    w = World()
    first = welcome(w.hello(P, producer={"name": "p"}))["producer"]["epoch"]
    w.pub(P, "a", "1", pseq=1)
    again = welcome(w.hello(Q, producer={"name": "p"}))["producer"]
    assert again["epoch"] > first
    assert again["last_pseq"] == 1
    assert error(w.pub(P, "a", "zombie", pseq=2)).code == Code.FENCED
    assert error(w.pub(P, "a", "zombie")).code == Code.FENCED
    w.pub(Q, "a", "2", pseq=2)
    assert [body for block in w.reader.blocks for body in block.payloads()] == [b"1", b"2"]
    assert error(w.hello(A, producer={"name": "p", "epoch": first})).code == Code.FENCED


def test_fence_holds_after_a_restart() -> None:
    w = World()
    first = welcome(w.hello(P, producer={"name": "p"}))["producer"]["epoch"]
    w.pub(P, "a", "1", pseq=1)
    w.hello(Q, producer={"name": "p"})
    w.pub(Q, "a", "2", pseq=2)
    w.restart()
    assert error(w.hello(P, producer={"name": "p", "epoch": first})).code == Code.FENCED


def test_two_claims_around_a_crash_do_not_share_an_epoch() -> None:
    """The first claimed a name and the hub crashed before anything of it was on disk; a second claimed it after.
    If both were the same producer, one's message would be taken for a resend of the other's, and lost."""
    w = World()
    first = welcome(w.hello(P, producer={"name": "p"}))["producer"]["epoch"]
    w.restart()
    second = welcome(w.hello(Q, producer={"name": "p"}))["producer"]["epoch"]
    assert first != second
    answer = w.hello(P, producer={"name": "p", "epoch": first})
    loser = Q if isinstance(answer, m.Welcome) else P
    assert error(w.pub(loser, "a", "x", pseq=1)).code in (Code.FENCED, Code.NO_SESSION)


# The window, and when nothing is taken.


def test_far_beyond_the_window_is_overrun() -> None:
    w = World()
    w.hello(P, producer={"name": "p"})
    raw = encode("a", [b"x"])
    codes = []
    for i in range(1, WINDOW_BLOCKS + 2):
        codes += w.say(P, m.Publish(i, i, 0, raw), commit=False)
    assert [error([a]).code for a in codes] == [Code.OVERRUN]
    assert error(codes).fields["retry_ms"] > 0
    w.commit()
    (confirmed,) = (said for said in w.said[P] if isinstance(said, m.PubOk))
    assert len(confirmed.confirms) == WINDOW_BLOCKS
    assert w.pub(P, "a", "x", pseq=WINDOW_BLOCKS + 1)[0] == m.PubOk(0, ((9, WINDOW_BLOCKS + 1, 1, 0),))


def test_hub_takes_so_many_bytes_from_all_and_then_is_busy() -> None:
    w = World()
    raw = encode("a", [bytes(4 << 20)])
    answers: list[m.ToClient] = []
    peers = [b"\0" + i.to_bytes(4, "big") for i in range(PENDING_BYTES_MAX // len(raw) + 2)]
    for peer in peers:
        w.hello(peer)
    for peer in peers:
        answers += w.say(peer, m.Publish(1, 0, 0, raw), commit=False)
    errors = [a for a in answers if isinstance(a, m.Err)]
    assert {a.code for a in errors} == {Code.BUSY}
    assert all(a.fields["retry_ms"] > 0 for a in errors)
    assert w.router.publishing.pending_bytes <= PENDING_BYTES_MAX
    w.commit()
    assert w.router.publishing.pending_bytes == 0
    w.hello(P)
    assert isinstance(w.pub(P, "a", "x")[0], m.PubOk)


def test_refusal_stops_publishes_and_nothing_else() -> None:
    w, _ = resumable()
    w.router.refuse_publishes(Refusal(Code.DISK_FULL, "the disk is full", 1000))
    answer = error(w.pub(P, "a", "no"))
    assert (answer.code, answer.fields["retry_ms"]) == (Code.DISK_FULL, 1000)
    assert w.settle(A, 3, Verdict.ACK, 1, 3) == [m.Ok(3, 7, {"applied": 3, "stale": []})]
    w.router.refuse_publishes(None)
    assert isinstance(w.pub(P, "a", "yes")[0], m.PubOk)
    assert w.bodies(A)[-1] == "yes"


def test_level_received_is_confirmed_at_once_and_delivered_with_the_disk() -> None:
    w, _ = resumable()
    w.say(P, m.Publish(4, 0, Level.RECEIVED, encode("a", [b"4"])), commit=False)
    assert w.router.wants_seal()
    out: list[tuple[bytes, m.ToClient]] = []
    turn = w.router.seal(0, w.now)
    out += w.router.take_frames()
    assert out == [(P, m.PubOk(Level.RECEIVED, ((4, 4, 1, 0),)))]
    assert turn.sends == []
    assert w.bodies(A) == ["1", "2", "3"]


def test_group_of_level_received_is_served_before_the_disk() -> None:
    w = World()
    w.hello(P)
    w.hello(A)
    w.sub(A, 1, "#", group="live", level="received")
    w.say(P, m.Publish(4, 0, Level.JOURNALED, encode("a", [b"x"])), commit=False)
    out: list[tuple[bytes, m.ToClient]] = []
    w.router.seal(0, w.now)
    out += w.router.take_frames()
    assert [type(message) for _, message in out] == [m.Deliver]


def test_draining_notifies_all_clients_and_takes_acks_but_no_publishes() -> None:
    w, _ = resumable()
    out: list[tuple[bytes, m.ToClient]] = []
    w.router.drain(Refusal(Code.SHUTTING_DOWN, "stopping", 500))
    out += w.router.take_frames()
    assert {(peer, message.kind) for peer, message in out if isinstance(message, m.Notice)} == {
        (P, "drain"),
        (A, "drain"),
    }
    assert error(w.pub(P, "a", "no")).code == Code.SHUTTING_DOWN
    assert w.settle(A, 3, Verdict.ACK, 1, 2) == [m.Ok(3, 7, {"applied": 2, "stale": []})]
    assert w.router.outstanding() == 1
    assert w.groups["g"].open == ((3, 3),)


def test_a_command_without_a_rid_is_not_answered() -> None:
    w = World()
    w.hello(A)
    for message in (
        m.Subscribe(1, 0, {"patterns": ["t"], "group": "g"}),
        m.Subscribe(2, 0, {"patterns": ["t"], "respond": True}),
        m.Cancel(0, {"id": 1}),
        m.Unsubscribe(1, 0),
        m.Unsubscribe(2, 0),
        m.Admin(0, {"op": "group.delete", "group": "g"}),
        m.Goodbye(0),
    ):
        assert w.say(A, message) == [], message
    assert isinstance(w.say(A, m.Ping(1))[0], m.Err), "errors come nevertheless: the session is over"


def test_a_producer_can_come_back_though_a_peer_has_claimed_the_highest_epoch() -> None:
    w = World()
    w.hello(A, producer={"name": "p"})
    w.hello(B, producer={"name": "p", "epoch": EPOCH_MAX})
    w.commit()
    welcome = w.hello(b"c", producer={"name": "p"})
    assert isinstance(welcome, m.Welcome)
    epoch = welcome.fields["producer"]["epoch"]
    assert epoch > EPOCH_MAX
    again = w.hello(b"d", producer={"name": "p", "epoch": epoch})
    assert isinstance(again, m.Welcome), again
    fenced = w.hello(b"e", producer={"name": "p", "epoch": epoch - 1})
    assert isinstance(fenced, m.Err)
    assert fenced.code == Code.FENCED
    too_high = w.hello(b"f", producer={"name": "p", "epoch": epoch + 1})
    assert isinstance(too_high, m.Err)
    assert too_high.code == Code.BAD_OPTION
