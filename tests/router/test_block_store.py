"""The block store keeps the latest blocks, and no more than its memory allows."""

from collections import Counter
from collections.abc import Callable

from fabric.router.block_store import GONE_MAX, KEPT_BLOCKS_MAX, KEPT_BYTES_MAX, MEMORY_BYTES_MAX, BlockStore
from fabric.router.clock import Clock
from fabric.router.shared import Shared
from fabric_protocol.block import Block, encode
from tests.router.world import MemoryReader

RAW = encode("a", [bytes(100_000)])


def filled(count: int, *, committed: bool) -> BlockStore:
    shared = Shared(MemoryReader(), Clock(), 1, 0, Counter())
    block_store = shared.block_store
    for seq in range(1, count + 1):
        block_store.add(Block(RAW).stamped(seq, seq))
        if committed:
            shared.committed_seq = seq
    return block_store


def test_memory_is_bounded_whatever_passes_through() -> None:
    block_store = filled(4 * MEMORY_BYTES_MAX // len(RAW), committed=True)
    held = sum(len(block.raw) for block in block_store._blocks)
    assert held <= MEMORY_BYTES_MAX + (GONE_MAX + 1) * len(RAW)


def test_what_is_not_on_disk_stays_however_much_it_is() -> None:
    count = 2 * MEMORY_BYTES_MAX // len(RAW)
    block_store = filled(count, committed=False)
    first = block_store.at(1)
    assert isinstance(first, Block)
    assert first.base_seq == 1


def test_the_latest_blocks_are_found_in_memory_and_the_others_asked_of_the_reader() -> None:
    count = 2 * MEMORY_BYTES_MAX // len(RAW)
    block_store = filled(count, committed=True)
    assert block_store.at(1) is None  # this reader has nothing
    for seq in (count - 10, count):
        found = block_store.find(seq, count, lambda topic: True).block
        assert isinstance(found, Block)
        assert found.base_seq == seq
    assert block_store.find(count + 1, count, lambda topic: True).block is None


def test_a_removed_message_has_no_time_though_its_block_is_in_memory() -> None:
    shared = Shared(MemoryReader(), Clock(), 1, 0, Counter())
    for seq in (1, 2):
        shared.block_store.add(Block(RAW).stamped(seq, 1_000 * seq))
    assert shared.block_store.time_of(1) == 1_000
    shared.removed_below = 2
    assert (shared.block_store.time_of(1), shared.block_store.time_of(2)) == (0, 2_000)


class CountingReader(MemoryReader):
    """Counts the searches on disk."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = [Block(RAW).stamped(seq, seq) for seq in range(1, count + 1)]
        self.searches = 0

    def next_block(self, seq: int, wanted: Callable[[str], bool]) -> tuple[Block | None, int]:
        self.searches += 1
        return super().next_block(seq, wanted)


def kept(count: int) -> tuple[BlockStore, CountingReader]:
    """A block store that has kept each of the blocks on disk, the first one first."""
    reader = CountingReader(count)
    block_store = Shared(reader, Clock(), 1, 0, Counter()).block_store
    for block in reader.blocks:
        block_store.keep(block.base_seq, block)
    return block_store, reader


def test_a_block_that_is_kept_is_found_without_a_search() -> None:
    block_store, reader = kept(3)
    assert block_store.find(2, 3, lambda topic: topic == "a") == (reader.blocks[1], 2, False)
    assert reader.searches == 0
    assert block_store.find(2, 3, lambda topic: topic == "b").block is None
    assert reader.searches == 1


def test_only_some_blocks_are_kept_and_none_that_is_large() -> None:
    block_store, reader = kept(KEPT_BLOCKS_MAX + 1)
    large = KEPT_BLOCKS_MAX + 2
    block_store.keep(large, Block(encode("a", [bytes(KEPT_BYTES_MAX)])).stamped(large, 1))
    for seq in (1, large):
        block_store.find(seq, large, lambda topic: True)
    assert reader.searches == 2
    block_store.find(KEPT_BLOCKS_MAX + 1, KEPT_BLOCKS_MAX + 1, lambda topic: True)
    assert reader.searches == 2


def test_a_kept_block_that_retention_removes_is_not_found() -> None:
    block_store, reader = kept(3)
    reader.begins_at, reader.blocks = 2, reader.blocks[1:]
    assert block_store.find(1, 3, lambda topic: True).block is reader.blocks[0]
    block_store.discard(reader.blocks.pop(0))
    assert block_store.find(2, 3, lambda topic: True).block is reader.blocks[0]
    assert reader.searches == 2


def test_a_discarded_block_that_is_still_on_disk_is_not_found() -> None:
    """Its groups were told that its messages are gone."""
    block_store, reader = kept(3)
    block_store.discard(reader.blocks[0])
    assert block_store.find(1, 3, lambda topic: True) == (None, 2, True)
    block_store.discard(reader.blocks[2])
    assert block_store.find(3, 3, lambda topic: True) == (None, 4, False)
