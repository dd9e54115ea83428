"""A message has `attempt` 1 at most once, also when the hub is killed again and again."""

import contextlib
import logging
from collections import Counter

from fabric_client import VerdictsUnconfirmed
from tests.clients.real_hub import HubProcess, connect
from tests.patience import PATIENCE_S

JOBS = 3_000
DEATHS = 4


def test_what_was_handed_out_before_a_death_is_no_first_attempt(hub_process: HubProcess) -> None:
    with connect(hub_process) as fab:
        fab.publish_many("jobs", [b"1", b"2"], timeout=PATIENCE_S)
        (first,) = fab.fetch("jobs", group="g", count=1, timeout=PATIENCE_S)
        assert (first.body, first.attempt) == (b"1", 1)
    with connect(hub_process) as fab:
        (held,) = fab.fetch("jobs", group="h", count=1, timeout=PATIENCE_S)
        assert (held.body, held.attempt) == (b"1", 1)
        hub_process.kill()  # with a message in the consumer's hands, and not a word about it on disk
    hub_process.start()
    with connect(hub_process) as fab:
        (again,) = fab.fetch("jobs", group="h", count=1, timeout=PATIENCE_S)
        assert again.body == b"1"
        assert again.attempt == 2
        again.ack()
        (fresh,) = fab.fetch("jobs", group="new", count=1, timeout=PATIENCE_S)
        assert (fresh.body, fresh.attempt) == (b"1", 1)


def test_a_first_attempt_is_said_once_however_often_the_hub_dies(hub_process: HubProcess) -> None:
    logging.getLogger("fabric_client").setLevel(logging.CRITICAL)
    first: Counter[bytes] = Counter()
    done: set[bytes] = set()
    deaths = 0
    with connect(hub_process) as fab:
        fab.publish_many("jobs", [b"%d" % number for number in range(JOBS)], timeout=PATIENCE_S)
        for message in fab.consume("jobs", group="g", prefetch=64, timeout=PATIENCE_S):
            first[message.body] += message.attempt == 1
            message.ack()
            done.add(message.body)
            if len(done) == JOBS:
                break
            if deaths < DEATHS and len(done) > (deaths + 1) * JOBS // (DEATHS + 2):
                deaths += 1
                hub_process.kill()
                hub_process.start()
        with contextlib.suppress(VerdictsUnconfirmed):  # acks that died with the hub; their messages may come later
            fab.flush(PATIENCE_S)
    assert deaths == DEATHS
    assert [body for body, times in first.items() if times > 1] == []
    assert sum(first.values()) > JOBS // 10, "what was never handed out is a first attempt"
