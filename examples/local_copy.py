"""A consumer with a local copy; a refresh tells it to load the copy anew.

python examples/local_copy.py
"""

import os
import threading
import time

import fabric_client
from fabric_client import Client, Refresh

GROUP = f"copy-{os.getpid()}"  # a group of its own: each copy needs every message


def follow(fab: Client, copy: dict[str | None, str], loaded: threading.Event) -> None:
    def on_refresh(refresh: Refresh) -> None:
        if refresh.begins:
            print("the copy is dropped")
            copy.clear()
        else:
            print("the copy is whole again:", dict(sorted(copy.items(), key=str)))
            refresh.ready()
            loaded.set()

    for message in fab.consume("prices.*", group=GROUP, on_refresh=on_refresh, timeout=3):
        with message:
            copy[message.key] = message.text


def main() -> None:
    copy: dict[str | None, str] = {}
    loaded = threading.Event()
    with fabric_client.connect() as fab:
        for fruit, price in (("apple", "3"), ("pear", "4"), ("apple", "5")):
            fab.publish("prices.fruit", price, key=fruit)
        thread = threading.Thread(target=follow, args=(fab, copy, loaded))
        thread.start()
        while copy != {"apple": "5", "pear": "4"}:
            time.sleep(0.01)
        copy["apple"] = "wrong"  # damage the copy; the refresh repairs it
        fab.flush()
        fab.admin.groups.refresh(GROUP, start="first")
        loaded.wait(10)
        thread.join()
        fab.admin.groups.delete(GROUP)


if __name__ == "__main__":
    main()
