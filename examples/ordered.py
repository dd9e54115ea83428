"""Messages of one key stay in order, also when one of them fails and waits; messages of other keys overtake it.

python examples/ordered.py
"""

import threading
import time

import fabric_client
from fabric_client import Message, Retry


def main() -> None:
    seen: dict[str, list[int]] = {"alice": [], "bob": []}
    lock = threading.Lock()

    def handle(message: Message) -> None:
        customer, step = message.key or "", message.data["step"]
        if (customer, step) == ("alice", 2) and message.attempt == 1:
            raise Retry(0.3, "alice is on holiday")  # later steps of the key wait for this one
        time.sleep(0.01)
        with lock:
            seen[customer].append(step)

    with fabric_client.connect() as fab:
        for step in range(5):
            for customer in seen:
                fab.publish_nowait("steps", {"step": step}, key=customer)
        fab.flush()
        fab.work("steps", handle, group="stepping", order="key", concurrency=4, timeout=1.5)
    for customer, steps in seen.items():
        print(customer, steps)


if __name__ == "__main__":
    main()
