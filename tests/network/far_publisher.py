"""A program that publishes numbers one by one until its standard input ends. It prints each confirmed number, and
`away` when it has lost its connection."""

import sys
import threading
import time

import fabric_client
from tests.patience import PATIENCE_S


def main(credentials: str, topic: str) -> None:
    ended = threading.Event()
    with fabric_client.connect(credentials=credentials, timeout=PATIENCE_S, heartbeat=0.2) as fab:

        def read() -> None:
            sys.stdin.read()
            ended.set()

        def watch() -> None:
            was_connected = True
            while not ended.is_set():
                if was_connected != fab.connected:
                    was_connected = not was_connected
                    print("back" if was_connected else "away", flush=True)
                time.sleep(0.01)

        for work in (read, watch):
            threading.Thread(target=work, daemon=True).start()
        number = 0
        while not ended.is_set():
            fab.publish(topic, b"%d" % number, timeout=PATIENCE_S)
            print(number, flush=True)
            number += 1
    print("end", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
