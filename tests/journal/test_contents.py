"""What blocks have, read without their bodies: the same as the blocks say."""

from contextlib import closing
from pathlib import Path

from fabric.journal.journal import Journal
from fabric.records import Append, Discard
from fabric_protocol.block import Block, encode
from fabric_protocol.block_contents import TopicCount


def test_contents_are_those_of_the_blocks(tmp_path: Path) -> None:
    raws = [
        encode("a", [b"x", b"yy"], keys=[b"k", b""]),
        encode(["a", "b", "a"], [b"1", b"22", b"333"], headers=[{"h": "v"}, None, {}], priority=9),
        encode("c", [b""], ids=[b"i"]),
    ]
    with closing(Journal.open(tmp_path / "j")) as journal:
        seq, blocks = 1, list[Block]()
        for raw in raws:
            blocks.append(Block(raw).stamped(seq, 1_000 * seq))
            seq += blocks[-1].count
        journal.commit([Append(block.raw) for block in blocks])
        found, cursor = journal.reader().contents(1, sizes=True)
        assert cursor == seq
        assert [(one.base_seq, one.last_seq, one.ts_us, one.priority) for one in found] == [
            (block.base_seq, block.last_seq, block.ts_us, block.priority) for block in blocks
        ]
        assert [one.topics for one in found] == [
            (TopicCount("a", 2, 3, 0, 1),),
            (TopicCount("a", 2, 4, 0, 2), TopicCount("b", 1, 2, 1, 1)),
            (TopicCount("c", 1, 0, 0, 0),),
        ]
        assert journal.reader().contents(4)[0][0].base_seq == 3  # the block with the seq is whole
        assert journal.reader().time_of(4) == 3_000
        journal.commit([Discard((3,))])
        assert [one.base_seq for one in journal.reader().contents(1)[0]] == [1, 6]
        assert journal.reader().contents(seq) == ([], seq)
