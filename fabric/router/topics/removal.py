"""Removal: how many messages and bytes of a topic a purge would remove, counted without removing them.

The counts of a topic with settings are known for a purge of all. Others are counted from the heads of the blocks, a
bounded number of them with each command: `more` says that there may be others, and `next` is the `after` of the next
command. Nothing is remembered between two commands.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fabric.router.fields import bounded
from fabric.router.topics.topic import places_of
from fabric_protocol.block import Block
from fabric_protocol.block_contents import Contents
from fabric_protocol.bounds import NUMBER_MAX

if TYPE_CHECKING:
    from fabric.router.shared import Shared
    from fabric.router.topics.table import TopicTable

READS_MAX: Final = 8  # calls of the reader in one command, about a millisecond each
TOPICS_MAX: Final = 2_048  # of the blocks that one command reads, and those of the last block: some milliseconds

Answer = dict[str, Any]


def removal(table: "TopicTable", shared: "Shared", name: str, below: int | None, fields: Mapping[str, Any]) -> Answer:
    """What a purge below a seq would remove; None: a purge of all. Messages that are not on disk yet do not count."""
    topic, after = table.get(name), bounded(fields, "after", 0, 0, NUMBER_MAX)
    floor = max(shared.first_seq, shared.removed.get(name, 0), topic.floor if topic is not None else 0)
    last_seq = shared.committed_seq if below is None else min(below - 1, shared.committed_seq)
    answer: Answer = {"topic": name, "purged": False, "floor": floor, "up_to": last_seq}
    if below is None and topic is not None and topic.counting is None and not after:
        return {**answer, "removed": topic.msgs, "bytes": topic.size, "more": False}
    at, msgs, size, topics = max(floor, after + 1), 0, 0, 0
    for _ in range(READS_MAX):
        if at > last_seq or topics >= TOPICS_MAX:
            break
        found, cursor = shared.block_store.contents(at, last_seq, sizes=True)
        for contents in found:
            more_msgs, more_bytes = _in_block(shared, contents, name, at, last_seq)
            msgs, size, topics = msgs + more_msgs, size + more_bytes, topics + len(contents.topics)
        at = cursor
    answer |= {"removed": msgs, "bytes": size, "more": at <= last_seq}
    return {**answer, "next": at - 1} if answer["more"] else answer


def _in_block(shared: "Shared", contents: Contents, name: str, first_seq: int, last_seq: int) -> tuple[int, int]:
    """The messages of a topic in a block, of the seqs first_seq..last_seq, and their bytes."""
    base = contents.base_seq
    count = next((count for count in contents.topics if count.topic == name), None)
    if count is None:
        return 0, 0
    if base + count.first >= first_seq and base + count.last <= last_seq:
        return count.messages, count.bytes
    block = shared.block_store.at(contents.last_seq)
    if not isinstance(block, Block):
        return 0, 0
    places = [at for at in places_of(block, name, max(first_seq - base, 0)) if base + at <= last_seq]
    payloads = block.payloads()
    return len(places), sum(len(payloads[at]) for at in places)
