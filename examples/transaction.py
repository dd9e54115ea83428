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
        raise Reject("order 13 is never paid")  # a dead letter at once
    ctx.publish("parcels.invoiced", {"order": order}, key=str(order))
    if order % 5 == 0 and order not in TROUBLE:
        TROUBLE.add(order)
        raise RuntimeError("the printer is on fire")  # nothing is published; the message is delivered again


def main(seconds: str = "2") -> None:
    logging.disable(logging.ERROR)  # the client logs what a handler raises
    with fabric_client.connect() as fab:
        first = fab.publish_many("parcels.packed", [{"id": number} for number in range(20)]).seq
        fab.work("parcels.packed", invoice, group="parcels", concurrency=4, backoff_first=0.1, timeout=float(seconds))
        # Only of this run: the hub may have messages of earlier runs.
        invoices = [message.data["order"] for message in fab.get("parcels.invoiced", seq=first, n=1000)]
        letters = fab.admin.dead_letters("parcels").list(after=first)["letters"]
        print(f"{len(invoices)} invoices for {len(set(invoices))} orders")
        print(f"dead: {[letter['error'] for letter in letters]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
