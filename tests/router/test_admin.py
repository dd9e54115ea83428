"""ADMIN and INFO in the router: groups, settings of the hub, sessions, and refusals."""

from pathlib import Path
from typing import Any

import pytest

from fabric.records import GroupSettings
from fabric.router import paging
from fabric.router.admin import hub_settings as settings
from fabric.router.admin.operations import OPERATIONS
from fabric.router.dead_letters import blocks
from fabric.router.read import get as reading
from fabric.router.read.info import QUESTIONS
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.errors import Code
from tests.router.world import World

P, C, A = b"P", b"C", b"A"


def world() -> World:
    w = World()
    for peer, name in ((P, "producer"), (C, "consumer"), (A, "admin")):
        w.hello(peer, client=name)
    return w


def admin(w: World, op: str, **fields: Any) -> dict[str, Any]:
    answer = next(x for x in w.say(A, m.Admin(3, {"op": op, **fields})) if getattr(x, "rid", 0) == 3)
    assert isinstance(answer, m.Ok), answer
    return dict(answer.fields)


def refused(w: World, op: Any, **fields: Any) -> m.Err:
    (answer,) = w.say(A, m.Admin(3, {"op": op, **fields}))
    assert isinstance(answer, m.Err), answer
    return answer


def info(w: World, what: str, **fields: Any) -> dict[str, Any]:
    (answer,) = w.say(A, m.Info(4, {"what": what, **fields}), commit=False)
    assert isinstance(answer, m.Ok), answer
    return dict(answer.fields)


# Groups.


def test_a_group_can_be_made_before_anybody_consumes() -> None:
    w = world()
    w.pub(P, "job.x", "1", "2")
    answer = admin(w, "group.create", group="g", patterns=["job.#"], start={"seq": 2}, lease_ms=5000)
    assert answer["created"] is True
    assert (answer["group"], answer["cursor"], answer["floor"]) == ("g", 2, 1)
    assert (answer["settings"]["lease_ms"], answer["settings"]["level"]) == (5000, "journaled")
    w.restart()
    w.hello(C)
    w.sub(C, 1, group="g")
    assert w.bodies(C) == ["2"]


def test_an_answer_waits_for_the_disk() -> None:
    w = world()
    assert w.say(A, m.Admin(3, {"op": "group.create", "group": "g", "patterns": ["a"]}), commit=False) == []
    w.commit()
    assert isinstance(w.said[A][-1], m.Ok)


def test_a_group_that_is_there_is_made_again_only_as_it_is() -> None:
    w = world()
    admin(w, "group.create", group="g", patterns=["a"], lease_ms=5000)
    assert admin(w, "group.create", group="g", patterns=["a"])["created"] is False
    error = refused(w, "group.create", group="g", patterns=["a"], lease_ms=6000)
    assert error.code == Code.CONFLICT
    assert error.fields == {"field": "lease_ms", "have": "5000", "want": "6000"}


def test_settings_of_a_group_change_and_last() -> None:
    w = world()
    w.sub(C, 1, "a", group="g")
    answer = admin(w, "group.update", group="g", patterns=["a", "b"], attempts_max=2)
    assert answer["settings"]["patterns"] == ["a", "b"]
    w.pub(P, "b", "1")
    assert w.bodies(C) == ["1"]
    w.restart()
    w.hello(A)
    found = info(w, "group", name="g")
    assert (found["settings"]["attempts_max"], found["patterns"]) == (2, ["a", "b"])


def test_a_lower_limit_of_attempts_counts_from_the_next_failure_on() -> None:
    w = world()
    w.sub(C, 1, "a", group="g", backoff_ms=0)
    w.pub(P, "a", "1")
    for ordinal in (1, 2, 3):
        w.settle(C, 1, m.Verdict.RETRY, ordinal, ordinal)
    admin(w, "group.update", group="g", attempts_max=2)
    assert info(w, "dlq", group="g")["count"] == 0
    w.settle(C, 1, m.Verdict.RETRY, 4, 4, "still no")
    (letter,) = admin(w, "dlq.list", group="g")["letters"]
    assert (letter["attempts"], letter["reason"], letter["error"]) == (4, "retries spent", "still no")


def test_an_update_that_is_refused_changes_nothing() -> None:
    w = world()
    admin(w, "group.create", group="g", patterns=["a"])
    assert refused(w, "group.update", group="g", lease_ms=1).code == Code.BAD_OPTION
    assert "names no setting" in refused(w, "group.update", group="g").text
    assert "lease_mss" in refused(w, "group.update", group="g", lease_mss=500).text
    assert refused(w, "group.update", group="g", order="key").code == Code.BAD_OPTION
    assert info(w, "group", name="g")["settings"]["lease_ms"] == 30_000


def test_a_deleted_group_is_gone_and_its_consumers_know() -> None:
    w = world()
    w.sub(C, 1, "a", group="g")
    w.pub(P, "a", "1")
    assert admin(w, "group.delete", group="g") == {"group": "g", "deleted": True}
    notice = w.said[C][-1]
    assert isinstance(notice, m.Notice)
    assert (notice.kind, notice.fields["chan"], notice.fields["group"]) == ("unsubscribed", 1, "g")
    (late,) = w.settle(C, 1, m.Verdict.ACK, 1, 1)
    assert isinstance(late, m.Err)
    assert late.code == Code.NOT_FOUND
    assert refused(w, "group.delete", group="g").code == Code.NOT_FOUND
    assert "g" not in w.groups
    w.sub(C, 1, "a", group="g")
    assert w.bodies(C) == ["1", "1"]


def test_a_group_is_moved_and_gets_old_messages_again() -> None:
    w = world()
    w.sub(C, 1, "a", group="g")
    w.pub(P, "a", "1", "2", "3")
    w.settle(C, 1, m.Verdict.ACK, 1, 2)
    assert admin(w, "group.seek", group="g", to={"seq": 2})["cursor"] == 2
    assert w.bodies(C) == ["1", "2", "3", "2", "3"]
    assert [attempt for _, _, attempt, _ in w.delivered(C)][3:] == [1, 1]
    (late,) = (x for x in w.settle(C, 1, m.Verdict.ACK, 3, 3) if isinstance(x, m.Ok))
    assert late.fields == {"applied": 0, "stale": [[3, 3]]}
    admin(w, "group.seek", group="g", to="new")
    assert info(w, "group", name="g")["behind"] == 0
    assert refused(w, "group.seek", group="g", to="first", dry_run="yes").code == Code.BAD_OPTION
    assert refused(w, "group.seek", group="g").code == Code.BAD_OPTION
    assert refused(w, "group.seek", group="g", to="yesterday").code == Code.BAD_OPTION


def test_a_move_says_what_comes_again_and_what_is_skipped() -> None:
    w = world()
    w.sub(C, 1, "a", group="g", credit=3)
    w.pub(P, "a", "1", "2", "3", "4", "5")
    w.settle(C, 1, m.Verdict.ACK, 1, 2)  # 3 is out, 4 and 5 were not considered yet

    def meaning(to: object, **more: bool) -> tuple[int, int]:
        answer = admin(w, "group.seek", group="g", to=to, **more)
        return answer["again"], answer["skipped"]

    assert meaning("first", dry_run=True) == (2, 0)
    assert meaning({"seq": 2}, dry_run=True) == (1, 0)
    assert meaning({"seq": 5}, dry_run=True) == (0, 2)
    assert meaning("new", dry_run=True) == (0, 3)
    assert meaning("last_per_key", dry_run=True) == (0, 2), "without a key, the last one"
    assert w.bodies(C) == ["1", "2", "3"], "nothing was moved"
    assert meaning("new") == (0, 3)
    assert meaning("first") == (5, 0)


def test_a_group_is_moved_to_a_time_and_to_the_latest_of_each_key() -> None:
    w = world()
    w.sub(C, 1, "a", group="g")
    w.say(P, m.Publish(9, 0, 0, encode("a", [b"k1", b"l1", b"k2"], keys=[b"k", b"l", b"k"])))
    w.pass_time(10)
    w.pub(P, "a", "new")
    w.settle(C, 1, m.Verdict.ACK, 1, 4)
    seen = len(w.bodies(C))
    admin(w, "group.seek", group="g", to={"time_us": int((w.now - 5) * 1e6)})
    assert w.bodies(C)[seen:] == ["new"]
    admin(w, "group.seek", group="g", to="last_per_key")
    assert sorted(w.bodies(C)[seen + 1 :]) == ["k2", "l1", "new"]


def test_a_paused_group_delivers_nothing_even_after_a_restart() -> None:
    w = world()
    w.sub(C, 1, "a", group="g")
    assert admin(w, "group.pause", group="g") == {"group": "g", "paused": True}
    w.pub(P, "a", "1")
    assert w.bodies(C) == []
    w.restart()
    w.hello(C)
    w.hello(A)
    w.sub(C, 1, group="g")
    assert w.bodies(C) == []
    assert admin(w, "group.resume", group="g") == {"group": "g", "paused": False}
    assert w.bodies(C) == ["1"]


@pytest.mark.parametrize("op", ["update", "delete", "seek", "pause", "resume", "refresh"])
def test_what_does_not_exist_is_named(op: str) -> None:
    w = world()
    w.sub(C, 1, "a")
    for name in ("nobody", "$sub.1"):
        error = refused(w, f"group.{op}", group=name)
        assert error.code == Code.NOT_FOUND
        assert name in error.text
    assert refused(w, f"group.{op}", group=5).code == Code.BAD_OPTION
    assert refused(w, f"group.{op}").code == Code.BAD_OPTION


# The hub.


def test_an_unknown_operation_is_answered_with_the_known_ones() -> None:
    w = world()
    for op in ("group.crate", "", None, 5, ["x"]):
        error = refused(w, op)
        assert error.code == Code.NOT_FOUND
        assert "group.create" in error.text


@pytest.mark.parametrize(
    "op", ["group.create", "group.delete", "group.pause", "dlq.list", "session.kick", "hub.update"]
)
def test_an_unknown_field_is_refused(op: str) -> None:
    error = refused(world(), op, group="g", patern="a")
    assert error.code == Code.BAD_OPTION
    assert "patern" in error.text or "hub.update knows" in error.text


def test_settings_of_the_hub_last() -> None:
    w = world()
    before = info(w, "settings")
    assert admin(w, "hub.update", advisories=False)["advisories"] is False
    w.restart()
    w.hello(A)
    assert info(w, "settings") == {**before, "advisories": False}
    assert not w.router.settings.values["advisories"]
    admin(w, "hub.update", advisories=True, events=True)
    assert w.router.events.is_on
    w.restart()
    assert w.router.events.is_on


def test_a_wrong_setting_of_the_hub_is_refused_with_the_right_ones_beside_it() -> None:
    w = world()
    assert refused(w, "hub.update", events=True, advisories="no").code == Code.BAD_OPTION
    assert refused(w, "hub.update", events=True, evnts=True).code == Code.BAD_OPTION
    assert info(w, "settings")["events"] is False


def test_a_kicked_session_is_told_and_its_work_goes_to_others() -> None:
    w = world()
    w.sub(C, 1, "a", group="g")
    w.pub(P, "a", "1")
    w.hello(b"D", client="consumer two")
    w.sub(b"D", 1, group="g")
    (row,) = (s for s in info(w, "sessions")["sessions"] if s["client"] == "consumer")
    assert admin(w, "session.kick", session=row["session"]) == {"kicked": 1}
    assert any(isinstance(x, m.Notice) and x.kind == "kicked" for x in w.said[C])
    w.pass_time(1)
    assert w.bodies(b"D") == ["1"]
    (answer,) = w.say(C, m.Ping(1))
    assert isinstance(answer, m.Err)
    assert answer.code == Code.NO_SESSION
    w.hello(C, client="consumer")


def test_sessions_are_kicked_by_the_name_of_their_client_too() -> None:
    w = world()
    w.hello(b"D", client="consumer")
    assert admin(w, "session.kick", client="consumer") == {"kicked": 2}
    assert refused(w, "session.kick", client="consumer").code == Code.NOT_FOUND
    assert refused(w, "session.kick", session=77).code == Code.NOT_FOUND
    assert refused(w, "session.kick").code == Code.BAD_OPTION
    assert refused(w, "session.kick", session=1, client="x").code == Code.BAD_OPTION
    assert refused(w, "session.kick", session=True).code == Code.BAD_OPTION
    assert admin(w, "session.kick", client="admin") == {"kicked": 1}


# INFO.


def test_info_knows_what_it_knows() -> None:
    w = world()
    (answer,) = w.say(A, m.Info(4, {"what": "weather"}))
    assert isinstance(answer, m.Err)
    assert answer.code == Code.NOT_FOUND
    assert all(question in answer.text for question in QUESTIONS)
    assert isinstance(w.say(A, m.Info(4, {"what": ["hub"]}))[0], m.Err)


def test_info_about_the_hub() -> None:
    w = world()
    w.sub(C, 1, "a", group="g")
    w.pub(P, "a", "1", "2")
    w.settle(C, 1, m.Verdict.REJECT, 1, 1)
    found = info(w, "hub")
    assert (found["last_seq"], found["groups"], found["sessions"], found["dead_letters"]) == (3, 1, 3, 1)
    assert info(w, "counters")["messages_in"] == 3


def test_info_about_one_group() -> None:
    w = world()
    w.sub(C, 7, "a", group="g")
    w.pub(P, "a", "1", "2")
    w.settle(C, 7, m.Verdict.REJECT, 1, 1)
    for field in ("name", "group"):
        found = info(w, "group", **{field: "g"})
        assert found["dead_letters"] == 1
        (consumer,) = found["consumers"]
        assert (consumer["client"], consumer["chan"], consumer["outstanding"]) == ("consumer", 7, 1)
        assert found["settings"]["patterns"] == ["a"]
    (answer,) = w.say(A, m.Info(4, {"what": "group", "name": "h"}))
    assert isinstance(answer, m.Err)
    assert (answer.code, "'h'" in answer.text) == (Code.NOT_FOUND, True)


def test_lists_come_in_pages() -> None:
    w = world()
    names = [f"g{i:02}" for i in range(12)]
    for name in reversed(names):
        admin(w, "group.create", group=name, patterns=["a"])
    found, after, more = list[str](), None, True
    while more:
        page = info(w, "groups", n=5, **({"after": after} if after else {}))
        found += [group["group"] for group in page["groups"]]
        more, after = page["more"], page.get("next")
    assert found == names
    assert len(info(w, "groups")["groups"]) == 12
    first = info(w, "sessions", n=2)
    rest = info(w, "sessions", n=2, after=first["next"])
    assert [s["client"] for s in first["sessions"] + rest["sessions"]] == ["producer", "consumer", "admin"]


def test_a_page_of_long_rows_ends_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "PAGE_CHARS_MAX", 2000)
    w = world()
    for i in range(20):
        admin(w, "group.create", group=f"g{i:02}", patterns=["a" * 200])
    page = info(w, "groups")
    assert 1 <= len(page["groups"]) < 20
    assert page["more"]


def test_a_page_of_something_else_is_refused() -> None:
    w = world()
    for what, after in (("groups", 5), ("sessions", "x"), ("sessions", True), ("dlq", 5)):
        (answer,) = w.say(A, m.Info(4, {"what": what, "after": after}))
        assert isinstance(answer, m.Err)
        assert answer.code == Code.BAD_OPTION


def test_info_about_dead_letters() -> None:
    w = world()
    w.sub(C, 1, "a", group="g")
    w.pub(P, "a", "1", "2")
    w.settle(C, 1, m.Verdict.REJECT, 1, 2)
    for name in ("g", "g.DLQ", "$dlq.g"):
        assert info(w, "dlq", group=name) == {"group": "g", "count": 2, "first_seq": 3}
    assert info(w, "dlq") == {"groups": [{"group": "g", "count": 2, "first_seq": 3}], "more": False}


def test_letters_on_their_way_to_the_disk_do_not_count_yet() -> None:
    w = world()
    w.sub(C, 1, "a", group="g")
    w.pub(P, "a", "1")
    w.say(C, m.Settle(1, 0, ((m.Verdict.REJECT, 1, 1, None),)), commit=False)
    assert info(w, "dlq", group="g") == {"group": "g", "count": 0, "first_seq": 0}


def test_a_session_does_not_show_its_secret() -> None:
    w = world()
    ids = set(w.router.session_table.sessions)
    shown = str(info(w, "sessions"))
    assert not any(str(secret) in shown for secret in ids)


# What the protocol says.


def protocol(section: str) -> str:
    text = (Path(__file__).parents[2] / "clients/PROTOCOL.md").read_text(encoding="utf-8")
    return text.split(f"\n### {section} ")[1].split("\n##")[0]


def test_the_protocol_names_every_operation_and_its_fields() -> None:
    text = protocol("16.3") + protocol("16.4") + protocol("16.6")
    for op, (_, fields) in OPERATIONS.items():
        assert op in text, op
        named = set(fields) - {"*", *GroupSettings._fields}
        assert all(field in text for field in named), op


def test_the_protocol_names_every_question_and_setting() -> None:
    assert all(f"`{question}`" in protocol("16.2") for question in QUESTIONS)
    assert all(setting in protocol("16.3") for setting in settings.DEFAULTS)
    assert all(f"      {field}  " in protocol("16.1") for field in reading._FIELDS)


def test_the_protocol_names_every_header_of_a_letter() -> None:
    headers = {value for name, value in vars(blocks).items() if name.isupper() and str(value).startswith("fabric-")}
    assert len(headers) == 10
    assert all(f"`{header}`" in protocol("10.4") for header in headers)
