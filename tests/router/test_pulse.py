"""INFO pulse: only the rows that have changed; a viewer that merges pulses has the rows of the lists."""

import random
from collections.abc import Iterable
from typing import Any

import pytest

from fabric.router import block_store
from fabric.router.groups.group import Group
from fabric.router.publish.publishing import Refusal
from fabric.router.read import pulse as pulse_module
from fabric.router.read.info import offline_info as info
from fabric.router.read.pulse import IDLE_S, KINDS
from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.errors import Code
from fabric_protocol.messages import Verdict
from tests.router.state_observer import Observer
from tests.router.talk import Talk
from tests.router.world import World
from tests.seeds import seeded

OPS = b"ops"
NAMES = {"groups": "group", "sessions": "session", "topics": "topic"}
AGES = ("oldest_age_ms", "drain_s")  # they change with time


class Viewer:
    """Merges pulses."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[Any, Any]] = {kind: {} for kind in KINDS}
        self.version = 0
        self.totals: dict[str, Any] = {}
        self.resets = 0

    def look(self, w: World, **fields: Any) -> list[dict[str, Any]]:
        """Ask until there is no more; returns the answers."""
        answers: list[dict[str, Any]] = []
        while not answers or answers[-1]["more"]:
            answer = info(w.router, {"what": "pulse", "since": self.version, **fields})
            assert len(wire.encode(m.Ok(0, 1, answer))[0]) < m.META_BYTES_MAX
            answers.append(answer)
            self.resets += answer["reset"]
            for kind, name in NAMES.items():
                if answer["reset"]:
                    self.rows[kind].clear()
                for key in answer["gone"][kind]:
                    self.rows[kind].pop(key, None)  # it may have begun and ended since the last pulse
                for row in answer[kind]:
                    self.rows[kind][row[name]] = row
            self.version, self.totals = answer["version"], answer["totals"]
        return answers

    def changed(self, w: World) -> dict[str, list[Any]]:
        """Names of the rows that one pulse has."""
        (answer,) = self.look(w)
        return {kind: sorted(row[name] for row in answer[kind]) for kind, name in NAMES.items() if answer[kind]}

    def check(self, w: World) -> None:
        """The rows are those of the lists."""
        for kind, name in NAMES.items():
            rows = info(w.router, {"what": kind})[kind]
            listed = {row[name]: row for row in rows if row.get("configured", True)}  # a pulse has topics with settings
            assert self.rows[kind].keys() == listed.keys()
            for key, row in self.rows[kind].items():
                if kind == "groups" and (seqs := w.router.groups[key].open) and w.reader.block_at(seqs.first) is None:
                    listed[key]["oldest_us"] = row["oldest_us"]  # its block was discarded: that is no change of a group
                assert timeless(row) == {field: listed[key][field] for field in timeless(row)}, key
        hub = info(w.router, {"what": "hub"})
        assert {field: self.totals[field] for field in self.totals if field in hub} == {
            field: hub[field] for field in hub if field in self.totals
        }


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in row.items() if field not in AGES}


def world(groups: int = 3) -> World:
    w = World()
    w.hello(OPS)
    for number in range(groups):
        admin(w, "group.create", group=f"g{number}", patterns=[f"t{number}"])
    admin(w, "topic.create", topic="t0")
    return w


def admin(w: World, op: str, **fields: Any) -> None:
    (answer,) = [one for one in w.say(OPS, m.Admin(4, {"op": op, **fields})) if isinstance(one, m.Ok | m.Err)]
    assert isinstance(answer, m.Ok), answer


def seen(w: World) -> Viewer:
    viewer = Viewer()
    viewer.look(w)
    assert viewer.resets == 1
    return viewer


def test_the_first_pulse_has_all_rows_and_the_totals() -> None:
    w = world()
    viewer = seen(w)
    viewer.check(w)
    assert {kind: len(rows) for kind, rows in viewer.rows.items()} == {"groups": 3, "sessions": 1, "topics": 1}
    w.pub(OPS, "t1", "1", "2")
    viewer.look(w)
    wanted = {"messages_in": 2, "last_seq": 2, "groups": 3, "sessions": 1, "health": "HEALTHY", "refusing": ""}
    assert {name: viewer.totals[name] for name in wanted} == wanted


def test_only_rows_that_have_changed_are_told_and_each_once() -> None:
    w = world()
    viewer = seen(w)
    assert viewer.changed(w) == {}
    w.pub(OPS, "t1", "1")
    assert viewer.changed(w) == {"groups": ["g1"], "sessions": [1]}
    assert viewer.changed(w) == {}
    w.pub(OPS, "t0", "1")
    assert viewer.changed(w) == {"groups": ["g0"], "sessions": [1], "topics": ["t0"]}
    w.pass_time(1)  # the sweep takes its samples, and ages rise
    assert viewer.changed(w) == {}
    w.pub(OPS, "t2", "1")
    w.pass_time(1)  # the change is remembered after the sweep
    assert viewer.changed(w) == {"groups": ["g2"], "sessions": [1]}
    viewer.check(w)


def test_a_pulse_between_two_commands_of_a_turn_has_what_the_first_has_changed() -> None:
    w = world()
    w.hello(b"c")
    viewer = seen(w)
    w.router.step(m.Admin(4, {"op": "group.pause", "group": "g1"}), OPS, w.now)
    w.router.step(m.Subscribe(1, 5, {"group": "g2", "credit": [1, 1]}), b"c", w.now)
    assert viewer.changed(w) == {"groups": ["g1", "g2"], "sessions": [2]}
    viewer.check(w)


def test_a_hub_that_stops_tells_what_consumers_settle() -> None:
    w = world()
    w.hello(b"c")
    w.sub(b"c", 1, group="g1")
    w.pub(OPS, "t1", "1", "2")
    viewer = seen(w)
    w.router.drain(Refusal(Code.SHUTTING_DOWN, "the hub is stopping", 500))
    w.pass_time(0.1)
    viewer.look(w)
    for ordinal in (1, 2):
        w.settle(b"c", 1, Verdict.ACK, ordinal, ordinal)
        assert viewer.changed(w) == {"groups": ["g1"], "sessions": [2]}
        viewer.check(w)


def test_the_progress_of_a_count_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a hub counts, `ready` falls from the most that it can be."""
    w = world()
    for number in range(12):
        w.pub(OPS, f"t{number % 2}", "1")
    contents = w.reader.contents

    def one_block(seq: int, *, sizes: bool = False) -> Any:
        found, _ = contents(seq, sizes=sizes)
        return found[:1], found[0].last_seq + 1

    monkeypatch.setattr(w.reader, "contents", one_block)
    viewer = seen(w)
    w.router.step(m.Admin(4, {"op": "group.seek", "group": "g1", "to": "first"}), OPS, w.now)
    told: list[tuple[int, bool]] = []
    while not told or told[-1] != (6, True):
        viewer.look(w)
        viewer.check(w)
        row = viewer.rows["groups"]["g1"]
        told.append((row["ready"], row["ready_exact"]))
        w.router.tick(w.now)
    assert len(told) > 3


def test_a_group_that_loses_a_block_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A removed block leaves the journal some time after its messages were removed; then another message is the
    oldest."""
    monkeypatch.setattr(block_store, "MEMORY_BYTES_MAX", 200)
    w = world()
    admin(w, "topic.update", topic="t0", max_age_ms=2_000)
    w.sub(OPS, 1, group="g0", credit=0)
    w.pub(OPS, "t0", "old")
    w.pass_time(2.5)
    for body in "123":
        w.pub(OPS, "t0", body)
    viewer = seen(w)
    w.pass_time(0.1)
    viewer.look(w)
    assert w.router.counters["blocks_discarded"] == 0
    w.pass_time(0.5)
    viewer.look(w)
    viewer.check(w)
    assert w.router.counters["blocks_discarded"] == 1


def test_two_viewers_are_told_the_same() -> None:
    w = world()
    first, second = seen(w), seen(w)
    w.pub(OPS, "t1", "1")
    assert first.changed(w) == second.changed(w) == {"groups": ["g1"], "sessions": [1]}


def test_settings_pauses_consumers_and_dead_letters_change_a_group() -> None:
    w = world()
    viewer = seen(w)
    admin(w, "group.pause", group="g1")
    assert viewer.changed(w) == {"groups": ["g1"]}
    admin(w, "group.resume", group="g1")
    admin(w, "group.update", group="g1", on_expire="dead")
    assert viewer.changed(w) == {"groups": ["g1"]}
    w.hello(b"c")
    w.sub(b"c", 1, group="g1")
    assert viewer.changed(w) == {"groups": ["g1"], "sessions": [2]}
    w.pub(OPS, "t1", "1")
    w.settle(b"c", 1, Verdict.REJECT, 1, 1)
    viewer.look(w)
    assert viewer.rows["groups"]["g1"]["dead"] == 1
    admin(w, "dlq.discard", group="g1", all=True)
    viewer.look(w)
    assert viewer.rows["groups"]["g1"]["dead"] == 0
    viewer.check(w)


def test_rows_that_have_ended_are_gone() -> None:
    w = world()
    w.hello(b"c")
    w.sub(b"c", 1, "t")  # a group without a name
    viewer = seen(w)
    w.say(b"c", m.Goodbye(0))
    admin(w, "group.delete", group="g2")
    admin(w, "topic.delete", topic="t0")
    (answer,) = viewer.look(w)
    gone = {kind: sorted(names) for kind, names in answer["gone"].items()}
    assert gone == {"groups": ["$sub.1", "g2"], "sessions": [2], "topics": ["t0"]}
    viewer.check(w)
    admin(w, "group.create", group="g2", patterns=["t"])
    assert viewer.changed(w) == {"groups": ["g2"]}
    viewer.check(w)
    assert seen(w).rows == viewer.rows


def test_an_answer_is_bounded_and_the_next_goes_on() -> None:
    w = world(groups=40)
    viewer = Viewer()
    answers = viewer.look(w, n=10)
    assert [len(answer["groups"]) + len(answer["sessions"]) + len(answer["topics"]) for answer in answers] == [
        10,
        10,
        10,
        10,
        2,
    ]
    assert [answer["reset"] for answer in answers] == [True, False, False, False, False]
    viewer.check(w)
    for number in range(40):
        admin(w, "group.delete", group=f"g{number}")
    assert len(viewer.look(w, n=15)) == 3
    viewer.check(w)


def test_rows_that_change_between_two_answers_are_not_lost() -> None:
    w = world(groups=20)
    viewer = Viewer()
    answer = info(w.router, {"what": "pulse", "n": 5})
    viewer.version = answer["version"]
    for kind, name in NAMES.items():
        viewer.rows[kind] = {row[name]: row for row in answer[kind]}
    told = list(viewer.rows["groups"])
    admin(w, "group.delete", group=told[0])
    w.pub(OPS, "t1", "1")
    viewer.look(w, n=5)
    assert viewer.resets == 0
    viewer.check(w)


def test_long_rows_make_short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse_module, "PAGE_CHARS_MAX", 1_000)
    w = world(groups=20)
    viewer = Viewer()
    assert len(viewer.look(w)) > 5
    viewer.check(w)


@pytest.mark.parametrize("forgets", ["restart", "idle"])
def test_a_version_of_which_too_little_is_known_begins_anew(forgets: str) -> None:
    w = world()
    viewer = seen(w)
    w.pass_time(1)
    if forgets == "restart":
        admin(w, "group.delete", group="g1")
        w.restart()
        w.hello(OPS)
    else:
        for _ in range(int(IDLE_S) + 1):
            w.pass_time(1)
            w.say(OPS, m.Ping(0))
        assert not w.router.pulse._versions
        admin(w, "group.delete", group="g1")
    viewer.look(w)
    assert viewer.resets == 2
    viewer.check(w)
    viewer.version += 1_000_000_000  # of a later run, as after a restore of a backup
    viewer.look(w)
    assert viewer.resets == 3


def test_a_version_of_an_earlier_run_begins_anew_whatever_the_clock_shows() -> None:
    """The clock may have been set back, so that a run begins at the time of an earlier one."""
    w = world()
    viewer = seen(w)
    for runs in range(2, 5):
        w.restart()
        w.hello(OPS)
        admin(w, "group.create", group=f"of{runs}", patterns=["t"])
        viewer.look(w)
        assert viewer.resets == runs
        viewer.check(w)


def test_rows_that_have_ended_are_forgotten_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse_module, "ENDED_MAX", 10)
    w = world()
    old, viewer = seen(w), seen(w)
    for number in range(30):
        admin(w, "group.create", group=f"short{number}", patterns=["t"])
        viewer.look(w)
        admin(w, "group.delete", group=f"short{number}")
        viewer.look(w)
    assert viewer.resets == 1
    assert len(w.router.pulse._versions) <= 5 + 10
    for one in (old, viewer):
        one.look(w, n=2)
        one.check(w)
    assert (old.resets, viewer.resets) == (2, 1)


def test_many_sessions_are_compared_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse_module, "COMPARED_MAX", 4)
    w = world()
    for number in range(9):
        w.hello(b"%d" % number)
    viewer = Viewer()
    found = [len(viewer.look(w)[0]["sessions"]) for _ in range(4)]
    assert found == [4, 4, 2, 0]
    viewer.check(w)


def test_after_an_exception_all_rows_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    w = world()
    viewer = seen(w)
    w.pub(OPS, "t1", "1")
    with monkeypatch.context() as patch:
        patch.setattr(pulse_module, "counts", lambda group, now: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            viewer.look(w)
    viewer.look(w)
    assert viewer.resets == 2
    viewer.check(w)


def test_a_wrong_since_is_refused() -> None:
    w = world()
    for since in (-1, 1 << 63, "1", 1.5, True):
        answer = w.say(OPS, m.Info(3, {"what": "pulse", "since": since}))[-1]
        assert isinstance(answer, m.Err)
        assert answer.code == Code.BAD_OPTION
        assert "since is 0.." in answer.text


class Nothing(Observer):
    """Observes no messages: the twin of this test is the list of rows."""

    def check(self, group: Group) -> None:
        pass

    def restarted(self, groups: Iterable[Group]) -> None:
        pass


class Watched(Talk):
    def act(self) -> None:
        super().act()
        group, topic = self.chance.choice(["x", "y"]), self.chance.choice(["a", "limited"])
        match self.chance.randrange(20):
            case 0:
                self.admin("group.create", group=group, patterns=["#"])
            case 1:
                self.admin("group.delete", group=group)
            case 2:
                self.admin("topic.create", topic=topic, max_msgs=5, on_full="drop_old")
            case 3:
                self.admin("topic.delete", topic=topic)
            case 4:
                self.admin(self.chance.choice(["dlq.redrive", "dlq.discard"]), group="none", all=True)


@pytest.mark.parametrize("every", [1, 7])
def test_a_viewer_has_the_rows_of_the_lists(every: int) -> None:
    chance = seeded("pulse")
    w = Watched(chance, Nothing())
    viewer = Viewer()
    for step in range(600):
        w.act()
        if step % every == 0:
            viewer.look(w, n=random.Random(step).choice([1, 3, 1_000]))
            viewer.check(w)
