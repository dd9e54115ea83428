"""The checker: a correct history passes, and each kind of violation in a history is found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.crash.checker import Found, Letter, Stored, check, totals
from tests.crash.history import History, Log, body_of, digest, name_of, read_all

GROUPS: Final = {"solo": lambda topic: True, "team": lambda topic: topic == "t"}


class Story:
    """Ten messages of one producer, killed once, and two groups that got them all. Tests spoil it."""

    def __init__(self) -> None:
        self.p1 = self._history("producer", 1, name="p")
        self.p2 = self._history("producer", 4, name="p")
        self.solo1 = self._history("consumer", 2, group="solo", alone=True)
        self.solo2 = self._history("consumer", 5, group="solo", alone=True)
        self.team = self._history("consumer", 3, group="team", alone=False)
        self.team2 = self._history("consumer", 6, group="team", alone=False)
        self.histories = [self.p1, self.solo1, self.team, self.p2, self.solo2, self.team2]
        self.p1.events.extend([["pub", 1, 3], ["ok", 1, 3, 1], ["pub", 4, 5], ["unknown", 4, 5, "gone"], ["pub", 6, 6]])
        self.p2.events.extend([["resume", 5], ["pub", 6, 10], ["ok", 6, 10, 6]])
        self.messages = [self.stored(n, n) for n in range(1, 11)]
        self.letters = [Letter("team", 7)]
        self.blocks = [(1, 3), (4, 2), (6, 5), (11, 1)]  # the last one is the dead letter
        self.solo1.events.extend([self.got(*range(1, 6)), ["ack", [1, 2, 3]], ["acked", [1, 2, 3]], ["ack", [4]]])
        self.solo2.events.extend([self.got(4, 5, attempt=2), self.got(*range(6, 11))])
        self.solo2.events.extend([["acked", [4, 5]], ["acked", [6, 7, 8, 9, 10]]])
        self.team.events.extend([self.got(1, 3, 5, 7, 9), ["acked", [1, 3, 5, 9]], ["rejected", [7]]])
        self.team2.events.extend([self.got(2, 4, 6, 8, 10), ["acked", [2, 4, 6, 8, 10]]])

    def _history(self, role: str, run: int, **about: Any) -> History:
        return History({"role": role, "run": run, **about}, [])

    def stored(self, seq: int, number: int) -> Stored:
        return Stored(seq, ("p", number), digest(body_of("p", number)), "t")

    def got(self, *seqs: int, attempt: int = 1) -> list[Any]:
        return ["got", [[seq, "p", seq, digest(body_of("p", seq)), attempt] for seq in seqs]]

    def found(self) -> Found:
        return Found([a for a, _ in self.blocks], [n for _, n in self.blocks], self.messages, self.letters)

    def kinds(self) -> set[str]:
        return {violation.kind for violation in check(self.histories, self.found(), GROUPS)}


def test_healthy_story_passes() -> None:
    story = Story()
    assert check(story.histories, story.found(), GROUPS) == []
    assert totals(story.histories, story.found()) == (8, 22, 2, 20, 1)


def lose_the_last(story: Story) -> None:
    story.messages.pop()


def lose_one_in_the_middle(story: Story) -> None:
    del story.messages[4]


def store_twice(story: Story) -> None:
    story.messages.append(story.stored(11, 3))


def leave_a_gap(story: Story) -> None:
    story.blocks[2] = (7, 5)


def use_a_seq_twice(story: Story) -> None:
    story.blocks[2] = (5, 5)


def change_the_journal(story: Story) -> None:
    story.messages[2] = story.messages[2]._replace(digest=1)


def change_a_delivery(story: Story) -> None:
    story.team.events[0][1][0][3] = 1


def confirm_another_seq(story: Story) -> None:
    story.p2.events[-1] = ["ok", 6, 10, 7]


def swap_two(story: Story) -> None:
    story.messages[1], story.messages[2] = story.stored(2, 3), story.stored(3, 2)


def forget_the_count(story: Story) -> None:
    story.p2.events[0] = ["resume", 2]


def count_too_far(story: Story) -> None:
    story.p2.events[0] = ["resume", 7]


def invent_a_message(story: Story) -> None:
    story.messages.append(story.stored(11, 11))


def deliver_what_is_not_there(story: Story) -> None:
    story.team.events[0][1].append([12, "p", 12, digest(body_of("p", 12)), 1])


def deliver_under_a_wrong_seq(story: Story) -> None:
    story.team.events[0][1][0][0] = 2


def deliver_again_to_the_same(story: Story) -> None:
    story.team.events.append(story.got(3, attempt=2))


def deliver_again_to_the_next(story: Story) -> None:
    story.solo2.events.insert(0, story.got(2, attempt=2))


def settle_at_two_members(story: Story) -> None:
    story.team2.events.extend([story.got(3, attempt=2), ["acked", [3]]])


def skip_one(story: Story) -> None:
    story.team2.events[:] = [story.got(2, 4, 6, 8), ["acked", [2, 4, 6, 8]]]


def deliver_what_is_not_wanted(story: Story) -> None:
    story.messages[3] = story.messages[3]._replace(topic="other")


def skip_a_group(story: Story) -> None:
    story.histories = [h for h in story.histories if h.about.get("group") != "team"]
    story.letters.clear()


def write_a_letter_twice(story: Story) -> None:
    story.letters *= 2


def lose_a_letter(story: Story) -> None:
    story.letters.clear()


def bury_what_was_acked(story: Story) -> None:
    story.letters.append(Letter("solo", 1))


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lose_the_last, "lost"),
        (lose_one_in_the_middle, "hole"),
        (lose_one_in_the_middle, "lost"),
        (store_twice, "stored twice"),
        (store_twice, "reordered"),
        (leave_a_gap, "gap"),
        (use_a_seq_twice, "gap"),
        (change_the_journal, "wrong payload"),
        (change_a_delivery, "wrong payload"),
        (confirm_another_seq, "two seqs"),
        (swap_two, "reordered"),
        (forget_the_count, "forgotten"),
        (count_too_far, "invented"),
        (invent_a_message, "invented"),
        (deliver_what_is_not_there, "phantom"),
        (deliver_under_a_wrong_seq, "phantom"),
        (deliver_again_to_the_same, "again"),
        (deliver_again_to_the_next, "again"),
        (settle_at_two_members, "settled twice"),
        (skip_one, "unseen"),
        (skip_a_group, "unseen"),
        (deliver_what_is_not_wanted, "unwanted"),
        (write_a_letter_twice, "letter twice"),
        (lose_a_letter, "letter lost"),
        (bury_what_was_acked, "letter and ack"),
    ],
)
def test_planted_violation_is_found(spoil: Callable[[Story], None], kind: str) -> None:
    story = Story()
    spoil(story)
    assert kind in story.kinds()


def test_unknown_outcome_may_be_either() -> None:
    """4 and 5 were never confirmed by a publish, and 6 of the first run did not arrive: none of it is a violation."""
    story = Story()
    story.p2.events[0] = ["resume", 3]
    story.p2.events[1:] = [["pub", 4, 10], ["ok", 4, 10, 4]]
    assert story.kinds() == set()


def test_unconfirmed_ack_may_be_followed_by_another_delivery() -> None:
    story = Story()
    story.solo1.events.append(["unsure", [5]])
    assert story.kinds() == set()


def test_line_that_a_kill_cut_off_is_passed_over(tmp_path: Path) -> None:
    log = Log(tmp_path / "b.log", role="producer", name="p", run=2)
    log.say("pub", 1, 2)
    with (tmp_path / "b.log").open("a") as file:
        file.write('["ok",1,')
    Log(tmp_path / "a.log", role="producer", name="q", run=1)
    first, second = read_all(tmp_path)
    assert (first.about["name"], second.about["name"]) == ("q", "p")
    assert second.events == [["pub", 1, 2]]


def test_payloads_are_told_apart() -> None:
    bodies = {body_of(producer, number) for producer in ("a", "b") for number in range(200)}
    assert len(bodies) == 400
    assert name_of(body_of("a", 77)) == ("a", 77)
    assert len({len(body) for body in bodies}) > 20
