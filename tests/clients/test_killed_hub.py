"""Transactions, schedules, ids, key order and responders, with a hub process that is killed and started again."""

import logging
import threading
import time
from contextlib import suppress

import fabric_client
from fabric_client import Client, Message, Retry, Scheduled, Transaction, VerdictsUnconfirmed
from tests.clients.real_hub import HubProcess, connect, eventually
from tests.patience import PATIENCE_S

ORDERS = 400


def invoices(fab: Client) -> list[int]:
    return [int(message.body) for message in fab.get("invoices", n=10 * ORDERS, timeout=PATIENCE_S)]


def end(fab: Client, worker: threading.Thread) -> None:
    """End a client and its loop."""
    with suppress(VerdictsUnconfirmed):  # of a session that the hub forgot: the messages came again
        fab.close(timeout=PATIENCE_S)
    worker.join(PATIENCE_S)
    assert not worker.is_alive()


def test_each_message_has_one_result_however_often_the_hub_dies(hub_process: HubProcess) -> None:
    logging.getLogger("fabric_client").setLevel(logging.CRITICAL)
    handled = 0

    def handle(message: Message, ctx: Transaction) -> None:
        nonlocal handled
        time.sleep(0.002)
        ctx.publish("invoices", message.body)
        handled += 1
        if message.attempt == 1 and int(message.body) % 17 == 0:
            raise Retry(0.01)

    with connect(hub_process) as fab:
        fab.publish_many("orders", [b"%d" % number for number in range(ORDERS)])
        worker = threading.Thread(target=fab.work, args=("orders", handle), kwargs={"group": "g"})
        worker.start()
        for _ in range(4):
            before = handled
            while handled < before + ORDERS // 6:
                time.sleep(0.005)
            hub_process.kill()
            hub_process.start()
        eventually(lambda: len(invoices(fab)) >= ORDERS)
        end(fab, worker)
    with connect(hub_process) as fab:
        assert sorted(invoices(fab)) == list(range(ORDERS))


def test_schedules_and_ids_are_taken_once(hub_process: HubProcess) -> None:
    with connect(hub_process) as fab:
        schedules = set()
        for number in range(40):
            receipt = fab.publish("later", b"%d" % number, delay=3600, timeout=PATIENCE_S)
            assert isinstance(receipt, Scheduled)
            schedules.add(receipt.id)
            fab.publish("once", b"%d" % number, id=str(number), timeout=PATIENCE_S)
            if number % 15 == 7:
                hub_process.kill()
                hub_process.start()
        again = fab.publish_many("once", [b"again"] * 40, ids=[str(number) for number in range(40)], timeout=PATIENCE_S)
        assert (again.duplicates, len(set(again.seqs))) == (40, 40)
        assert {schedule.id for schedule in fab.schedules(timeout=PATIENCE_S)} == schedules
        assert len(schedules) == 40


def test_keys_stay_in_order_across_a_death(hub_process: HubProcess) -> None:
    done: dict[str, list[int]] = {"a": [], "b": []}

    def handle(message: Message) -> None:
        time.sleep(0.002)
        if int(message.body) % 11 == 0 and message.attempt == 1:
            raise Retry(0.01)
        done[message.key or ""].append(int(message.body))

    with connect(hub_process) as fab:
        for number in range(200):
            fab.publish_nowait("t", b"%d" % number, key="ab"[number % 2])
        fab.flush(PATIENCE_S)
        how = {"group": "g", "order": "key", "concurrency": 4}
        worker = threading.Thread(target=fab.work, args=("t", handle), kwargs=how)
        worker.start()
        while len(done["a"]) < 30:
            time.sleep(0.005)
        hub_process.kill()
        hub_process.start()
        eventually(lambda: fab.info("group", "g", timeout=PATIENCE_S)["floor"] == 200)
        end(fab, worker)
    for place, key in enumerate("ab"):
        # A message may be handled twice around the death, but none before an earlier one of its key.
        first_times = list(dict.fromkeys(done[key]))
        assert first_times == list(range(place, 200, 2))


def test_a_responder_is_back_after_the_hub(hub_process: HubProcess) -> None:
    with connect(hub_process) as shop, connect(hub_process) as fab:
        responder = threading.Thread(target=shop.respond, args=("q", lambda r: r.body))
        responder.start()
        answers = 0
        for number in range(20):
            if number == 10:
                hub_process.kill()
                hub_process.start()
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                try:
                    answers += fab.request("q", b"x", timeout=5).body == b"x"
                    break
                except (fabric_client.NoResponders, fabric_client.ConnectionLost, fabric_client.TimedOut):
                    time.sleep(0.05)
        assert answers == 20
        end(shop, responder)
