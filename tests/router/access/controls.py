"""The same attempts with all rights: each is a good command, or fails for a reason that is not a right.

So a row of the table is refused for its right, and not for a mistake in the row.
"""

from typing import Final

from fabric.router.access.role import ADMIN_RIGHTS, Role
from fabric_protocol.errors import Code

_HUB_TOPICS: Final = ("$sys.#", "$dlq.#", "$redrive.#", "$gateway.#")
FULL: Final = Role(
    "full",
    publish=("#", *_HUB_TOPICS),
    subscribe=("#", *_HUB_TOPICS),
    groups=("*",),
    request=("#", *_HUB_TOPICS),
    respond=("#", *_HUB_TOPICS),
    producers=("*",),
    admin=frozenset(ADMIN_RIGHTS),
)
# Topics of the hub: no right allows them.
RESERVED: Final = {"PUB $sys.x", "PUB $dlq.billing", "PUB billing.DLQ", "PUB $redrive.billing", "REQ $sys.x"}
# The other reason of each row that is no good command in the hub of `place`.
OTHERWISE: Final = {
    **dict.fromkeys(RESERVED, Code.FORBIDDEN),
    "SUB a foreign group with other patterns": Code.GROUP_MISMATCH,
    "SUB such a group with patterns": Code.GROUP_MISMATCH,
    "SUB by the name that the hub gives": Code.FORBIDDEN,
    "SUB without the right to groups": Code.GROUP_MISMATCH,
    "SUB respond as a service of a foreign name": Code.GROUP_MISMATCH,
    "REQ prices": Code.NO_RESPONDERS,
    "REQ tax.a": Code.NO_RESPONDERS,
    "REQ prices.a.b": Code.NO_RESPONDERS,
    "INFO group not-there": Code.NOT_FOUND,
    "INFO dlq not-there": Code.NOT_FOUND,
    "producer.delete without rights": Code.NOT_FOUND,
    "producer.delete without hub": Code.NOT_FOUND,
    "topic.update of a denied topic": Code.NOT_FOUND,
    "topic.update of dead letters": Code.NOT_FOUND,
    "topic.delete of a denied topic": Code.NOT_FOUND,
    "queue.delete of a topic that it may not read": Code.NOT_FOUND,
    "queue.purge of a topic that it may not read": Code.NOT_FOUND,
    "group.create of one with patterns that are too wide": Code.CONFLICT,
    "queue.create with such a group": Code.CONFLICT,
}
