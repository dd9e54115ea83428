"""An asyncio worker that handles several messages at once and publishes a result for each.

python examples/async_worker.py [GROUP] [SECONDS]
"""

import asyncio
import sys

import fabric_client

AT_ONCE = 8


async def handle(fab: fabric_client.AsyncClient, message: fabric_client.Message) -> None:
    async with message:  # leaving it acks; an exception asks the hub to deliver it again
        await asyncio.sleep(0.01)  # some slow service
        await fab.publish("invoices.created", {"order": message.data["id"]})
        print(f"invoice for order {message.data['id']}")


async def main(group: str = "invoicing", seconds: str = "") -> None:
    timeout = float(seconds) if seconds else None
    async with fabric_client.aconnect() as fab, asyncio.TaskGroup() as tasks:
        free = asyncio.Semaphore(AT_ONCE)
        async for message in fab.consume("orders.*", group=group, prefetch=2 * AT_ONCE, timeout=timeout):
            await free.acquire()
            tasks.create_task(handle(fab, message)).add_done_callback(lambda _: free.release())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
