"""Health of a real hub: what it measures, the advisory, and a disk that is nearly full."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fabric_client
from fabric.hub.hub import Hub, HubOptions
from fabric.hub.vital_signs import COMMITS_S, VitalSigns
from fabric.journal.journal import Limits
from tests.patience import PATIENCE_S

BIND = "inproc://health"


def wait_until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_percentile_of_the_latest_commits_and_the_longest_turn() -> None:
    signs = VitalSigns()
    for n in range(200):
        signs.committed(0.001 * n, 10.0)
    signs.turned(0.2)
    signs.turned(0.1)
    vitals = signs.take(10.0, (100, 10), 5)
    assert (vitals.commit_p99_s, vitals.loop_lag_s) == (0.197, 0.2)
    assert (vitals.disk_free_bytes, vitals.disk_floor_bytes, vitals.memory_bytes) == (100, 10, 5)
    assert not signs.is_due(10.5)
    signs.submitted(11.0)
    assert signs.take(17.0, (100, 10), 5).commit_p99_s == 6.0, "a commit that does not end"
    signs.restored()
    vitals = signs.take(10.0 + COMMITS_S + 1, (100, 10), 5)
    assert (vitals.commit_p99_s, vitals.loop_lag_s) == (0.0, 0.0)


def test_a_hub_measures_itself(tmp_path: Path) -> None:
    with Hub(tmp_path, HubOptions(binds=[BIND])) as hub, fabric_client.connect(BIND, context=hub.context) as fab:
        fab.publish("a", b"1")
        wait_until(lambda: fab.info("health")["measured"]["commit_p99_s"] > 0)
        measured = fab.info("health")["measured"]
        assert 0 < measured["commit_p99_s"] < PATIENCE_S
        assert measured["disk_free_bytes"] > 0
        assert measured["memory_budget_bytes"] == HubOptions().memory_bytes
        assert fab.info()["health"] in ("HEALTHY", "DEGRADED", "UNHEALTHY")


def test_a_hub_that_refuses_all_publishes_is_unhealthy(tmp_path: Path) -> None:
    options = HubOptions(binds=[BIND], limits=Limits(quota_bytes=1))
    with Hub(tmp_path, options) as hub, fabric_client.connect(BIND, context=hub.context) as fab:
        wait_until(lambda: fab.info("health")["health"] == "UNHEALTHY")
        reason = fab.info("health")["reasons"][0]
        assert reason["code"] == "refusing"
        assert "quota" in reason["text"]


def test_a_change_of_health_is_advised(tmp_path: Path) -> None:
    with Hub(tmp_path, HubOptions(binds=[BIND])) as hub, fabric_client.connect(BIND, context=hub.context) as fab:
        fab.admin.topics.create("small", max_msgs=1)
        fab.publish("small", b"1")
        wait_until(lambda: fab.info("health")["measured"]["commit_p99_s"] > 0)
        with fab.consume("$sys.health", timeout=PATIENCE_S) as consumer:
            with pytest.raises(fabric_client.FabricError):
                fab.publish("small", b"2", timeout=0.5)
            codes = (reason["code"] for message in consumer for reason in message.data["reasons"])
            assert "refused" in codes
