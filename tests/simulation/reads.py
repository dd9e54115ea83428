"""The observer's knowledge of GET: what is read is what is stored, all of it and in order."""

from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from tests.simulation.blocks import idents_of
from tests.simulation.disk import stamp_of
from tests.simulation.ledgers import Read, Session
from tests.simulation.stored import Stored


class Reads(Stored):
    def get(self, session: Session, message: m.Get) -> int:
        if session.blocked:
            return Code.BUSY
        session.gets[message.rid] = Read(message.fields)
        return 0

    def got(self, session: Session, message: m.Got) -> None:
        read = session.gets[message.rid]
        seqs = seqs_of(message)
        assert idents_of(message.block) == tuple([self.log[seq - 1] for seq in seqs]), "J3: bytes are those published"
        assert seqs[-1] <= self.durable, "C2: read before it is on disk"
        for seq in seqs:
            assert seq > (read.found[-1] if read.found else read.start - 1), "G1: what is read comes in order"
            assert self.topics[seq - 1] in read.wanted, f"G1: nobody asked for {self.topics[seq - 1]}"
            read.found.append(seq)

    def all_got(self, read: Read, message: m.Ok) -> None:
        fields = message.fields
        self.counts["reads"] += 1
        assert fields["count"] == len(read.found) <= read.n
        assert fields["more"] or fields["next"] > self.served, "G2: there is more"
        for seq in range(max(read.start, self.first_seq, 1), min(fields["next"], len(self.log) + 1)):
            if self.topics[seq - 1] in read.wanted and not self.may_be_dropped(seq) and not self.may_be_settled(seq):
                assert seq in read.found, f"G2: {seq} was left out"

    def may_be_settled(self, seq: int) -> bool:
        """Whether its topic lets go of what all groups have settled."""
        return self.topics[seq - 1] in self.until_acked


def seqs_of(message: m.Got) -> list[int]:
    flat = message.seqs
    if flat:
        return [seq for at in range(0, len(flat), 2) for seq in range(flat[at], flat[at] + flat[at + 1])]
    base, last, _ = stamp_of(message.block)
    return list(range(base, last + 1))
