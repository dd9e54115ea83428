"""`fabric trace` against a real hub, and against a journal without one."""

import json
from pathlib import Path

import fabric_client
from fabric.cli.support.hub_process import HubProcess
from tests.cli.conftest import Fabric, wait_until


def died_and_came_back(url: str) -> int:
    """A message that is retried, rejected, redriven and acked; returns its seq."""
    with fabric_client.connect(url, name="tester") as fab:
        fab.admin.hub.update(events=True)
        seq = fab.publish("orders.new", b"x", key="k", id="i").seq
        consumer = fab.consume("orders.#", group="billing", start="first", backoff_first=0.001, timeout=30)
        for message in consumer:
            if message.attempt == 1 and message.seq == seq:
                message.retry()
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
        "key k", "id i", "accepted", "delivered to tester, attempt 1", "retried by tester, delivered again after",
        "delivered to tester, attempt 2", "dead letter #2, rejected: wrong size; it is not in the list any more",
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
    copy = json.loads(talk("trace", "3").output)
    assert (copy["asked"], copy["seq"], copy["steps"]) == (3, seq, told["steps"])
    hub.stop()
    offline = json.loads(talk("trace", str(seq), "--data", str(tmp_path / "journal")).output)
    assert offline["steps"] == told["steps"]


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
