"""Share the work of a group: start it several times and watch the orders being divided.

    python examples/consume.py [GROUP] [SECONDS]

Ends when no order has come for SECONDS (by default it waits for ever).
"""

import sys

import fabric_client


def charge(order: dict[str, float]) -> None:
    if order["total"] > 1000:
        raise ValueError("too much for one card")


def main(group: str = "billing", seconds: str = "") -> None:
    timeout = float(seconds) if seconds else None
    with fabric_client.connect() as fab:
        # prefetch: this consumer holds a few messages, the others stay in the hub for other consumers.
        for message in fab.consume("orders.created", group=group, prefetch=20, timeout=timeout):
            try:
                with message:  # a normal end acks the message; an exception retries it
                    charge(message.data)
                    print(f"charged order {message.data['id']} (seq {message.seq}, attempt {message.attempt})")
            except ValueError as error:
                print(f"order {message.data['id']}: {error}; it will come again")


if __name__ == "__main__":
    main(*sys.argv[1:])
