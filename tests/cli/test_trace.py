"""`fabric trace` against a real hub, and against a journal without one."""

import json
from pathlib import Path
from typing import Any

import fabric_client
from fabric.cli.support.hub_process import HubProcess
from fabric.cli.support.message_story import lines
from tests.cli.conftest import Fabric, wait_until


def died_and_came_back(url: str) -> int:
    """A message that is retried, rejected, redriven and acked; returns its seq."""
    with fabric_client.connect(url, name="tester") as fab:
        fab.admin.hub.update(events=True)
        seq = fab.publish("orders.new", b"x", key="k", id="i").seq
        consumer = fab.consume("orders.#", group="billing", start="first", backoff_first=0.001, timeout=30)
        for message in consumer:
            if message.attempt == 1 and message.seq == seq:
                message.retry(reason="out of paper")
            elif message.seq == seq:
                message.reject("wrong size")
                fab.flush()
                fab.admin.dead_letters("billing").redrive()
            else:
                message.ack()
                break
        fab.flush()
        consumer.close()
    return seq


def test_the_story_of_a_message_that_died_and_came_back(talk: Fabric, hub: HubProcess, tmp_path: Path) -> None:
    seq = died_and_came_back(hub.url)
    result = talk("trace", str(seq), "-o", "table")
    assert result.exit_code == 0, result.output
    text = result.output
    for part in (
        "key k", "id i", "accepted", "delivered to tester, attempt 1",
        "retried by tester: out of paper; delivered again after",
        "delivered to tester, attempt 2", "rejected by tester: wrong size", "dead letter #2, rejected\n",
        "redriven as #3", "acked by tester (copy #3)", "billing: settled", "billing (copy #3): settled",
    ):  # fmt: skip
        assert part in text, text
    order = [text.index(word) for word in ("accepted", "retried", "dead letter", "redriven", "acked", "now:")]
    assert order == sorted(order)
    assert "events are off" not in text
    told = json.loads(talk("trace", "--id", "i", "--topic", "orders.#").output)
    assert told["schema"] == "fabric.trace.v1"
    assert (told["seq"], told["recording"], told["message"]["key"]) == (seq, True, "k")
    kinds = ["deliver", "retry", "deliver", "dead", "dead letter", "redrive", "deliver", "ack"]
    assert [step["what"] for step in told["steps"]] == kinds
    assert [step["reason"] for step in told["steps"] if "reason" in step] == [
        "out of paper", "rejected: wrong size", "rejected",
    ]  # fmt: skip
    assert not any("kind" in step for step in told["steps"])
    copy = json.loads(talk("trace", "3").output)
    assert (copy["asked"], copy["seq"], copy["steps"]) == (3, seq, told["steps"])
    hub.stop()
    offline = json.loads(talk("trace", str(seq), "--data", str(tmp_path / "journal")).output)
    assert offline["steps"] == told["steps"]


def step(what: str, ms: int, attempt: int = 1, **fields: object) -> dict[str, Any]:
    return {"what": what, "seq": 7, "time_us": ms * 1000, "group": "g", "client": "c", "attempt": attempt, **fields}


def story(*steps: dict[str, Any], **state: object) -> dict[str, Any]:
    message = {"topic": "a", "time_us": 0, "bytes": 1, "priority": 4, "expires_us": 0, "headers": {}}
    groups = [{"seq": 7, "group": "g", **state}] if state else []
    return {"seq": 7, "recording": True, "message": message, "steps": list(steps), "groups": groups}


def texts(told: dict[str, Any]) -> list[str]:
    """The text of each step, and what the message waits for."""
    return [line.strip().partition("g: ")[2] for line in lines(told, 1_000) if "g: " in line]


def test_each_end_of_a_delivery_says_why() -> None:
    letter = {"attempts": 3, "hops": 1, "redriven": 0, "reason": "retries spent", "error": "on fire", "listed": True}
    told = story(
        step("deliver", 1),
        step("retry", 2, reason="out of paper"),
        step("deliver", 4, 2),
        step("taken", 5, 2, reason="an earlier message comes first"),
        step("deliver", 6, 3),
        step("deliver", 9, 3),
        step("lapse", 10, 3),
        step("deliver", 11, 4),
        step("retry", 12, 4, reason="on fire"),
        step("dead", 12, 4, reason="retries spent: on fire"),
        {**step("dead letter", 13), "seq": 8, **letter},
    )
    assert texts(told) == [
        "delivered to c, attempt 1",
        "retried by c: out of paper; delivered again after 2.0 ms",
        "delivered to c, attempt 2",
        "taken back from c: an earlier message comes first; delivered again after 1.0 ms",
        "delivered to c, attempt 3; its end is not recorded: the hub was killed, or events were off",
        "delivered to c, attempt 3",
        "lease lapsed at c, delivered again after 1.0 ms",
        "delivered to c, attempt 4",
        "retried by c: on fire",
        "given up after attempt 4, retries spent",
        "dead letter #8, retries spent",
    ]


def test_what_is_not_told_by_an_event_is_told_by_the_dead_letter() -> None:
    letter = {"attempts": 3, "hops": 1, "redriven": 0, "reason": "rejected", "error": "too large", "listed": False}
    told = story({**step("dead letter", 13), "seq": 8, **letter})
    assert texts(told) == ["dead letter #8, rejected: too large; it is not among the dead letters any more"]


def test_the_present_state_of_a_message() -> None:
    ready = {"state": "ready", "reached": False, "paused": False, "consumers": 1}
    assert texts(story(**ready, ahead=0)) == ["waits for its first delivery"]
    assert texts(story(**ready, ahead=1)) == ["waits for its first delivery behind 1 message of all topics"]
    failed = {"state": "ready", "reached": True, "consumers": 0, "failures": 1, "reason": "out\nof paper"}
    assert texts(story(**failed)) == ["ready; the group has no consumers; 1 failure, the last: out\\nof paper"]


def test_no_line_is_wider_than_the_terminal() -> None:
    told = story(step("deliver", 1), step("retry", 2, reason="word " * 60), state="settled")
    found = list(lines(told, 80))
    assert max(map(len, found)) <= 80
    assert [line for line in found if line.startswith(" " * 29 + "word")], "a long text goes on below its beginning"


def test_events_that_are_off_are_a_hint(talk: Fabric, hub: HubProcess) -> None:
    assert talk("setting", "set", "events", "off").exit_code == 0
    assert talk("pub", "a", "1", "--key", "k").exit_code == 0
    result = talk("trace", "--key", "k", "-o", "table")
    assert result.exit_code == 0
    assert "fabric setting set events on" in result.stderr
    assert "no group matches its topic" in result.output


def test_a_message_that_is_not_there_has_an_exit_code(talk: Fabric, hub: HubProcess) -> None:
    assert talk("trace", "99").exit_code == 4
    missing = talk("trace", "--key", "nothing")
    assert missing.exit_code == 4
    assert "there is no message with key 'nothing'" in missing.output
    for wrong in ((), ("1", "--id", "x"), ("1", "--topic", "a")):
        assert talk("trace", *wrong).exit_code == 2
    wait_until(lambda: talk("trace", "1", "--url", "tcp://127.0.0.1:1", "--timeout", "100ms").exit_code == 3)
