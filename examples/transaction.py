"""Exactly one invoice for each order, however often a worker fails: the publish and the ack are one commit.

python examples/transaction.py [SECONDS]
"""

import logging
import sys

import fabric_client
from fabric_client import Message, Reject, Transaction

TROUBLE: set[int] = set()


def invoice(message: Message, ctx: Transaction) -> None:
    order = message.data["id"]
    if order == 13:
        raise Reject("nobody pays this one")  # to the dead letters, now
    ctx.publish("invoices.created", {"order": order}, key=str(order))
    if order % 5 == 0 and order not in TROUBLE:
        TROUBLE.add(order)
        raise RuntimeError("the printer is on fire")  # nothing was published; the message comes again


def main(seconds: str = "2") -> None:
    logging.disable(logging.ERROR)  # the client logs what a handler raises
    with fabric_client.connect() as fab:
        fab.publish_many("orders.placed", [{"id": number} for number in range(20)])
        fab.work("orders.placed", invoice, group="invoicing", concurrency=4, backoff_first=0.1, timeout=float(seconds))
        invoices = [message.data["order"] for message in fab.get("invoices.created", n=1000)]
        letters = fab.admin.dead_letters("invoicing").list()["letters"]
        print(f"{len(invoices)} invoices for {len(set(invoices))} orders")
        print(f"dead: {[letter['error'] for letter in letters]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
