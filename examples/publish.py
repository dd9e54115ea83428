"""Publish some orders. Start a hub first: fabric hub

python examples/publish.py [COUNT]
"""

import sys

import fabric_client


def main(count: int = 10) -> None:
    with fabric_client.connect() as fab:
        # One message. publish() returns when it is on the hub's disk.
        receipt = fab.publish("orders.created", {"id": 0, "total": 9.99}, headers={"source": "example"})
        print(f"order 0 has seq {receipt.seq}")

        # Many messages at full speed. The client sends them in blocks; flush() returns when all are on disk.
        for number in range(1, count):
            fab.publish_nowait("orders.created", {"id": number, "total": number * 1.5})
        fab.flush()
        print(f"published {count} orders")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
