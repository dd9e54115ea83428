"""What each right allows, what lists show of others, and what ends when rights change."""

from typing import Any

import pytest

from fabric.router.access.identity import GUEST_NAME
from fabric.router.access.principal import Principal, Principals
from fabric.router.access.rights import Rights
from fabric.router.access.role import EVERYTHING, NOTHING, Role
from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.block import encode
from fabric_protocol.errors import Code, ProtocolError
from tests.router.access.attempts import NEEDED, OPERATIONS, Attempt
from tests.router.access.place import KEY, OTHER, WORKER, G, L, O, Place, W, role

EVERY = role("info", groups=("*",), subscribe=("#", "$sys.#", "$dlq.#"), deny=())


def admin(op: str, **fields: Any) -> m.Admin:
    return m.Admin(9, {"op": op, **fields})


def sub(*patterns: str, **fields: Any) -> m.Subscribe:
    return m.Subscribe(9, 9, {"credit": [10, 1 << 20], **({"patterns": list(patterns)} if patterns else {}), **fields})


ALLOWED = [
    *(Attempt(f"PUB {topic}", m.Publish(9, 0, 0, encode(topic, [b"x"]))) for topic in ("invoices", "invoices.a.b")),
    Attempt("PUB what deny leaves", m.Publish(9, 0, 0, encode("hidden.y", [b"x"]))),
    Attempt("PUB later", m.Publish(9, 0, 0, encode("invoices.1", [b"x"]), {"delay_ms": 1000})),
    Attempt("TXN", m.Transact(9, 0, ((1, ((m.Verdict.ACK, 1, 1, None),)),), encode("invoices.1", [b"x"]))),
    *(Attempt(f"SUB {pattern}", sub(pattern)) for pattern in ("orders.*", "orders.new", "hidden.y", "billing.DLQ")),
    Attempt("SUB dead letters of a group that does not exist", sub("$dlq.billing-none")),
    Attempt("SUB group", sub(group="billing")),
    Attempt("SUB new group", sub("orders.*", group="billing-new")),
    Attempt("SUB advisories", sub("$sys.audit"), role(subscribe=("$sys.#",))),
    Attempt("SUB all dead letters", sub("$dlq.#"), EVERY),
    Attempt("SUB respond", sub("tax.a", respond=True)),
    Attempt("SUB respond in a named service", sub("tax.a", respond=True, group="billing-tax")),
    Attempt("REQ", m.Request(0, 9, {}, encode("prices.a", [b"?"]))),
    *(
        Attempt(f"GET {pattern}", m.Get(9, {"pattern": pattern}))
        for pattern in ("orders.*", "orders.new", "$dlq.billing")
    ),
    Attempt("GET topic", m.Get(9, {"topic": "orders.new"})),
    Attempt("GET all", m.Get(9, {}), EVERY),
    *(Attempt(f"INFO {what}", m.Info(9, {"what": what})) for what in ("hub", "health", "groups", "topics", "sessions")),
    *(Attempt(f"INFO {what}", m.Info(9, {"what": what})) for what in ("services", "schedules", "dlq", "me")),
    *(Attempt(f"INFO {what} info", m.Info(9, {"what": what}), EVERY) for what in ("counters", "settings", "pulse")),
    *(
        Attempt(f"INFO {what} hub", m.Info(9, {"what": what}), role("hub"))
        for what in ("counters", "settings", "pulse")
    ),
    Attempt("INFO group", m.Info(9, {"what": "group", "name": "billing"})),
    Attempt("INFO topic", m.Info(9, {"what": "topic", "name": "orders.new"})),
    Attempt("INFO story", m.Info(9, {"what": "story", "seq": 1})),
    Attempt("INFO find", m.Info(9, {"what": "find", "key": "k", "pattern": "orders.*"})),
    Attempt("INFO copies", m.Info(9, {"what": "copies", "seq": 1})),
    Attempt("INFO keys", m.Info(9, {"what": "keys"}), role("keys")),
    *(
        Attempt(op, admin(op, **fields), role(*NEEDED[op], groups=("*",), subscribe=("#", "$dlq.#"), deny=()))
        for op, fields in OPERATIONS.items()
        if op != "producer.delete"  # there is no producer
    ),
    Attempt("group.update patterns", admin("group.update", group="billing", patterns=["orders.new"]), role("groups")),
    Attempt("topic.create by publish", admin("topic.create", topic="invoices.1", max_msgs=5), role("topics")),
    Attempt("keys.rotate", admin("keys.rotate", key="R" * 40)),
]


@pytest.mark.parametrize("attempt", ALLOWED, ids=lambda attempt: attempt.name)
def test_a_right_allows(attempt: Attempt) -> None:
    place = Place(attempt.role)
    place.said[W].clear()
    del place.advised[:]
    place.say(W, attempt.message)
    assert not [said for said in place.said[W] if isinstance(said, m.Err)], place.said[W]
    assert not [audit for audit in place.audits() if audit["kind"] == "refused"]
    if attempt.name in OPERATIONS and attempt.name != "dlq.list":
        assert place.audits()[-1]["principal"] == "worker"
        assert (place.audits()[-1]["kind"], place.audits()[-1]["op"]) == ("admin", attempt.name)


# Lists.


def names(rows: list[dict[str, Any]], field: str) -> list[str]:
    return [row[field] for row in rows]


def test_lists_have_only_what_a_principal_may_see() -> None:
    place = Place()
    groups = ["billing", "billing-all", "billing-hidden"]
    assert names(place.ask(W, "groups")["groups"], "group") == groups
    assert names(place.ask(W, "dlq")["groups"], "group") == ["billing-all"]
    topics = place.ask(W, "topics")
    assert names(topics["topics"], "topic") == ["orders.limited", "orders.new"]
    assert topics["others"] == ["orders.new"]
    assert place.ask(W, "sessions")["sessions"][0]["client"] == ""
    assert len(place.ask(W, "sessions")["sessions"]) == 1
    assert names(place.ask(W, "services")["services"], "service") == ["shop"]
    assert "open" not in place.ask(W, "services")
    assert place.ask(W, "schedules")["schedules"] == []
    assert place.ask(W, "topic", name="orders.new")["groups"] == ["billing-all", "billing"]
    assert names(place.ask(W, "story", seq=1)["groups"], "group") == ["billing", "billing-all"]


def test_subscriptions_of_others_are_in_no_list_of_groups() -> None:
    place = Place(role(groups=("*",)))
    place.sub(L, 9, "secret.a")
    assert "$sub.1" in names(place.ask(L, "groups")["groups"], "group")
    assert names(place.ask(W, "groups")["groups"], "group") == sorted(
        name for name in place.router.groups if name[0] != "$"
    )


def test_dead_letters_that_were_allowed_are_refused_after_their_group_has_wider_patterns() -> None:
    place = Place(role())
    asked = m.Get(9, {"pattern": "$dlq.billing"})
    for _ in range(2):
        assert not isinstance(place.say(W, asked)[-1], m.Err)
    place.admin("group.update", group="billing", patterns=["orders.*", "secret.a"])
    (error,) = place.say(W, asked)
    assert isinstance(error, m.Err)
    assert error.code == Code.FORBIDDEN


def test_groups_that_consume_dead_letters_of_each_other_are_each_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To follow each path through the groups would take longer than the world has."""
    place, looked, joins = Place(role(groups=("*",))), [0], Rights.joins
    others = [f"$dlq.ring{number}" for number in range(30)]

    def counted(rights: Rights, group: str) -> bool:
        looked[0] += 1
        assert looked[0] < 10_000
        return joins(rights, group)

    monkeypatch.setattr(Rights, "joins", counted)
    for chan in range(30):
        body = {"credit": [1, 1], "patterns": others, "group": f"ring{chan}"}
        assert isinstance(place.say(W, m.Subscribe(20 + chan, 9, body))[0], m.Ok)
    place.admin("group.update", group="ring29", patterns=["secret.a"])
    assert len(notices(place, W)) == 30, "all of them could read its dead letters"


def test_a_name_of_no_group_is_a_wrong_option() -> None:
    place = Place(role("dlq", groups=("*",)))
    for name in ("", " ", ".", "a..b"):
        (error,) = place.say(W, admin("dlq.list", group=name))
        assert isinstance(error, m.Err)
        assert error.code in (Code.BAD_OPTION, Code.NOT_FOUND), name


def test_the_patterns_of_a_service_are_not_told() -> None:
    place = Place(role(groups=("vault",)))
    (error,) = place.say(W, m.Subscribe(9, 9, {"respond": True, "group": "vault", "credit": [1, 1]}))
    assert isinstance(error, m.Err)
    assert error.code == Code.FORBIDDEN
    assert "vault.*" not in error.text


def test_principals_are_listed_in_pages() -> None:
    place = Place()
    place.book.granted |= {f"tenant{number:05}": OTHER for number in range(9_000)}
    found: list[str] = []
    fields: dict[str, Any] = {}
    while fields.get("more", True):
        fields = place.ask(L, "keys", **({"after": fields["next"]} if fields else {}))
        assert len(wire.encode(m.Ok(0, 1, fields))[0]) < m.META_BYTES_MAX / 2
        found += names(fields["principals"], "principal")
    assert found == sorted(place.book.roles())


def test_a_list_of_topics_does_not_look_at_all_that_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(role(subscribe=("a.*", "a-b.#", "c", "c.#", "orders.*")))
    shown = ["a.1", "a.2", "a-b", "a-b.x.y", "c", "c.d"]
    for topic in (*shown, "a", "a.1.x", "a!", "a-", "ab", "b.1", "c!d", *(f"x.{number}" for number in range(500))):
        place.pub(L, topic, "x")
    place.pass_time(1)
    looked, sees = set[str](), Principal.sees_topic

    def counted(principal: Principal, topic: str) -> bool:
        looked.add(topic)
        return sees(principal, topic)

    monkeypatch.setattr(Principal, "sees_topic", counted)
    found: list[str] = []
    fields: dict[str, Any] = {"after": "!"}
    while fields.get("more", True):
        fields = place.ask(W, "topics", after=fields.get("next", "!"), n=2)
        found += names(fields["topics"], "topic")
    assert found == sorted([*shown, "orders.limited", "orders.new"])
    assert len(looked) < 30


def test_a_page_does_not_end_at_a_hidden_row() -> None:
    place = Place()
    page = place.ask(W, "groups", n=3)
    assert (len(page["groups"]), page["more"]) == (3, False), "payroll and q come after these"
    page = place.ask(W, "groups", n=2)
    assert (page["more"], page["next"]) == (True, "billing-all")
    assert place.ask(W, "topics", n=2, after="orders.limited") == {
        **place.ask(W, "topics", n=2, after="orders.limited"),
        "more": False,
    }


def test_the_hub_is_described_without_its_path_and_counts() -> None:
    place = Place()
    assert set(place.ask(W, "hub")) == {"first_seq", "last_seq", "health", "journal"}
    assert set(place.ask(W, "health")) == {"health"}
    assert place.ask(L, "hub")["path"] == "/data/journal"
    assert "measured" in place.ask(L, "health")
    place = Place(EVERY)
    assert place.ask(W, "hub")["path"] == "/data/journal"
    assert len(place.ask(W, "groups")["groups"]) == len(place.router.groups)
    assert len(place.ask(W, "sessions")["sessions"]) == 4


def test_copies_are_of_groups_that_a_principal_may_see() -> None:
    place = Place()
    assert {row["group"] for row in place.ask(L, "copies", seq=1)["copies"]} == {"payroll", "billing-all"}
    assert {row["group"] for row in place.ask(W, "copies", seq=1)["copies"]} == {"billing-all"}


def test_events_of_a_message_are_of_groups_that_a_principal_may_see() -> None:
    place = Place()
    place.admin("hub.update", events=True)
    place.pub(L, "orders.new", "again")
    seq = place.reader.blocks[-1].last_seq
    for _ in range(2):  # before and after they are on disk
        assert {event["group"] for event in place.ask(L, "story", seq=seq)["events"]} >= {"payroll", "billing"}
        story = place.ask(W, "story", seq=seq, n=2)
        assert {event["group"] for event in story["events"]} == {"billing", "billing-all"}
        assert story["more"] is False, "of the events that it may see there are two"
        place.pass_time(5)


def test_a_session_is_told_its_rights() -> None:
    me = Place(role("dlq")).ask(W, "me")
    assert (me["principal"], me["role"], me["key"]) == ("worker", "worker", KEY)
    assert me["rights"]["subscribe"] == ["orders.*", "hidden.*"]
    assert me["rights"]["admin"] == ["dlq"]
    assert me["limits"]["rate"] == 0


# Keys.


def test_a_guest_joins_by_the_code_of_an_invitation() -> None:
    place = Place()
    invited = place.admin("keys.invite", name="new", role="reader", ttl_ms=60_000).fields
    assert invited["journal"] == "abcd"
    (error,) = place.say(G, admin("keys.enrol", code="wrong"))
    assert isinstance(error, m.Err)
    assert error.code == Code.AUTH_FAILED
    (answer,) = place.say(G, admin("keys.enrol", code=invited["code"]))
    assert isinstance(answer, m.Ok)
    assert (answer.fields["principal"], answer.fields["role"]) == ("new", "reader")
    audit = place.audits()[-1]
    assert (audit["kind"], audit["name"], audit["address"]) == ("enrolled", "new", "10.0.0.7")
    assert invited["code"] not in str(place.advised), "a code is a secret"
    (error,) = place.say(G, admin("keys.enrol", code=invited["code"]))
    assert isinstance(error, m.Err)
    place.say(G, m.Goodbye(1))
    assert isinstance(place.come(b"new", "new"), m.Welcome)


def test_a_key_that_is_known_needs_no_invitation() -> None:
    place = Place()
    for peer in (L, W):
        (error,) = place.say(peer, admin("keys.enrol", code="x"))
        assert isinstance(error, m.Err)
        assert error.code in (Code.CONFLICT, Code.AUTH_FAILED)
    (error,) = place.say(L, admin("keys.rotate", key="R" * 40))
    assert isinstance(error, m.Err)
    assert error.code == Code.CONFLICT


# Rights that change.


def notices(place: Place, peer: bytes) -> list[m.Notice]:
    return [said for said in place.said[peer] if isinstance(said, m.Notice)]


def apply(place: Place, **roles: Role) -> None:
    place.book.granted |= roles
    place.router.apply_access()
    place.pass_time(0)


def test_a_subscription_ends_when_its_right_does_and_others_stay() -> None:
    place = Place()
    place.sub(W, 2, "hidden.y")
    place.say(W, m.Subscribe(3, 5, {"patterns": ["tax.*"], "respond": True}))
    apply(place, worker=role(subscribe=("hidden.*",), respond=()))
    assert [(n.kind, n.fields["chan"]) for n in notices(place, W)] == [("unsubscribed", 1), ("unsubscribed", 3)]
    assert "'worker'" in notices(place, W)[0].fields["why"]
    session = place.router.session_table.find(W)
    assert session is not None
    assert list(session.channels) == [2]
    assert not place.router.groups["billing"].members
    assert [audit["kind"] for audit in place.audits()][-2:] == ["unsubscribed", "unsubscribed"]
    place.sub(O, 1, group="billing")
    assert place.bodies(O) == ["1"], "it is ready again"


def test_a_group_that_is_not_allowed_any_more_ends_its_subscription() -> None:
    place = Place()
    apply(place, worker=role(groups=("accounts",)))
    assert [n.kind for n in notices(place, W)] == ["unsubscribed"]


def test_new_rights_hold_with_the_next_command() -> None:
    place = Place()
    apply(place, worker=role(publish=("secret.#",)))
    assert not isinstance(place.pub(W, "secret.a", "x")[0], m.Err)
    assert isinstance(place.pub(W, "invoices.1", "x")[0], m.Err)
    assert notices(place, W) == []


def test_wider_patterns_of_a_group_end_subscriptions_to_it_and_to_its_dead_letters() -> None:
    place = Place()
    place.sub(W, 2, "billing.DLQ")
    place.sub(W, 3, "$dlq.billing-later")
    place.sub(O, 1, group="billing")
    place.admin("group.update", group="billing", patterns=["#"])
    assert [n.fields["chan"] for n in notices(place, W)] == [1, 2]
    assert notices(place, O) == []
    place.admin("group.create", group="billing-later", patterns=["secret.#"])
    assert [n.fields["chan"] for n in notices(place, W)] == [1, 2, 3]


def test_a_revoked_principal_loses_its_sessions_and_others_get_its_messages() -> None:
    place = Place()
    place.come(b"worker2", "worker")
    place.router.peer_gone(b"worker2")
    place.sub(O, 1, group="billing")
    place.admin("keys.revoke", name="worker")
    assert {session.principal.name for session in place.router.session_table.sessions.values()} == {
        "local",
        "other",
        GUEST_NAME,
    }
    assert [n.kind for n in notices(place, W)] == ["kicked"]
    assert [audit["kind"] for audit in place.audits() if audit["principal"] == "worker"] == ["ended", "ended"]
    place.pass_time(2)
    assert place.bodies(O) == ["1"]
    place.book.granted["worker"] = WORKER
    place.router.apply_access()
    assert isinstance(place.come(b"again", "worker"), m.Welcome)


def test_a_connection_whose_key_was_replaced_is_disowned() -> None:
    place = Place()
    place.router.disown(W, "the key was replaced")
    place.router.disown(b"not there", "the key was replaced")
    place.pass_time(0)
    assert notices(place, W) == [m.Notice("kicked", {"reason": "the key was replaced"})]
    (error,) = place.say(W, m.Ping(1))
    assert isinstance(error, m.Err)
    assert error.code == Code.NO_SESSION


def test_local_can_be_restricted() -> None:
    place = Place()
    apply(place, local=WORKER)
    (error,) = place.pub(L, "secret.a", "x")
    assert isinstance(error, m.Err)
    assert "'local'" in error.text


# Principals alone.


def test_a_hub_without_a_book_has_one_principal_with_all_rights() -> None:
    principals = Principals()
    assert principals.local.is_free
    assert principals.find("worker") is None
    assert principals.apply({}) == []
    principals.local.require_publish(["a"])
    principals.local.require_subscribe(["#", "$sys.#"])


def test_roles_are_changed_in_place() -> None:
    principals = Principals(None, {"a": WORKER, "b": OTHER})
    a, b = principals.find("a"), principals.find("b")
    assert a is not None
    assert b is not None
    assert principals.apply({"a": OTHER, "c": OTHER}) == [a, b]
    assert (a.role, b.role, b.is_revoked) == (OTHER, NOTHING, True)
    assert principals.find("a") is a
    assert principals.find("b") is None
    assert principals.apply({"a": OTHER, "c": OTHER}) == []


def test_remembered_topics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fabric.router.access.rights.KNOWN_MAX", 10)
    monkeypatch.setattr("fabric.router.access.principal.KNOWN_MAX", 10)
    principal = Principal("a", Role("r", publish=("a.*",), subscribe=("a.*",)))
    for n in range(25):
        principal.require_publish([f"a.{n}"])
        principal.require_subscribe([f"a.{n}"])
        with pytest.raises(ProtocolError):
            principal.require_publish([f"b.{n}"])
    assert len(principal._publishable) <= 10
    assert len(principal._readable) <= 10


def test_a_text_has_a_bounded_number_of_patterns() -> None:
    principal = Principal("a", EVERYTHING._replace(publish=tuple(f"t{n}.#" for n in range(100))))
    with pytest.raises(ProtocolError, match=r"t7\.# and 92 more$") as error:
        principal.require_publish(["x"])
    assert len(str(error.value)) < 400
