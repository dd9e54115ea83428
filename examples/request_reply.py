"""Ask and answer: two clients of one hub, one reply, several replies, and a topic without a responder.

python examples/request_reply.py
"""

import threading
import time
from collections.abc import Iterator

import fabric_client
from fabric_client import Client, NoResponders, RemoteError, Request


def quote(request: Request) -> int:
    prices = {"apple": 3, "pear": 4}
    return prices[request.text]


def count(request: Request) -> Iterator[str]:
    for number in range(1, int(request.text) + 1):
        yield f"{number}!"


def shop(fab: Client) -> None:
    counting = threading.Thread(target=fab.respond, args=("shop.count", count), kwargs={"timeout": 2})
    counting.start()
    fab.respond("shop.quote", quote, group="shops", concurrency=4, timeout=2)
    counting.join()


def main() -> None:
    with fabric_client.connect(name="shop") as seller, fabric_client.connect(name="customer") as fab:
        try:
            fab.request("shop.quote", "apple")
        except NoResponders:
            print("the shop is closed")
        thread = threading.Thread(target=shop, args=(seller,))
        thread.start()
        time.sleep(0.5)
        print("an apple costs", fab.request("shop.quote", "apple", timeout=5).data)
        print(*[reply.text for reply in fab.request("shop.count", "3", replies_max=100)])
        try:
            fab.request("shop.quote", "unicorn")
        except RemoteError as error:
            print("a unicorn:", error)
        thread.join()


if __name__ == "__main__":
    main()
