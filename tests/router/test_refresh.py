"""Refresh: consumers drop their local copy at RESET begin, and have it complete again at RESET end."""

from typing import Any

import pytest

from fabric.router.groups.description import describe
from fabric.router.groups.refresh import Phase
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.errors import Code
from tests.router.world import World

ACK = m.Verdict.ACK


class Mirror(World):
    """A group `g` of consumers of `a`, and an operator."""

    def __init__(self, *members: bytes) -> None:
        super().__init__()
        self.hello(b"op", ttl_ms=600_000)
        for member in members:
            self.join(member)

    def join(self, member: bytes, **fields: Any) -> None:
        self.hello(member, ttl_ms=600_000)
        self.sub(member, 1, "a", group="g", **fields)

    def admin(self, op: str, **fields: Any) -> m.ToClient:
        return self.say(b"op", m.Admin(9, {"op": op, **fields}))[-1]

    def refresh(self, **fields: Any) -> dict[str, Any]:
        answer = self.admin("group.refresh", group="g", **fields)
        assert isinstance(answer, m.Ok), answer
        return dict(answer.fields)

    def resets(self, member: bytes) -> list[tuple[int, str, int]]:
        """(number, phase, target) of what a member was told."""
        return [
            (message.fields["refresh"], message.fields["phase"], message.fields["target"])
            for message in self.said.get(member, [])
            if isinstance(message, m.Reset)
        ]

    def ack_all(self, member: bytes) -> None:
        """Settle all that the member holds."""
        (sub,) = self.router.session_table.session_of(member).channels.values()
        spans = [span for lease in sub.leases for span in lease.open]
        for first, last in spans:
            self.settle(member, 1, ACK, first, last)

    def ready(self, member: bytes, number: int) -> m.ToClient:
        return self.say(member, m.Ready(1, 11, number))[0]

    @property
    def state(self) -> tuple[int, int, str]:
        """Of the group, as it is on disk."""
        number, target, phase = self.groups["g"].refresh
        assert (number, target, phase) == self.router.groups["g"].refresh
        return number, target, Phase(phase).name


def test_from_begin_to_ready() -> None:
    mirror = Mirror(b"c")
    mirror.pub(b"op", "a", "1", "2")
    mirror.pub(b"op", "b", "not for g")
    mirror.ack_all(b"c")
    assert mirror.refresh() == {"group": "g", "refresh": 1, "target": 3, "cursor": 1}
    assert mirror.resets(b"c") == [(1, "begin", 3)]
    assert mirror.bodies(b"c") == ["1", "2", "1", "2"]
    assert mirror.state == (1, 3, "SYNCING")
    mirror.ack_all(b"c")
    assert mirror.resets(b"c") == [(1, "begin", 3), (1, "end", 3)]
    assert mirror.state == (1, 3, "ENDED")
    assert mirror.ready(b"c", 1) == m.Ok(1, 11, {"refresh": 1, "phase": "ready"})
    assert mirror.state == (1, 3, "READY")
    assert mirror.ready(b"c", 1) == m.Ok(1, 11, {"refresh": 1, "phase": "ready"}), "said twice, meant once"


def test_reset_comes_before_what_is_delivered_again_and_after_what_was() -> None:
    mirror = Mirror(b"c")
    mirror.pub(b"op", "a", "1")
    mirror.refresh()
    mirror.ack_all(b"c")
    words = [
        message.fields["phase"] if isinstance(message, m.Reset) else "deliver"
        for message in mirror.said[b"c"]
        if isinstance(message, m.Reset | m.Deliver)
    ]
    assert words == ["deliver", "begin", "deliver", "end"]


def test_what_is_published_meanwhile_comes_after_the_target() -> None:
    mirror = Mirror(b"c")
    mirror.pub(b"op", "a", "1", "2")
    mirror.ack_all(b"c")
    mirror.refresh()
    mirror.pub(b"op", "a", "3")
    assert mirror.bodies(b"c") == ["1", "2", "1", "2", "3"]
    mirror.settle(b"c", 1, ACK, 3, 4)
    assert mirror.resets(b"c")[-1] == (1, "end", 2), "the third message is not waited for"


def test_a_part_of_the_journal_is_enough_where_it_is() -> None:
    mirror = Mirror(b"c")
    mirror.pub(b"op", "a", "1", "2", "3")
    mirror.ack_all(b"c")
    assert mirror.refresh(**{"from": {"seq": 3}})["cursor"] == 3
    assert mirror.bodies(b"c")[3:] == ["3"]


def test_the_latest_of_each_key_is_enough_where_a_copy_has_no_more() -> None:
    mirror = Mirror(b"c")
    block = encode("a", [b"1", b"2", b"3", b"4"], keys=[b"x", b"y", b"x", b"z"])
    mirror.say(b"op", m.Publish(9, 0, 0, block))
    mirror.ack_all(b"c")
    mirror.refresh(**{"from": "last_per_key"})
    assert sorted(mirror.bodies(b"c")[4:]) == ["2", "3", "4"]
    mirror.ack_all(b"c")
    assert mirror.resets(b"c") == [(1, "begin", 4), (1, "end", 4)]


def test_a_group_at_its_target_ends_at_once() -> None:
    mirror = Mirror(b"c")
    mirror.refresh()
    assert mirror.resets(b"c") == [(1, "begin", 0), (1, "end", 0)]
    mirror.pub(b"op", "a", "1")
    mirror.refresh(**{"from": "new"})
    assert mirror.resets(b"c")[2:] == [(2, "begin", 1), (2, "end", 1)]


def test_a_group_without_members_waits_for_one() -> None:
    mirror = Mirror(b"c")
    mirror.pub(b"op", "a", "1")
    mirror.ack_all(b"c")
    mirror.say(b"c", m.Goodbye(9))
    mirror.refresh()
    assert mirror.state == (1, 1, "SYNCING")
    mirror.join(b"d")
    mirror.ack_all(b"d")
    assert mirror.resets(b"d") == [(1, "begin", 1), (1, "end", 1)]
    mirror.ready(b"d", 1)
    assert mirror.state == (1, 1, "READY")


def test_all_members_have_to_be_ready() -> None:
    mirror = Mirror(b"c", b"d")
    mirror.pub(b"op", "a", "1")
    mirror.refresh()
    for member in (b"c", b"d"):
        mirror.ack_all(member)
    assert mirror.ready(b"c", 1) == m.Ok(1, 11, {"refresh": 1, "phase": "ended"})
    assert mirror.ready(b"d", 1) == m.Ok(1, 11, {"refresh": 1, "phase": "ready"})
    assert mirror.resets(b"c") == mirror.resets(b"d") == [(1, "begin", 1), (1, "end", 1)]


def test_a_consumer_that_leaves_need_not_be_ready() -> None:
    mirror = Mirror(b"c", b"d")
    mirror.refresh()
    mirror.ready(b"c", 1)
    assert mirror.state == (1, 0, "ENDED")
    mirror.say(b"d", m.Unsubscribe(1, 9))
    mirror.pass_time(0)
    assert mirror.state == (1, 0, "READY")


def test_a_consumer_that_joins_during_a_refresh_is_told_of_it() -> None:
    mirror = Mirror(b"c")
    mirror.pub(b"op", "a", "1")
    mirror.refresh()
    mirror.join(b"d")
    assert mirror.resets(b"d") == [(1, "begin", 1)]
    mirror.ack_all(b"c")
    mirror.ack_all(b"d")
    mirror.join(b"e")
    assert mirror.resets(b"e") == [(1, "end", 1)]
    for member in (b"c", b"d", b"e"):
        assert mirror.state == (1, 1, "ENDED")
        mirror.ready(member, 1)
    assert mirror.state == (1, 1, "READY")
    mirror.join(b"f")
    assert mirror.resets(b"f") == [], "it is over"


def test_a_newer_refresh_takes_the_place_of_an_older() -> None:
    mirror = Mirror(b"c")
    mirror.pub(b"op", "a", "1")
    mirror.refresh()
    mirror.pub(b"op", "a", "2")
    mirror.refresh()
    assert mirror.resets(b"c") == [(1, "begin", 1), (2, "begin", 2)]
    mirror.ack_all(b"c")
    assert mirror.resets(b"c")[2:] == [(2, "end", 2)]
    stale = mirror.ready(b"c", 1)
    assert isinstance(stale, m.Err)
    assert stale.code == Code.STALE


@pytest.mark.parametrize(("number", "code"), [(0, Code.NOT_FOUND), (2, Code.NOT_FOUND), (1, Code.CONFLICT)])
def test_ready_for_what_is_not_there_is_refused(number: int, code: Code) -> None:
    mirror = Mirror(b"c")
    assert isinstance(mirror.ready(b"c", number), m.Err)
    mirror.pub(b"op", "a", "1")
    mirror.refresh()
    answer = mirror.ready(b"c", number)
    assert isinstance(answer, m.Err)
    assert answer.code == code
    assert mirror.state == (1, 1, "SYNCING")


def test_one_that_takes_too_long_is_degraded_and_goes_on() -> None:
    mirror = Mirror(b"c")
    mirror.sub(b"op", 7, "$sys.group.refresh")
    mirror.pub(b"op", "a", "1")
    mirror.refresh(timeout_ms=10_000)
    mirror.pass_time(9.9)
    assert mirror.state == (1, 1, "SYNCING")
    mirror.pass_time(0.1)
    assert mirror.state == (1, 1, "DEGRADED")
    assert '"phase": "degraded"' in mirror.bodies(b"op")[-1]
    mirror.ack_all(b"c")
    assert mirror.state == (1, 1, "ENDED")
    mirror.ready(b"c", 1)
    assert mirror.state == (1, 1, "READY")


def test_a_degraded_one_goes_on_after_a_restart() -> None:
    mirror = Mirror(b"c")
    mirror.pub(b"op", "a", "1")
    mirror.refresh(timeout_ms=1_000)
    mirror.pass_time(1)
    mirror.restart()
    assert mirror.state == (1, 1, "DEGRADED")
    mirror.join(b"c")
    assert mirror.resets(b"c") == [(1, "begin", 1)]
    mirror.ack_all(b"c")
    mirror.ready(b"c", 1)
    assert mirror.state == (1, 1, "READY")


def test_a_refresh_without_confirmations_is_degraded() -> None:
    mirror = Mirror(b"c")
    mirror.refresh(timeout_ms=10_000)
    assert mirror.state == (1, 0, "ENDED")
    mirror.pass_time(10.0)
    assert mirror.state == (1, 0, "DEGRADED")
    mirror.join(b"d")
    assert mirror.resets(b"d") == [(1, "end", 0)]


@pytest.mark.parametrize("acked", [0, 1, 2])
def test_a_refresh_goes_on_after_a_restart(acked: int) -> None:
    """From its beginning, since the consumer may have been restarted, too."""
    mirror = Mirror(b"c")
    mirror.pub(b"op", "a", "1", "2")
    mirror.ack_all(b"c")
    mirror.refresh()
    if acked:
        mirror.settle(b"c", 1, ACK, 3, 2 + acked)
    mirror.restart()
    mirror.hello(b"op", ttl_ms=600_000)
    mirror.join(b"c")
    assert mirror.resets(b"c") == [(1, "begin", 2)]
    assert mirror.bodies(b"c") == ["1", "2"]
    mirror.ack_all(b"c")
    assert mirror.resets(b"c")[-1] == (1, "end", 2)
    mirror.ready(b"c", 1)
    assert mirror.state == (1, 2, "READY")
    mirror.restart()
    mirror.join(b"c")
    assert mirror.resets(b"c") == []


def test_a_restarted_refresh_has_its_time_again() -> None:
    mirror = Mirror(b"c")
    mirror.pub(b"op", "a", "1")
    mirror.refresh()
    mirror.restart()
    mirror.pass_time(599)
    assert mirror.state == (1, 1, "SYNCING")
    mirror.pass_time(602)
    assert mirror.state == (1, 1, "DEGRADED")


def test_it_starts_over_when_the_only_consumer_was_lost() -> None:
    mirror = Mirror(b"c")
    mirror.pub(b"op", "a", "1", "2", "3")
    mirror.refresh(**{"from": {"seq": 2}})
    mirror.ack_all(b"c")
    assert mirror.state == (1, 3, "ENDED")
    mirror.say(b"c", m.Goodbye(9))
    mirror.join(b"d")
    assert mirror.state == (1, 3, "SYNCING")
    assert mirror.resets(b"d") == [(1, "begin", 3)]
    assert mirror.bodies(b"d") == ["2", "3"], "from where it was told to begin"
    mirror.restart()
    mirror.hello(b"op", ttl_ms=600_000)
    mirror.join(b"d")
    assert mirror.bodies(b"d") == ["2", "3"], "which is remembered"
    mirror.ack_all(b"d")
    mirror.ready(b"d", 1)
    assert mirror.state == (1, 3, "READY")
    assert not [name for name in mirror.settings if name.startswith("refresh:")], "and forgotten in the end"


def test_a_resumed_session_goes_on_where_it_was() -> None:
    mirror = Mirror()
    welcome = mirror.hello(b"c", ttl_ms=600_000)
    mirror.sub(b"c", 1, "a", group="g")
    mirror.pub(b"op", "a", "1", "2")
    mirror.refresh()
    mirror.settle(b"c", 1, ACK, 3, 3)
    assert isinstance(welcome, m.Welcome)
    mirror.hello(b"d", resume={"session": welcome.fields["session"], "subs": [[1, 4]]})
    assert mirror.resets(b"d") == []
    mirror.settle(b"d", 1, ACK, 4, 4)
    assert mirror.resets(b"d") == [(1, "end", 2)]


@pytest.mark.parametrize("op", ["group.refresh", "group.seek"])
def test_a_suspect_holds_up_nothing_that_is_moved(op: str) -> None:
    mirror = Mirror()
    mirror.join(b"c", backoff_ms=0)
    mirror.pub(b"op", "a", "1", "2")
    mirror.settle(b"c", 1, m.Verdict.RETRY, 1, 1)
    mirror.pass_time(0)
    mirror.settle(b"c", 1, m.Verdict.RETRY, 3, 3)  # for the second time: the consumer is kept free for it
    mirror.pass_time(0)
    before = len(mirror.bodies(b"c"))
    assert isinstance(mirror.admin(op, group="g", **({"to": "first"} if op == "group.seek" else {})), m.Ok)
    assert mirror.bodies(b"c")[before:] == ["1", "2"]


def test_a_group_that_is_deleted_ends_its_refresh() -> None:
    mirror = Mirror(b"c")
    mirror.pub(b"op", "a", "1")
    mirror.refresh(timeout_ms=1_000, **{"from": "last_per_key"})
    assert isinstance(mirror.admin("group.delete", group="g"), m.Ok)
    mirror.pass_time(2)
    assert not [name for name in mirror.settings if name.startswith("refresh:")]
    assert mirror.router.refreshes.next_deadline() == float("inf")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group": "unknown"}, Code.NOT_FOUND),
        ({"from": "yesterday"}, Code.BAD_OPTION),
        ({"timeout_ms": 1}, Code.BAD_OPTION),
        ({"form": "first"}, Code.BAD_OPTION),
    ],
)
def test_a_wrong_wish_is_refused_and_nothing_happens(fields: dict[str, Any], code: Code) -> None:
    mirror = Mirror(b"c")
    answer = mirror.admin("group.refresh", **{"group": "g", **fields})
    assert isinstance(answer, m.Err)
    assert answer.code == code
    assert mirror.resets(b"c") == []
    assert mirror.router.groups["g"].refresh == (0, 0, 0)


def test_it_is_seen_in_the_description_of_the_group() -> None:
    mirror = Mirror(b"c")
    mirror.refresh()
    assert 1 in describe(mirror.router.groups["g"])["refresh"]


def test_many_at_once_are_looked_at_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fabric.router.groups.refresh.FEW", 2)
    mirror = Mirror(b"c")
    for i in range(5):
        mirror.sub(b"c", 2 + i, "a", group=f"g{i}")
    mirror.pub(b"op", "a", "1")
    for i in range(5):
        assert isinstance(mirror.admin("group.refresh", group=f"g{i}"), m.Ok)
    for i in range(5):
        (sub,) = mirror.router.groups[f"g{i}"].members
        for first, last in [span for lease in sub.leases for span in lease.open]:
            mirror.settle(b"c", sub.chan, ACK, first, last)
    mirror.pass_time(0.25)
    assert [phase for _, phase, _ in mirror.resets(b"c")].count("end") == 5


@pytest.mark.parametrize("restarts", [False, True])
def test_a_group_deleted_made_again_and_refreshed_in_one_turn_keeps_its_refresh(restarts: bool) -> None:
    w = Mirror(b"ann")
    for body in "12345":
        w.pub(b"op", "a", body)
    w.refresh(**{"from": {"seq": 2}})
    for op, fields in (
        ("group.delete", {}),
        ("group.create", {"patterns": ["a"]}),
        ("group.refresh", {"from": {"seq": 4}}),
    ):
        w.router.step(m.Admin(9, {"op": op, "group": "g", **fields}), b"op", w.now)
        w.router.take_frames()
    w.pass_time(0)
    assert w.settings["refresh:g"].value == {"seq": 4}
    if restarts:
        w.restart()
        w.hello(b"op")
    w.join(b"bob")
    assert w.bodies(b"bob") == ["4", "5"]


def test_a_deleted_group_leaves_no_row_of_its_refresh() -> None:
    w = Mirror(b"ann")
    w.pub(b"op", "a", "1")
    w.refresh(**{"from": {"seq": 1}})
    assert "refresh:g" in w.settings
    w.admin("group.delete", group="g")
    assert "refresh:g" not in w.settings


SKIPPING = pytest.mark.parametrize(
    "fields",
    [{"op": "group.settle", "up_to": 9}, {"op": "group.settle", "up_to": 1}, {"op": "group.seek", "to": "new"}],
)


@SKIPPING
@pytest.mark.parametrize("members", [(), (b"c",)])
def test_messages_of_a_refresh_cannot_be_skipped(fields: dict[str, Any], members: tuple[bytes, ...]) -> None:
    """RESET end says that the copy is complete. Without consumers, the refresh would start over and undo the skip."""
    mirror = Mirror(b"c")
    mirror.pub(b"op", "a", "1", "2")
    mirror.ack_all(b"c")
    if not members:
        mirror.say(b"c", m.Unsubscribe(1, 4))
    mirror.refresh()
    for dry_run in (True, False):
        refused = mirror.admin(**fields, group="g", dry_run=dry_run)
        assert isinstance(refused, m.Err)
        assert refused.code == Code.CONFLICT
        assert "refresh 1" in refused.text
    mirror.pass_time(1)
    assert mirror.state == (1, 2, "SYNCING")
    if not members:
        mirror.join(b"c")
    mirror.ack_all(b"c")
    mirror.pass_time(1)
    assert mirror.resets(b"c")[-1] == (1, "end", 2)
    assert isinstance(mirror.admin(**fields, group="g"), m.Ok), "the refresh has ended"


def test_messages_after_the_target_may_be_skipped_and_settled_ones_may_come_again() -> None:
    mirror = Mirror(b"c")
    mirror.pub(b"op", "a", "1", "2")
    mirror.refresh()
    mirror.pub(b"op", "a", "3")
    mirror.settle(b"c", 1, ACK, 3, 4)  # of the second round
    assert isinstance(mirror.admin("group.settle", group="g", up_to=3), m.Ok)
    assert mirror.state[2] == "ENDED"
    mirror.refresh()
    mirror.settle(b"c", 1, ACK, 6, 6)
    assert isinstance(mirror.admin("group.seek", group="g", to="first"), m.Ok)
    assert isinstance(mirror.admin("group.settle", group="g", up_to=0), m.Ok)
    assert mirror.state == (2, 3, "SYNCING")
