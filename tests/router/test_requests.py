"""Request and reply: the choice of the responder, the frames to each client, and no state left at the end."""

from typing import Any

import pytest

from fabric.router.publish.publishing import Refusal
from fabric.router.requests import requests, services
from fabric_protocol import messages as m
from fabric_protocol.block import Block, encode
from fabric_protocol.errors import Code
from tests.router.world import World


class Office(World):
    """Clients `asker` and any number of responders."""

    def __init__(self) -> None:
        super().__init__()
        self.hello(b"asker", client="asker")
        self._rid = 100

    def respond(self, name: str, *patterns: str, chan: int = 1, **fields: Any) -> m.ToClient:
        peer = name.encode()
        if self.router.session_table.find(peer) is None:
            self.hello(peer, client=name)
        body = {"respond": True, **fields}
        if patterns:
            body["patterns"] = list(patterns)
        return self.say(peer, m.Subscribe(chan, 5, body))[0]

    def ask(self, topic: str = "sum", body: str = "1+1", peer: bytes = b"asker", **fields: Any) -> int:
        self._rid += 1
        self.say(peer, m.Request(0, self._rid, fields, encode(topic, [body.encode()])))
        return self._rid

    def asked(self, name: str) -> list[m.Request]:
        """What a responder was asked so far."""
        return [message for message in self.said.get(name.encode(), []) if isinstance(message, m.Request)]

    def answer(self, name: str, request: m.Request, body: str = "2", **fields: Any) -> list[m.ToClient]:
        return self.say(name.encode(), m.Reply(request.chan, request.rid, fields, encode("r", [body.encode()])))

    def heard(self, rid: int, peer: bytes = b"asker") -> list[tuple[Any, ...]]:
        """(body, final) of replies and (code, …) of errors to a request."""
        rows: list[tuple[Any, ...]] = []
        for message in self.said[peer]:
            if isinstance(message, m.Reply) and message.rid == rid:
                rows.append((Block(message.block).payloads()[0].decode(), message.fields["final"]))
            elif isinstance(message, m.Err) and message.rid == rid:
                rows.append((Code(message.code), dict(message.fields)))
        return rows

    def is_empty(self) -> bool:
        """Nothing is left of any request."""
        hub = self.router.requests
        return not (hub._open or hub._asked or hub._waiting_bytes or any(s.waiting for s in hub.services))


def test_a_request_reaches_a_responder_and_its_reply_comes_back() -> None:
    office = Office()
    assert office.respond("adder", "sum", concurrency=2) == m.Ok(
        1, 5, {"group": "$service.1", "created": True, "concurrency": 2}
    )
    rid = office.ask(timeout_ms=5_000)
    (request,) = office.asked("adder")
    assert (request.chan, dict(request.fields)) == (1, {"timeout_ms": 5_000, "from": "asker", "principal": "local"})
    assert request.block == encode("sum", [b"1+1"]), "as it was sent"
    office.answer("adder", request)
    reply = office.said[b"asker"][-1]
    assert reply == m.Reply(0, rid, {"final": True, "from": "adder", "principal": "local"}, encode("r", [b"2"]))
    assert office.is_empty()
    assert not office.reader.blocks, "nothing is journaled"


def test_a_request_without_a_responder_fails_at_once() -> None:
    office = Office()
    office.respond("adder", "sum")
    assert office.heard(office.ask("product")) == [(Code.NO_RESPONDERS, {})]
    assert office.is_empty()


def test_patterns_are_understood() -> None:
    office = Office()
    office.respond("adder", "math.*", "logic.#")
    office.ask("math.sum")
    office.ask("logic.a.b")
    assert [Block(request.block).topics for request in office.asked("adder")] == [("math.sum",)], "one handler"
    office.answer("adder", office.asked("adder")[0])
    assert len(office.asked("adder")) == 2


def test_members_of_a_service_share_and_the_least_loaded_is_next() -> None:
    office = Office()
    for name in ("a", "b", "c"):
        office.respond(name, "sum", group="adders", concurrency=2)
    for _ in range(6):
        office.ask()
    assert [len(office.asked(name)) for name in ("a", "b", "c")] == [2, 2, 2]
    office.answer("b", office.asked("b")[0])
    office.ask()
    assert len(office.asked("b")) == 3


def test_load_is_counted_for_each_handler() -> None:
    office = Office()
    office.respond("small", "sum", group="adders", concurrency=1)
    office.respond("big", "sum", group="adders", concurrency=4)
    for _ in range(5):
        office.ask()
    assert [len(office.asked(name)) for name in ("small", "big")] == [1, 4]


def test_of_several_services_the_least_loaded_is_asked_and_only_one() -> None:
    office = Office()
    office.respond("a", "sum", concurrency=2)
    office.respond("b", "#", concurrency=2)
    for _ in range(4):
        office.ask()
    assert [len(office.asked(name)) for name in ("a", "b")] == [2, 2]
    for name in ("a", "b"):
        for request in office.asked(name):
            office.answer(name, request)
    for _ in range(2):
        rid = office.ask()
        for name in ("a", "b"):
            for request in office.asked(name)[2:]:
                office.answer(name, request)
        assert office.heard(rid) == [("2", True)]
    assert [len(office.asked(name)) for name in ("a", "b")] == [3, 3], "in turn when both are idle"


def test_when_all_are_busy_requests_wait_in_line() -> None:
    office = Office()
    office.respond("adder", "sum")
    rids = [office.ask(body=str(i)) for i in range(3)]
    for i in range(3):
        request = office.asked("adder")[i]
        assert Block(request.block).payloads() == [str(i).encode()]
        office.answer("adder", request, f"answer {i}")
    assert [office.heard(rid) for rid in rids] == [[(f"answer {i}", True)] for i in range(3)]
    assert office.is_empty()


def test_when_enough_wait_the_rest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "QUEUE_PER_HANDLER", 2)
    office = Office()
    office.respond("adder", "sum")
    rids = [office.ask() for _ in range(4)]
    assert office.heard(rids[2]) == []
    assert office.heard(rids[3]) == [(Code.BUSY, {"retry_ms": requests.RETRY_MS})]


def test_bytes_that_wait_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "WAITING_BYTES_MAX", 3_000)
    office = Office()
    office.respond("adder", "sum")
    office.ask(body="x" * 5_000)
    waits = office.ask(body="x" * 2_000)
    assert office.heard(office.ask(body="x" * 2_000)) == [(Code.BUSY, {"retry_ms": requests.RETRY_MS})]
    office.answer("adder", office.asked("adder")[0])
    office.answer("adder", office.asked("adder")[1])
    assert office.heard(waits) == [("2", True)]
    assert office.is_empty()


def test_open_requests_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "OPEN_PER_SESSION_MAX", 2)
    monkeypatch.setattr(requests, "OPEN_MAX", 3)
    office = Office()
    office.hello(b"other")
    office.respond("adder", "sum", concurrency=10)
    assert [office.heard(office.ask()) for _ in range(3)][2] == [(Code.BUSY, {"retry_ms": requests.RETRY_MS})]
    office.ask(peer=b"other")
    assert office.heard(office.ask(peer=b"other"), b"other") == [(Code.BUSY, {"retry_ms": requests.RETRY_MS})]


def test_at_the_deadline_the_asker_is_told_and_the_handler_is_free() -> None:
    office = Office()
    office.respond("adder", "sum")
    late, waits = office.ask(timeout_ms=2_000), office.ask(timeout_ms=1_000)
    assert office.router.next_deadline() <= office.now + 1.0
    office.pass_time(1.0)
    assert office.heard(waits) == [(Code.TIMED_OUT, {"sent": False})], "nobody has seen this one"
    assert office.heard(late) == []
    office.pass_time(1.0)
    assert office.heard(late) == [(Code.TIMED_OUT, {"sent": True})]
    assert office.is_empty()
    office.answer("adder", office.asked("adder")[0])
    assert office.heard(late) == [(Code.TIMED_OUT, {"sent": True})], "a late reply is dropped"
    assert office.router.counters["late_replies"] == 1
    office.ask()
    assert len(office.asked("adder")) == 2


def test_the_responder_hears_how_much_time_is_left() -> None:
    office = Office()
    office.respond("adder", "sum")
    office.ask(timeout_ms=4_000)
    office.ask(timeout_ms=4_000)
    office.pass_time(1.0)
    office.answer("adder", office.asked("adder")[0])
    assert office.asked("adder")[1].fields["timeout_ms"] == 3_000


def test_many_replies_until_the_final_one() -> None:
    office = Office()
    office.respond("adder", "sum")
    rid = office.ask(replies_max=10)
    (request,) = office.asked("adder")
    office.answer("adder", request, "1", final=False)
    office.answer("adder", request, "2", final=False)
    office.answer("adder", request, "3", final=True)
    office.answer("adder", request, "4", final=True)
    assert office.heard(rid) == [("1", False), ("2", False), ("3", True)]
    assert office.is_empty()


def test_the_last_reply_that_is_wanted_is_final() -> None:
    office = Office()
    office.respond("adder", "sum")
    rid = office.ask(replies_max=2)
    (request,) = office.asked("adder")
    for body in ("1", "2", "3"):
        office.answer("adder", request, body, final=False)
    assert office.heard(rid) == [("1", False), ("2", True)]
    assert office.router.counters["late_replies"] == 1


def test_an_error_travels_with_its_text() -> None:
    office = Office()
    office.respond("adder", "sum")
    rid = office.ask()
    office.answer("adder", office.asked("adder")[0], error="cannot add")
    reply = office.said[b"asker"][-1]
    assert isinstance(reply, m.Reply)
    assert reply.rid == rid
    assert reply.fields == {"final": True, "from": "adder", "principal": "local", "error": "cannot add"}


@pytest.mark.parametrize("how", ["unsub", "goodbye", "silence", "gone"])
def test_a_responder_that_goes_fails_what_it_had(how: str) -> None:
    office = Office()
    office.respond("adder", "sum")
    had, waits = office.ask(timeout_ms=600_000), office.ask(timeout_ms=600_000)
    match how:
        case "unsub":
            assert office.say(b"adder", m.Unsubscribe(1, 9))[0] == m.Ok(1, 9, {})
        case "goodbye":
            office.say(b"adder", m.Goodbye(9))
        case "silence":
            for _ in range(4):
                office.say(b"asker", m.Ping(0))
                office.pass_time(10)
        case "gone":
            office.router.peer_gone(b"adder")
            assert office.router.next_deadline() == 0.0
            office.pass_time(0)
    office.pass_time(0)
    assert office.heard(had) == [(Code.TIMED_OUT, {"sent": True})]
    assert office.heard(waits) == [(Code.NO_RESPONDERS, {})]
    assert office.is_empty()
    assert office.heard(office.ask()) == [(Code.NO_RESPONDERS, {})]


def test_when_a_responder_goes_waiting_requests_get_another() -> None:
    office = Office()
    office.respond("a", "sum", group="adders")
    office.respond("b", "sum", group="adders")
    first, second, waits = office.ask(), office.ask(), office.ask()
    office.say(b"a", m.Goodbye(9))
    assert office.heard(first) == [(Code.TIMED_OUT, {"sent": True})]
    office.answer("b", office.asked("b")[0])
    office.answer("b", office.asked("b")[1], "4")
    assert (office.heard(second), office.heard(waits)) == ([("2", True)], [("4", True)])


def test_a_newcomer_gets_what_waits() -> None:
    office = Office()
    office.respond("a", "sum", group="adders")
    office.ask()
    office.ask()
    office.respond("b", group="adders")
    assert len(office.asked("b")) == 1


def test_an_unreachable_responder_is_not_asked_until_it_is_back() -> None:
    office = Office()
    office.respond("adder", "sum")
    office.router.peer_blocked(b"adder", True)
    office.ask()
    assert not office.asked("adder")
    office.router.peer_blocked(b"adder", False)
    assert office.router.next_deadline() == 0.0
    office.pass_time(0)
    assert len(office.asked("adder")) == 1


def test_an_asker_that_goes_is_forgotten_and_the_handler_stays_busy_until_it_answers() -> None:
    office = Office()
    office.hello(b"other")
    office.respond("adder", "sum")
    office.ask(peer=b"other")
    office.ask(peer=b"other")
    office.say(b"other", m.Goodbye(9))
    rid = office.ask()
    assert len(office.asked("adder")) == 1, "the one that waited is gone, and the handler is still at work"
    office.answer("adder", office.asked("adder")[0])
    assert len(office.asked("adder")) == 2
    office.answer("adder", office.asked("adder")[1])
    assert office.heard(rid) == [("2", True)]
    assert office.is_empty()


def test_an_asker_that_does_not_read_loses_its_request() -> None:
    office = Office()
    office.respond("adder", "sum")
    rid = office.ask(replies_max=1_000)
    office.answer("adder", office.asked("adder")[0], "1", final=False)
    office.router.peer_blocked(b"asker", True)
    office.answer("adder", office.asked("adder")[0], "2", final=False)
    assert office.heard(rid) == [("1", False), (Code.BUSY, {"sent": True})]
    assert office.is_empty()


def test_after_a_reconnect_requests_go_on_and_responders_subscribe_again() -> None:
    office = Office()
    secret = {name: office.hello(name, client="back").fields["session"] for name in (b"ask1", b"ans1")}  # type: ignore[union-attr]
    office.say(b"ans1", m.Subscribe(1, 5, {"respond": True, "patterns": ["sum"], "concurrency": 2}))
    rid = office.ask(peer=b"ask1")
    office.hello(b"ask2", resume={"session": secret[b"ask1"], "subs": []})
    (request,) = office.asked("ans1")
    office.answer("ans1", request)
    assert office.heard(rid, b"ask2") == [("2", True)]
    rid = office.ask(peer=b"ask2")
    welcome = office.hello(b"ans2", resume={"session": secret[b"ans1"], "subs": [[1, 0]]})
    assert welcome.fields["subs"] == []  # type: ignore[union-attr]
    office.pass_time(0)
    assert office.heard(rid, b"ask2") == [(Code.TIMED_OUT, {"sent": True})]
    assert isinstance(office.say(b"ans2", m.Subscribe(1, 5, {"respond": True, "patterns": ["sum"]}))[0], m.Ok)


def test_the_end_of_a_request_is_told_where_the_session_is_by_then() -> None:
    """Connections come and go within one turn of the hub."""
    office = Office()
    welcome = office.hello(b"one", client="both")
    office.say(b"one", m.Subscribe(1, 5, {"respond": True, "patterns": ["sum"]}))
    rid = office.ask(peer=b"one")
    resume = {"session": welcome.fields["session"], "subs": []}  # type: ignore[union-attr]
    out: list[tuple[bytes, m.ToClient]] = []
    for peer in (b"two", b"three"):
        office.router.step(m.Hello(9, {"proto": 1, "resume": resume}), peer, office.now)
        out += office.router.take_frames()
    office.router.tick(office.now)
    out += office.router.take_frames()
    told = [peer for peer, message in out if isinstance(message, m.Err) and message.rid == rid]
    assert told == [b"three"]


def test_a_reply_must_come_from_the_responder_of_the_request() -> None:
    office = Office()
    office.respond("adder", "sum")
    office.respond("thief", "other")
    rid = office.ask()
    (request,) = office.asked("adder")
    office.answer("thief", request)
    assert office.heard(rid) == []
    office.answer("adder", request._replace(chan=2))
    assert office.heard(rid) == []
    office.answer("adder", request)
    assert office.heard(rid) == [("2", True)]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"respond": "yes", "patterns": ["a"]}, Code.BAD_OPTION),
        ({"respond": True}, Code.BAD_OPTION),
        ({"respond": True, "patterns": []}, Code.BAD_OPTION),
        ({"respond": True, "patterns": "a"}, Code.BAD_OPTION),
        ({"respond": True, "patterns": ["a..b"]}, Code.BAD_PATTERN),
        ({"respond": True, "patterns": ["a"], "concurrency": 0}, Code.BAD_OPTION),
        ({"respond": True, "patterns": ["a"], "group": "$x"}, Code.BAD_OPTION),
        ({"respond": True, "patterns": ["a"], "group": 7}, Code.BAD_OPTION),
        ({"respond": True, "patterns": ["other"], "group": "adders"}, Code.GROUP_MISMATCH),
    ],
)
def test_a_wrong_subscription_is_refused(fields: dict[str, Any], code: Code) -> None:
    office = Office()
    office.respond("adder", "sum", group="adders")
    answer = office.say(b"asker", m.Subscribe(1, 5, fields))[0]
    assert isinstance(answer, m.Err)
    assert answer.code == code
    assert len(list(office.router.requests.services)) == 1


def test_services_and_groups_do_not_meet() -> None:
    office = Office()
    office.respond("adder", "sum", group="adders")
    office.sub(b"asker", 1, "sum", group="adders")
    office.pub(b"asker", "sum", "not a request")
    assert office.bodies(b"asker") == ["not a request"]
    assert not office.asked("adder")
    taken = office.say(b"adder", m.Subscribe(1, 5, {"patterns": ["x"]}))[0]
    assert isinstance(taken, m.Err), "a channel is one or the other"


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (m.Request(0, 0, {}, encode("sum", [b""])), Code.BAD_OPTION),
        (m.Request(0, 7, {"timeout_ms": 0}, encode("sum", [b""])), Code.BAD_OPTION),
        (m.Request(0, 7, {"timeout_ms": 600_001}, encode("sum", [b""])), Code.BAD_OPTION),
        (m.Request(0, 7, {"replies_max": 0}, encode("sum", [b""])), Code.BAD_OPTION),
        (m.Request(0, 7, {}, encode("sum", [b"", b""])), Code.BAD_OPTION),
        (m.Request(0, 7, {}, encode("$sys.x", [b""])), Code.FORBIDDEN),
        (m.Request(0, 7, {}, encode("a..b", [b""])), Code.BAD_TOPIC),
        (m.Request(0, 7, {}, b"junk"), Code.BAD_BLOCK),
    ],
)
def test_a_wrong_request_is_refused(request_: m.Request, code: Code) -> None:
    office = Office()
    office.respond("adder", "#")
    (answer,) = office.say(b"asker", request_)
    assert isinstance(answer, m.Err)
    assert answer.code == code
    assert office.is_empty()


def test_the_rid_of_an_open_request_cannot_be_used_again() -> None:
    office = Office()
    office.respond("adder", "sum", concurrency=2)
    office.say(b"asker", m.Request(0, 7, {}, encode("sum", [b"1"])))
    (answer,) = office.say(b"asker", m.Request(0, 7, {}, encode("sum", [b"1"])))
    assert isinstance(answer, m.Err)
    assert answer.code == Code.BAD_OPTION


@pytest.mark.parametrize("fields", [{"final": 1}, {"error": 7}])
def test_a_wrong_reply_is_refused_and_the_request_stays_open(fields: dict[str, Any]) -> None:
    office = Office()
    office.respond("adder", "sum")
    rid = office.ask()
    (request,) = office.asked("adder")
    answer = office.answer("adder", request, **fields)[0]
    assert isinstance(answer, m.Err)
    assert answer.code == Code.BAD_OPTION
    office.answer("adder", request)
    assert office.heard(rid) == [("2", True)]


def test_a_stopping_hub_takes_no_requests_but_passes_replies_on() -> None:
    office = Office()
    office.respond("adder", "sum")
    rid = office.ask()
    office.router.drain(Refusal(Code.SHUTTING_DOWN, "stopping", 500))
    office.router.take_frames()
    assert office.router.outstanding() == 1
    assert office.heard(office.ask()) == [(Code.SHUTTING_DOWN, {"retry_ms": 500})]
    office.answer("adder", office.asked("adder")[0])
    assert office.heard(rid) == [("2", True)]
    assert office.router.outstanding() == 0


def test_services_are_described() -> None:
    office = Office()
    office.respond("adder", "sum", group="adders", concurrency=3)
    office.ask()
    (answer,) = office.say(b"asker", m.Info(9, {"what": "services"}))
    assert isinstance(answer, m.Ok)
    assert answer.fields == {
        "services": [{"service": "adders", "patterns": ["sum"], "members": 1, "handlers": 3, "busy": 1, "waiting": 0}],
        "more": False,
        "open": 1,
    }


def test_idle_members_are_asked_in_turn() -> None:
    office = Office()
    for name in ("a", "b", "c"):
        office.respond(name, "sum", group="adders", concurrency=2)
    order: list[Any] = []
    for i in range(6):
        office.ask()
        (name,) = [name for name in ("a", "b", "c") if len(office.asked(name)) > order.count(name)]
        order.append(name)
        office.answer(name, office.asked(name)[-1])
        assert office.is_empty(), i
    assert order == ["a", "b", "c", "a", "b", "c"]


def test_no_request_overtakes_waiting_requests() -> None:
    office = Office()
    office.respond("adder", "sum")
    office.ask(body="first")
    office.ask(body="second")
    out: list[tuple[bytes, m.ToClient]] = []
    reply = m.Reply(1, office.asked("adder")[0].rid, {}, encode("r", [b"2"]))
    office.router.step(reply, b"adder", office.now)  # in the same turn, before the waiting requests are passed on,
    out += office.router.take_frames()
    office.router.step(m.Request(0, 7, {}, encode("sum", [b"third"])), b"asker", office.now)
    out += office.router.take_frames()
    office.router.tick(office.now)
    out += office.router.take_frames()
    (request,) = [message for peer, message in out if peer == b"adder" and isinstance(message, m.Request)]
    assert Block(request.block).payloads() == [b"second"]


def test_dead_letters_are_not_asked_by_their_other_name() -> None:
    office = Office()
    answer = office.respond("bob", "g.DLQ", "sum")
    assert isinstance(answer, m.Ok), answer
    (service,) = office.router.requests.services
    assert service.patterns == ("$dlq.g", "sum")
    assert isinstance(office.respond("eve", "$dlq.g", "sum", group=None), m.Ok)
    rid = office.ask("g.DLQ")
    assert office.heard(rid)[0][0] == Code.FORBIDDEN
