"""The health of a hub: each reason at its threshold, the worst first, and an advisory at each change."""

import json
from typing import Any

import pytest

from fabric.router.health import WINDOW_S, Thresholds, Vitals, Word, judge
from fabric_protocol import messages as m
from fabric_protocol.block import Block
from tests.router.world import World

LIMITS = Thresholds(oldest_s=(300, 3600))
FINE = Vitals(disk_free_bytes=100, disk_floor_bytes=10, memory_bytes=10, memory_budget_bytes=100)


def judged(vitals: Vitals = FINE, refused: int = 0, errors: int = 0, **oldest: float) -> list[tuple[str, str]]:
    return [(one.word.name, one.code) for one in judge(vitals, refused, errors, oldest.items(), LIMITS)]


def test_a_hub_without_reasons_is_healthy() -> None:
    assert judged() == []
    assert judged(Vitals()) == []


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"disk_free_bytes": 20}, []),
        ({"disk_free_bytes": 19}, [("DEGRADED", "disk")]),
        ({"disk_free_bytes": 9}, [("UNHEALTHY", "disk")]),
        ({"commit_p99_s": 0.49}, []),
        ({"commit_p99_s": 0.5}, [("DEGRADED", "commit")]),
        ({"commit_p99_s": 5.0}, [("UNHEALTHY", "commit")]),
        ({"loop_lag_s": 0.5}, [("DEGRADED", "lag")]),
        ({"loop_lag_s": 6.0}, [("UNHEALTHY", "lag")]),
        ({"memory_bytes": 80}, [("DEGRADED", "memory")]),
        ({"memory_bytes": 100}, [("UNHEALTHY", "memory")]),
        ({"memory_bytes": 100, "memory_budget_bytes": 0}, []),
        ({"refusing": "the disk is full"}, [("UNHEALTHY", "refusing")]),
    ],
)
def test_each_value_is_judged_by_its_thresholds(changes: dict[str, Any], found: list[tuple[str, str]]) -> None:
    assert judged(FINE._replace(**changes)) == found


def test_counts_and_ages_are_judged() -> None:
    assert judged(refused=1) == [("DEGRADED", "refused")]
    assert judged(refused=10_000) == [("DEGRADED", "refused")]
    assert judged(errors=1) == [("DEGRADED", "errors")]
    assert judged(errors=10) == [("UNHEALTHY", "errors")]
    assert judged(g=299) == []
    assert judged(g=300, h=3600) == [("UNHEALTHY", "oldest"), ("DEGRADED", "oldest")]


def test_a_reason_has_a_code_a_sentence_a_value_and_a_threshold() -> None:
    (reason,) = judge(FINE, 0, 0, [("billing", 400.0)], LIMITS)
    assert reason.row() == {
        "health": "DEGRADED",
        "code": "oldest",
        "text": "the oldest unsettled message of group billing is 400 s old",
        "value": 400,
        "threshold": 300,
        "group": "billing",
    }


class Patient(World):
    def __init__(self) -> None:
        super().__init__()
        self.hello(b"p", ttl_ms=600_000)
        self.sub(b"p", 1, "$sys.health")

    def examine(self, vitals: Vitals = FINE, limits: Thresholds = LIMITS) -> None:
        self.now += 1
        self.router.examine(vitals, limits, self.now)
        self.pass_time(0)

    def advised(self) -> list[Any]:
        return [json.loads(Block(d.block).payloads()[0]) for d in self.said[b"p"] if isinstance(d, m.Deliver)]

    def info(self, what: str = "health") -> dict[str, Any]:
        answer = self.say(b"p", m.Info(5, {"what": what}))[0]
        assert isinstance(answer, m.Ok)
        return dict(answer.fields)


def test_info_has_the_word_the_reasons_and_what_was_measured() -> None:
    world = Patient()
    assert (world.info()["health"], world.info()["reasons"]) == ("HEALTHY", [])
    world.examine(FINE._replace(commit_p99_s=7.0, memory_bytes=85))
    answer = world.info()
    assert answer["health"] == "UNHEALTHY"
    assert [reason["code"] for reason in answer["reasons"]] == ["commit", "memory"]
    assert answer["measured"]["commit_p99_s"] == 7.0
    assert world.info("hub")["health"] == "UNHEALTHY"
    world.examine()
    assert world.info()["health"] == "HEALTHY"


def test_a_change_is_advised_once() -> None:
    world = Patient()
    for commit_s in (0.1, 0.6, 0.7, 6.0, 0.1):
        world.examine(FINE._replace(commit_p99_s=commit_s))
    assert [advisory["health"] for advisory in world.advised()] == ["DEGRADED", "UNHEALTHY", "HEALTHY"]


def test_refused_publishes_count_for_a_minute() -> None:
    world = Patient()
    world.router.counters["refused_disk_full"] = 7  # before the first examination
    world.examine()
    assert world.info()["health"] == "HEALTHY"
    world.router.counters["refused_topic_full"] += 2
    world.examine()
    assert world.info()["reasons"][0]["value"] == 2
    world.now += WINDOW_S
    world.examine()
    world.examine()
    assert world.info()["health"] == "HEALTHY"


def test_the_oldest_message_of_a_group_is_judged_if_there_is_a_threshold() -> None:
    world = Patient()
    world.sub(b"p", 2, "a", group="g", lease_ms=3_600_000)
    world.pub(b"p", "a", "1")
    for _ in range(60):
        world.pass_time(10)
        world.say(b"p", m.Ping(1))
    world.examine(limits=Thresholds())
    assert world.info()["health"] == "HEALTHY"
    world.examine()
    assert [(one["code"], one["group"]) for one in world.info()["reasons"]] == [("oldest", "g")]
    world.settle(b"p", 2, m.Verdict.ACK, 1, 1)
    world.examine()
    assert world.info()["health"] == Word.HEALTHY.name
