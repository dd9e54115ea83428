"""The block store keeps the latest blocks, and no more than its memory allows."""

from fabric.router.block_store import GONE_MAX, SHELF_BYTES_MAX, BlockStore
from fabric_protocol.block import Block, encode
from tests.router.world import MemoryReader

RAW = encode("a", [bytes(100_000)])


def filled(count: int, *, committed: bool) -> BlockStore:
    block_store = BlockStore(MemoryReader())
    for seq in range(1, count + 1):
        block_store.add(Block(RAW).stamped(seq, seq))
        if committed:
            block_store.committed = seq
    return block_store


def test_memory_is_bounded_whatever_passes_through() -> None:
    block_store = filled(4 * SHELF_BYTES_MAX // len(RAW), committed=True)
    held = sum(len(block.raw) for block in block_store._blocks)
    assert held <= SHELF_BYTES_MAX + (GONE_MAX + 1) * len(RAW)


def test_what_is_not_on_disk_stays_however_much_it_is() -> None:
    count = 2 * SHELF_BYTES_MAX // len(RAW)
    block_store = filled(count, committed=False)
    first = block_store.at(1)
    assert isinstance(first, Block)
    assert first.base_seq == 1


def test_the_latest_blocks_are_found_in_memory_and_the_others_asked_of_the_reader() -> None:
    count = 2 * SHELF_BYTES_MAX // len(RAW)
    block_store = filled(count, committed=True)
    assert block_store.at(1) is None  # this reader has nothing
    for seq in (count - 10, count):
        found = block_store.find(seq, count, lambda topic: True).block
        assert isinstance(found, Block)
        assert found.base_seq == seq
    assert block_store.find(count + 1, count, lambda topic: True).block is None
