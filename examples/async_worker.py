"""An asyncio worker that handles several messages at once and publishes a result for each, together with its ack.

python examples/async_worker.py [GROUP] [SECONDS]
"""

import asyncio
import sys

import fabric_client
from fabric_client import Message, Transaction

AT_ONCE = 8


async def handle(message: Message, ctx: Transaction) -> None:
    """If this returns, the message is acked; if it raises, the hub delivers the message again."""
    await asyncio.sleep(0.01)  # some slow service
    ctx.publish("invoices.created", {"order": message.data["id"]})
    print(f"invoice for order {message.data['id']}")


async def main(group: str = "invoicing", seconds: str = "") -> None:
    timeout = float(seconds) if seconds else None
    async with fabric_client.aconnect() as fab:
        await fab.work("orders.created", handle, group=group, concurrency=AT_ONCE, timeout=timeout)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
