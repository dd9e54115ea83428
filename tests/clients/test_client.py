"""The blocking client over real sockets, against the model hub."""

import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial

import pytest

import fabric_client
from fabric_client.core import publisher
from fabric_client.sync import consume as sync_consume
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from tests.clients.model_hub import ModelHub, Served
from tests.patience import PATIENCE_S


def eventually(condition: Callable[[], object]) -> None:
    """Wait for a condition, not for a time."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def test_no_hub_is_said_with_a_hint(served: Served) -> None:
    served.stop()
    with pytest.raises(fabric_client.ConnectionLost, match="no hub at") as error:
        fabric_client.connect(served.url, timeout=0.05)
    assert "fabric hub" in error.value.hint


def test_unusable_address_is_said_at_once() -> None:
    with pytest.raises(fabric_client.FabricError, match="not a usable address"):
        fabric_client.connect("nonsense")


def test_address_comes_from_the_environment(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FABRIC_URL", served.url)
    with fabric_client.connect() as fab:
        assert fab.connected
        assert fab.hub["hub"] == "model"


def test_publish_returns_the_seq(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        assert fab.publish("a.b", b"raw").seq == 1
        assert fab.publish("a.b", "text", key="k", headers={"h": "v"}) == fabric_client.Receipt(2)
        assert fab.publish("a.b", {"n": 1}, id="once").duplicate is False
    assert served.hub.journal == [("a.b", b"raw"), ("a.b", b"text"), ("a.b", b'{"n":1}')]


def test_publish_many_returns_the_first_seq_and_the_count(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        fab.publish("a", "first")
        receipt = fab.publish_many("a", [bytes(100)] * 5000)
        assert (receipt.seq, receipt.count, receipt.duplicates) == (2, 5000, 0)
        assert fab.publish_many("a", [{"n": n} for n in range(3)]).seq == 5002
        with pytest.raises(fabric_client.BadMessage):
            fab.publish_many("a", [])
    assert len(served.hub.journal) == 5004


def test_publish_nowait_keeps_order_over_topics_and_options(served: Served) -> None:
    expected = []
    with fabric_client.connect(served.url) as fab:
        for number in range(5000):
            topic = "a" if number % 1000 < 900 else "b"
            body = b"%d" % number
            if number % 77 == 0:
                fab.publish_nowait(topic, body, key="k")
            elif number % 501 == 0:
                fab.publish_nowait(topic, body, priority=3)
            else:
                fab.publish_nowait(topic, body)
            expected.append((topic, body))
        fab.flush()
        assert served.hub.journal == expected


def test_publish_nowait_needs_no_flush_to_arrive(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        for number in range(100):
            fab.publish_nowait("a", b"%d" % number)
        eventually(lambda: len(served.hub.journal) == 100)


def test_a_full_buffer_makes_publish_nowait_wait(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "BUFFER_MESSAGES_MAX", 100)
    served.hub.flow = (1, 1 << 20)
    with fabric_client.connect(served.url) as fab:
        for number in range(20_000):
            fab.publish_nowait("a", b"%d" % number)
        fab.flush()
    assert [payload for _, payload in served.hub.journal] == [b"%d" % number for number in range(20_000)]


def test_refused_messages_come_back_with_flush(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        served.hub.refuse.append(m.Err(0, 0, Code.FORBIDDEN, "not here", {}))

        def publish_and_flush() -> None:
            fab.publish_nowait("a", b"bad")  # raises itself if the answer comes this quickly
            fab.flush()

        with pytest.raises(fabric_client.PublishRefused, match="not here") as error:
            publish_and_flush()
        (refusal,) = error.value.refusals
        assert (refusal.payloads, refusal.topics) == ((b"bad",), ("a",))
        assert fab.publish("a", b"good").seq == 1


def test_busy_hub_is_asked_again(served: Served) -> None:
    served.hub.refuse.extend([m.Err(0, 0, Code.BUSY, "later", {"retry_ms": 5})] * 3)
    with fabric_client.connect(served.url) as fab:
        assert fab.publish("a", b"x").seq == 1


def test_publish_that_is_not_confirmed_in_time_says_so(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        served.hub.refuse.extend([m.Err(0, 0, Code.DISK_FULL, "the disk is full", {"retry_ms": 1})] * 1000)
        with pytest.raises(fabric_client.Timeout) as error:
            fab.publish("a", b"x", timeout=0.05)
        assert "the disk is full" in str(error.value)
        served.hub.refuse.clear()
        fab.flush()


def test_group_messages_are_acked_by_with(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        fab.publish_many("a", [b"%d" % n for n in range(2500)])
        bodies = []
        for message in fab.consume("a", group="g", count=2500):
            with message:
                bodies.append(message.body)
        fab.flush()
        assert bodies == [b"%d" % n for n in range(2500)]
        assert sorted(served.hub.acked["g"]) == list(range(1, 2501))


def test_batches_are_acked_as_ranges(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        fab.publish_many("a", [bytes(10)] * 3000)
        seen = 0
        with fab.consume_batches("a", group="g", timeout=PATIENCE_S) as batches:
            for batch in batches:
                with batch:
                    seen += len(batch.payloads)
                if seen == 3000:
                    break
        fab.flush()
        assert sorted(served.hub.acked["g"]) == list(range(1, 3001))
        assert len([row for row in served.hub.verdicts if row[0] == m.Verdict.ACK]) <= 10


def test_prefetch_of_one_has_one_in_hand(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        fab.publish_many("a", [b"x"] * 5)
        for number, message in enumerate(fab.consume("a", group="g", prefetch=1, count=5), 1):
            (session,) = served.hub.peers.values()
            assert [sub.ordinal for sub in session.subs.values()] == [number]
            message.ack()


def test_acks_leave_while_the_next_message_is_being_worked_on(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        fab.publish_many("a", [b"x"] * 3)

        def acked(count: int) -> bool:
            return len(served.hub.acked["g"]) == count

        for done, message in enumerate(fab.consume("a", group="g", count=3)):
            eventually(partial(acked, done))
            message.ack()


def test_leases_are_renewed_while_a_message_is_worked_on(served: Served) -> None:
    def touched() -> bool:
        return any(row[0] == m.Verdict.TOUCH for row in served.hub.verdicts)

    served.hub.deliver_max = 1
    with fabric_client.connect(served.url) as fab:
        fab.publish_many("a", [b"x"] * 3)
        for message in fab.consume("a", group="g", lease=0.2, count=3):
            served.hub.verdicts.clear()
            eventually(touched)
            message.ack()


def test_an_exception_asks_for_a_retry(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        fab.publish("a", b"x")
        attempts = []
        for message in fab.consume("a", group="g", count=2):
            attempts.append(message.attempt)
            try:
                with message:
                    if message.attempt == 1:
                        raise ValueError("try again")
            except ValueError:
                continue
        assert attempts == [1, 2]


def test_leaving_the_loop_gives_back_what_was_not_settled(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        fab.publish_many("a", [b"%d" % n for n in range(10)])
        for message in fab.consume("a", group="g"):
            message.ack()
            break
        eventually(lambda: all(not peer.subs for peer in served.hub.peers.values()))
        again = fab.fetch("a", group="g", count=100)
        assert [message.body for message in again] == [b"%d" % n for n in range(1, 10)]
        assert served.hub.acked["g"] == [1]


def test_iteration_ends_when_nothing_comes(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        assert list(fab.consume("a", group="g", timeout=0.01)) == []
        assert fab.fetch("a", group="g", timeout=0.01) == []


def test_without_a_group_everything_from_now_on_is_seen(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        fab.publish("a", b"before")
        consumer = fab.consume("a", count=3)
        fab.publish_many("a", [b"1", b"2", b"3"])
        assert [message.body for message in consumer] == [b"1", b"2", b"3"]
        assert [message.body for message in fab.consume("a", start="first", count=1)] == [b"before"]
        assert [message.body for message in fab.fetch("a", start=2, count=2)] == [b"1", b"2"]


def test_fetched_messages_may_be_held_over_many_fetches(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        fab.publish_many("a", [b"x"] * 10)
        held = [message for _ in range(5) for message in fab.fetch("a", group="g", count=2)]
        assert [message.seq for message in held] == list(range(1, 11))
        for message in held:
            message.ack()
        fab.flush()
        assert sorted(served.hub.acked["g"]) == list(range(1, 11))
        (session,) = served.hub.peers.values()
        assert len(session.subs) == 1


def test_fetch_whose_end_was_lost_gives_what_there_is(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_consume, "FETCH_GRACE_S", 0.0)
    with fabric_client.connect(served.url) as fab:
        fab.publish("a", b"x")
        (first,) = fab.fetch("a", group="g", timeout=PATIENCE_S)
        served.hub.silent.add(m.Fetch)
        assert fab.fetch("a", group="g", timeout=0.01) == []
        served.hub.silent.clear()
        fab.publish("a", b"y")
        (message,) = fab.fetch("a", group="g", timeout=PATIENCE_S)
        assert message.body == b"y"
        first.ack()


def test_group_with_other_settings_is_refused(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        with pytest.raises(fabric_client.GroupMismatch):
            fab.consume("a", group="taken")
        with pytest.raises(fabric_client.FabricError, match="nothing to consume"):
            fab.consume()


def test_info(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        assert fab.info("counters") == {"what": "counters", "messages": 0}


def test_inproc_shares_the_context(served: Served) -> None:
    inner = Served("inproc://model", ModelHub())
    try:
        with fabric_client.connect("inproc://model", context=inner.context) as fab:
            assert fab.publish("a", b"x").seq == 1
    finally:
        inner.close()


def test_restart_of_the_hub_neither_loses_nor_doubles(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        fab.publish("a", b"0")
        for number in range(1, 3000):
            fab.publish_nowait("a", b"%d" % number)
            if number % 1000 == 500:
                served.restart()
        fab.flush()
    assert [payload for _, payload in served.hub.journal] == [b"%d" % number for number in range(3000)]


def test_consumer_goes_on_after_a_restart_of_the_hub(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        fab.publish_many("a", [b"%d" % n for n in range(100)])
        seen: set[bytes] = set()
        for message in fab.consume("a", group="g", prefetch=10):
            if len(seen) == 50:
                served.restart()
            with message:
                seen.add(message.body)
            if len(seen) == 100:
                break
        fab.flush()
    assert set(served.hub.acked["g"]) == set(range(1, 101))


def test_consumer_without_a_group_misses_nothing_over_a_restart(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        consumer = fab.consume("a", prefetch=4)
        bodies = []
        for number in range(20):
            fab.publish("a", b"%d" % number)
            if number == 10:
                served.restart()
        for message in consumer:
            bodies.append(message.body)
            if len(bodies) == 20:
                break
    assert bodies == [b"%d" % number for number in range(20)]


def test_publish_while_the_hub_is_away_waits_for_it_and_is_withdrawn_when_that_fails(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        served.stop()
        eventually(lambda: not fab.connected)
        with pytest.raises(fabric_client.ConnectionLost, match="never sent, and withdrawn") as error:
            fab.publish("a", b"late", timeout=0.01)
        assert not isinstance(error.value, fabric_client.Unconfirmed)
        assert (error.value.stored, error.value.unconfirmed, error.value.withdrawn) == (0, 0, 1)
        served.hub.restart()
        served._start()
        fab.publish("a", b"later")
    assert [payload for _, payload in served.hub.journal] == [b"later"]


def test_many_threads_share_one_client(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:

        def work(name: int) -> None:
            for number in range(300):
                if number % 10 == 0:
                    seqs[name].append(fab.publish(f"t{name}", b"%d" % number).seq)
                else:
                    fab.publish_nowait(f"t{name}", b"%d" % number)

        seqs: list[list[int]] = [[] for _ in range(8)]
        threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        fab.flush()
    for name in range(8):
        mine = [(seq, payload) for seq, (topic, payload) in enumerate(served.hub.journal, 1) if topic == f"t{name}"]
        assert [payload for _, payload in mine] == [b"%d" % number for number in range(300)]
        assert seqs[name] == [seq for seq, _ in mine[::10]]


def test_threads_on_one_topic_lose_nothing(served: Served) -> None:
    """All of them enter the same fast_path while it is opened and closed under them."""
    with fabric_client.connect(served.url) as fab:

        def work(name: int) -> None:
            for number in range(5000):
                fab.publish_nowait("t", b"%d %d" % (name, number))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        fab.flush()
    stored = [tuple(map(int, payload.split())) for _, payload in served.hub.journal]
    for name in range(4):
        assert [number for who, number in stored if who == name] == list(range(5000))


def test_verdicts_may_come_from_other_threads(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        fab.publish_many("a", [b"x"] * 2000)
        messages = list(fab.fetch("a", group="g", count=2000))

        def settle(part: list[fabric_client.Message]) -> None:
            for message in part:
                message.ack()

        threads = [threading.Thread(target=settle, args=(part,)) for part in (messages[::2], messages[1::2])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        fab.flush()
        assert sorted(served.hub.acked["g"]) == list(range(1, 2001))


def test_closing_ends_a_waiting_consumer(served: Served) -> None:
    fab = fabric_client.connect(served.url)
    seen: list[object] = []
    waiting = threading.Event()

    def work() -> None:
        consumer = fab.consume("a", group="g")
        waiting.set()
        seen.extend(consumer)
        seen.append("end")

    thread = threading.Thread(target=work)
    thread.start()
    waiting.wait(PATIENCE_S)
    fab.close()
    thread.join(PATIENCE_S)
    assert seen == ["end"]
    with pytest.raises(fabric_client.Closed):
        fab.publish("a", b"x")
    with pytest.raises(fabric_client.Closed):
        fab.publish_nowait("a", b"x")


def test_settling_after_the_loop_is_an_error(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        fab.publish("a", b"x")
        (message,) = list(fab.consume("a", group="g", count=1))
        eventually(lambda: all(not peer.subs for peer in served.hub.peers.values()))
        with pytest.raises(fabric_client.Closed):
            message.ack()


def test_goodbye_is_said(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        fab.publish_nowait("a", b"x")
    assert served.hub.sessions == {}
    assert len(served.hub.journal) == 1


def test_program_that_ends_without_close_still_delivers(served: Served) -> None:
    program = (
        "import sys, fabric_client\n"
        "fab = fabric_client.connect(sys.argv[1])\n"
        "for number in range(3000): fab.publish_nowait('a', b'%d' % number)\n"
    )
    path = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", program, served.url], env=environment, timeout=PATIENCE_S, check=True)
    assert [payload for _, payload in served.hub.journal] == [b"%d" % number for number in range(3000)]


def test_consumer_that_waits_gets_what_comes_after_a_restart(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        consumer = fab.consume("a", group="g", count=1)
        bodies: list[bytes] = []
        thread = threading.Thread(target=lambda: bodies.extend(message.body for message in consumer))
        thread.start()
        served.restart()
        fab.publish("a", b"x")
        thread.join(PATIENCE_S)
        assert bodies == [b"x"]


def test_client_that_is_dropped_still_delivers_and_warns(served: Served) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fab = fabric_client.connect(served.url)
        for number in range(100):
            fab.publish_nowait("a", b"%d" % number)
        del fab
        eventually(lambda: len(served.hub.journal) == 100)
    assert any(issubclass(warning.category, ResourceWarning) for warning in caught)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork with threads: the very thing that is tested
def test_child_process_is_told_to_connect_again(served: Served) -> None:
    with fabric_client.connect(served.url) as fab:
        fab.publish("a", b"x")
        fab.publish_nowait("a", b"y")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                fab.publish_nowait("a", b"z")
            except fabric_client.Forked as error:
                code = 0 if "connect()" in error.hint else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        fab.publish("a", b"still fine here")
