"""The session outlives its sockets. No sockets here; time is a number."""

import pytest

from fabric_client.core import begun
from fabric_client.core.outgoing import PLAIN, prepare
from fabric_client.core.session import Session
from fabric_client.core.state import State
from fabric_client.core.subscription import Subscription
from fabric_client.core.ticket import Ticket
from fabric_client.errors import AuthFailed, Fenced, Forbidden, GroupMismatch, Unconfirmed
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from tests.clients.talk import deliver, live_session, said, take, welcome


def about_the_hub(rid: int) -> m.Info:
    return m.Info(rid, {"what": "hub"})


def subscribe(session: Session, group: str | None = "g") -> Subscription:
    """A subscription that the hub has accepted."""
    ticket = Ticket()
    request = {"patterns": ["#"], **({"group": group} if group else {})}
    sub = session.subscribe(lambda chan: Subscription(chan, request), ticket)
    (message,) = said(session)
    assert isinstance(message, m.Subscribe)
    session.receive(m.Ok(message.chan, message.rid, {"group": group, "cursor": 1, "lease_ms": 30_000}), 0.0)
    assert ticket.done
    return sub


def publish(session: Session, body: str, now: float = 0.0) -> Ticket:
    ticket = Ticket()
    session.publisher.put(prepare("t", body, None, None, None), PLAIN, ticket)
    session.tick(now)
    return ticket


def reconnect(
    session: Session, now: float, *, resumed: bool, subs: tuple[int, ...] = (), last_pseq: int = 0
) -> m.Hello:
    session.lost(now, "test")
    assert session.wants_socket(session.reopen_at)
    session.opened(session.reopen_at)
    (hello,) = session.out
    assert isinstance(hello, m.Hello)
    producer = {"epoch": 1, "last_pseq": last_pseq, "last_seq": 0}
    welcome(session, resumed=resumed, subs=subs, now=session.reopen_at, producer=producer)
    return hello


def test_hello_comes_first_and_alone() -> None:
    session = Session("me", "producer", lambda: 0.5)
    session.opened(0.0)
    publish(session, "early")
    session.ask(about_the_hub, Ticket())
    (hello,) = said(session)
    assert isinstance(hello, m.Hello)
    assert hello.fields["proto"] == 1
    assert hello.fields["producer"] == {"name": "producer"}
    assert "resume" not in hello.fields


def test_what_was_asked_for_early_follows_the_welcome() -> None:
    session = Session("me", "p", lambda: 0.5)
    session.opened(0.0)
    publish(session, "early")
    session.ask(about_the_hub, Ticket())
    welcome(session)
    assert {type(message) for message in said(session)} == {m.Info, m.Publish}


def test_ping_goes_out_when_idle_and_silence_is_a_loss() -> None:
    session = live_session()
    session.tick(4.9)
    assert said(session) == []
    assert session.next_deadline() == 5.0
    session.tick(5.0)
    assert said(session) == [m.Ping(0)]
    session.receive(m.Pong(0), 5.1)
    session.tick(10.1)
    assert said(session) == [m.Ping(0)]
    session.tick(20.0)
    assert not session.wants_socket(30.0)
    session.tick(20.1)
    assert session.wants_socket(30.0)


def test_what_the_hub_says_is_life_but_pings_go_on_while_it_is_silent() -> None:
    session = live_session()
    for second in range(1, 15):
        session.ask(about_the_hub, Ticket())
        session.tick(float(second))
    pings = [message for message in said(session) if isinstance(message, m.Ping)]
    assert len(pings) == 2, "our own words are no sign of its life"
    session.tick(15.0)
    assert session.state is State.LOST


def test_backoff_grows_with_jitter_and_starts_anew_after_a_welcome() -> None:
    session = live_session()
    pauses = []
    now = 100.0
    for _ in range(9):
        session.lost(now, "test")
        pauses.append(session.reopen_at - now)
        now = session.reopen_at
        session.opened(now)
        said(session)
    assert pauses[:3] == pytest.approx([0.05, 0.1, 0.2])
    assert pauses[-1] == pytest.approx(2.0)
    session.lost(now, "test")
    session.opened(session.reopen_at)
    welcome(session)
    session.lost(now, "test")
    assert session.reopen_at - now == pytest.approx(0.05)


def test_no_session_means_reconnect() -> None:
    session = live_session()
    publish(session, "a")
    (sent,) = said(session)
    assert isinstance(sent, m.Publish)
    session.receive(m.Err(0, sent.rid, Code.NO_SESSION, "who?", {}), 1.0)
    assert session.state is State.LOST


def test_resume_names_the_session_and_the_last_ordinals() -> None:
    session = live_session()
    sub = subscribe(session)
    session.receive(deliver(sub.chan, 1, b"a", b"b"), 1.0)
    hello = reconnect(session, 2.0, resumed=True, subs=(sub.chan,))
    assert hello.fields["resume"] == {"session": b"S" * 16, "subs": [[sub.chan, 2]]}
    assert hello.fields["producer"] == {"name": "p", "epoch": 1}


def test_resumed_session_repeats_acks_credit_and_publishes() -> None:
    session = live_session()
    sub = subscribe(session)
    session.receive(deliver(sub.chan, 1, b"a"), 1.0)
    take(sub).ack()
    session.flush(sub)
    (ack,) = said(session)
    ticket = publish(session, "x")
    said(session)
    reconnect(session, 2.0, resumed=True, subs=(sub.chan,))
    repeated = said(session)
    assert repeated[0] == ack
    assert [type(message) for message in repeated] == [m.Settle, m.Credit, m.Publish]
    assert not ticket.done
    assert sub.generation == 0


def test_forgotten_session_subscribes_again_and_drops_what_was_buffered() -> None:
    session = live_session()
    sub = subscribe(session)
    session.receive(deliver(sub.chan, 1, b"a"), 1.0)
    session.receive(deliver(sub.chan, 2, b"b"), 1.0)
    held = take(sub)
    reconnect(session, 2.0, resumed=False)
    held.ack()
    session.flush(sub)
    (again,) = said(session)
    assert isinstance(again, m.Subscribe)
    assert again.fields["group"] == "g"
    assert (len(sub.ready), sub.void) == (0, 2)
    session.receive(deliver(sub.chan, 1, b"a", attempt=2), 3.0)
    assert take(sub).attempt == 2


def test_publish_stored_before_a_crash_is_confirmed_once_by_the_duplicate() -> None:
    session = live_session()
    ticket = publish(session, "x")
    said(session)
    reconnect(session, 2.0, resumed=False, last_pseq=1)
    (again,) = said(session)
    assert isinstance(again, m.Publish)
    assert again.pseq == 1
    session.receive(m.PubOk(0, ((again.rid, 7, 0, 1),)), 3.0)
    assert ticket.result().seq == 7


def test_open_requests_are_repeated_and_answered_once() -> None:
    session = live_session()
    ticket = Ticket()
    session.ask(about_the_hub, ticket)
    (asked,) = said(session)
    reconnect(session, 2.0, resumed=True)
    assert said(session) == [asked]
    assert isinstance(asked, m.Info)
    session.receive(m.Ok(0, asked.rid, {"a": 1}), 3.0)
    session.receive(m.Ok(0, asked.rid, {"a": 2}), 3.0)
    assert ticket.result() == {"a": 1}


def test_subscription_whose_answer_was_lost_is_not_opened_twice() -> None:
    session = live_session()
    ticket = Ticket()
    sub = session.subscribe(lambda chan: Subscription(chan, {"patterns": ["#"], "group": "g"}), ticket)
    said(session)
    reconnect(session, 2.0, resumed=True, subs=(sub.chan,))
    assert [type(message) for message in said(session)] == [m.Credit]
    assert ticket.done


def test_subscription_that_never_arrived_is_asked_for_again_once() -> None:
    session = live_session()
    session.subscribe(lambda chan: Subscription(chan, {"patterns": ["#"], "group": "g"}), Ticket())
    said(session)
    reconnect(session, 2.0, resumed=False)
    assert [type(message) for message in said(session)] == [m.Subscribe]


def test_unsubscribe_sends_verdicts_first_and_is_moot_after_a_restart() -> None:
    session = live_session()
    sub = subscribe(session)
    session.receive(deliver(sub.chan, 1, b"a"), 1.0)
    take(sub).ack()
    ticket = Ticket()
    session.unsubscribe(sub, ticket)
    assert [type(message) for message in said(session)] == [m.Settle, m.Unsubscribe]
    reconnect(session, 2.0, resumed=False)
    assert said(session) == []
    assert ticket.done
    assert session.subscriptions == {}


def test_verdicts_given_while_disconnected_survive_until_the_resume() -> None:
    session = live_session()
    sub = subscribe(session)
    session.receive(deliver(sub.chan, 1, b"a"), 1.0)
    session.lost(1.5, "test")
    take(sub).ack()
    session.unsubscribe(sub, Ticket())
    session.opened(2.0)
    welcome(session, resumed=True, subs=[sub.chan])
    kinds = [type(message) for message in said(session)]
    assert kinds.index(m.Settle) < kinds.index(m.Unsubscribe)


def test_refused_subscription_fails_its_caller() -> None:
    session = live_session()
    ticket = Ticket()
    sub = session.subscribe(lambda chan: Subscription(chan, {"group": "g"}), ticket)
    (asked,) = said(session)
    assert isinstance(asked, m.Subscribe)
    fields = {"field": "lease_ms", "have": 30000, "want": 100}
    session.receive(m.Err(sub.chan, asked.rid, Code.GROUP_MISMATCH, "the group differs", fields), 1.0)
    with pytest.raises(GroupMismatch, match=r"lease_ms is 30000, not 100") as error:
        ticket.result()
    assert error.value.hint
    assert sub.error is error.value


def test_busy_request_is_repeated_after_a_while() -> None:
    session = live_session()
    ticket = Ticket()
    session.ask(about_the_hub, ticket)
    (asked,) = said(session)
    assert isinstance(asked, m.Info)
    session.receive(m.Err(0, asked.rid, Code.BUSY, "later", {"retry_ms": 100}), 1.0)
    session.tick(1.05)
    assert said(session) == []
    assert session.next_deadline() == pytest.approx(1.1)
    session.tick(1.1)
    assert said(session) == [asked]


def test_a_final_refusal_of_the_hub_fails_all_calls() -> None:
    session = live_session()
    ticket = publish(session, "x")
    session.lost(1.0, "test")
    session.opened(2.0)
    (hello,) = said(session)
    assert isinstance(hello, m.Hello)
    session.receive(m.Err(0, hello.rid, Code.FENCED, "someone else", {}), 2.1)
    assert session.state is State.FAILED
    with pytest.raises(Unconfirmed, match="someone else"):  # it was sent before
        ticket.result()
    asked = Ticket()
    session.ask(about_the_hub, asked)
    with pytest.raises(Fenced):
        asked.result()


def test_missing_ordinals_lead_to_a_resume() -> None:
    session = live_session()
    sub = subscribe(session)
    session.receive(deliver(sub.chan, 1, b"a"), 1.0)
    session.receive(deliver(sub.chan, 3, b"c", seq=3), 1.0)
    assert session.state is State.LOST
    hello = reconnect(session, 1.0, resumed=True, subs=(sub.chan,))
    assert hello.fields["resume"]["subs"] == [[sub.chan, 1]]


def test_verdicts_wait_five_milliseconds_for_company() -> None:
    session = live_session()
    sub = subscribe(session)
    session.receive(deliver(sub.chan, 1, b"a", b"b"), 1.0)
    first, second = take(sub)
    first.ack()
    sub.flush_at = 1.005  # what a shell does in its hook
    second.ack()
    session.tick(1.004)
    assert said(session) == []
    session.tick(1.005)
    (settle,) = said(session)
    assert isinstance(settle, m.Settle)
    assert settle.verdicts == ((0, 1, 2, None),)
    assert not session.settled
    session.receive(m.Ok(sub.chan, settle.rid, {"applied": 1, "stale": [[2, 2]]}), 1.1)
    assert session.settled
    assert sub.stale == 1


def test_leases_are_renewed_by_the_tick() -> None:
    session = live_session()
    sub = subscribe(session)
    session.receive(deliver(sub.chan, 1, b"a"), 0.0)
    assert session.next_deadline() == 5.0
    for now in (5.0, 7.5):
        session.receive(m.Pong(0), now)
        session.tick(now)
    settles = [message for message in said(session) if isinstance(message, m.Settle)]
    assert [settle.verdicts for settle in settles] == [((m.Verdict.TOUCH, 1, 1, None),)]


def test_fetch_goes_on_at_a_hub_that_resumed_and_is_repeated_at_one_that_forgot() -> None:
    for resumed, expected in ((True, []), (False, [m.Subscribe, m.Fetch])):
        session = live_session()
        sub = subscribe(session)
        sub.fetching = True
        ticket = Ticket()
        session.fetch(sub, (10, 1000, 1), ticket)
        said(session)
        reconnect(session, 1.0, resumed=resumed, subs=(sub.chan,))
        again = said(session)
        if not resumed:
            (subscribed,) = again
            assert isinstance(subscribed, m.Subscribe)
            session.receive(m.Ok(sub.chan, subscribed.rid, {}), 1.0)
            again += said(session)
        assert [type(message) for message in again] == expected


def test_losses_by_retention_are_counted() -> None:
    session = live_session()
    sub = subscribe(session)
    session.receive(m.Gap(sub.chan, 5, 9, "retention"), 1.0)
    assert sub.lost == 5


def test_a_fast_consumer_is_not_taken_for_a_slow_one_when_its_verdicts_left_before_the_look() -> None:
    session = live_session()
    sub = subscribe(session)
    now = 1.0
    sub.begun.is_unsure = True
    begun.review(session, sub, now)
    sub.careful = False
    for ordinal in range(1, 6):
        session.receive(deliver(1, ordinal, b"x", seq=ordinal), now)
        take(sub).ack()
        session.flush(sub, now)  # as the shell does when it takes the next delivery
        now += begun.REVIEW_S
        session.tick(now)
        assert not sub.careful
    for _ in range(2):  # nothing was settled meanwhile: it is slow, and will ask; then it is sure again
        now += begun.REVIEW_S
        session.tick(now)
        assert sub.careful
    assert not sub.begun.is_unsure


# Keys.


def test_clients_with_keys_come_back_spread_over_time() -> None:
    """Within the grace of the hub (1.4 s) at first, and over 5 s later."""
    for random, pauses in ((0.0, [0.1, 0.1, 0.1, 0.1, 0.1]), (1.0, [1.0, 2.0, 4.0, 5.0, 5.0])):
        session = Session("me", "p", lambda random=random: random, keyed=True)  # type: ignore[misc]
        session.opened(0.0)
        for pause in pauses:
            session.lost(10.0, "test")
            assert session.reopen_at - 10.0 == pytest.approx(pause)
            session.opened(10.0)


def test_a_refused_client_that_was_never_connected_ends() -> None:
    session = Session("me", "p", lambda: 0.5)
    session.opened(0.0)
    (hello,) = said(session)
    session.receive(m.Err(0, hello.rid, Code.AUTH_FAILED, "this key is not known", {}), 0.0)  # type: ignore[union-attr]
    assert isinstance(session.error, AuthFailed)


def test_a_refused_client_that_was_connected_tries_again_and_keeps_all() -> None:
    session = live_session()
    ticket = publish(session, "kept")
    (sent,) = said(session)
    session.receive(m.Err(0, sent.rid, Code.AUTH_FAILED, "the key was revoked", {}), 1.0)  # type: ignore[union-attr]
    assert session.state is State.LOST
    assert str(session.lost_reason) == "the key was revoked"
    assert session.reopen_at - 1.0 < 0.1, "a rotation has saved the next key already"
    assert not ticket.done
    session.opened(2.0)
    (hello,) = said(session)
    session.receive(m.Err(0, hello.rid, Code.AUTH_FAILED, "the key was revoked", {}), 2.0)  # type: ignore[union-attr]
    assert session.reopen_at - 2.0 == pytest.approx(5.0)
    session.opened(session.reopen_at)
    welcome(session)
    assert any(isinstance(message, m.Publish) for message in said(session))


def test_a_call_gets_its_refusal_and_the_session_goes_on() -> None:
    session = live_session()
    ticket = Ticket()
    session.ask(lambda rid: m.Admin(rid, {"op": "keys.enrol", "code": "x"}), ticket)
    (asked,) = said(session)
    session.receive(m.Err(0, asked.rid, Code.AUTH_FAILED, "no such code", {}), 0.0)  # type: ignore[union-attr]
    assert session.live
    with pytest.raises(AuthFailed, match="no such code"):
        ticket.result()


def test_a_kicked_session_asks_and_reconnects() -> None:
    session = live_session()
    session.receive(m.Notice("kicked", {"reason": "the key was revoked"}), 0.0)
    assert said(session) == [m.Ping(0)]
    session.receive(m.Err(0, 0, Code.NO_SESSION, "", {}), 0.0)
    assert session.state is State.LOST


def test_a_subscription_whose_right_is_gone_ends_as_forbidden() -> None:
    session = live_session()
    sub = subscribe(session)
    fields = {"chan": sub.chan, "why": "role worker may not subscribe to #", "code": Code.FORBIDDEN}
    session.receive(m.Notice("unsubscribed", fields), 0.0)
    assert isinstance(sub.error, Forbidden)


@pytest.mark.parametrize("code", [Code.BUSY, Code.SHUTTING_DOWN])
def test_a_hello_that_is_too_early_is_sent_again(code: Code) -> None:
    session = Session("me", "p", lambda: 0.5)
    session.opened(0.0)
    (hello,) = said(session)
    session.receive(m.Err(0, hello.rid, code, "10 sessions are open", {}), 0.0)  # type: ignore[union-attr]
    assert (session.state, session.lost_reason) == (State.LOST, "10 sessions are open")
