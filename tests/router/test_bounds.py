"""Every number of a peer: accepted within its range, refused with its code beyond, and never an exception."""

import ast
from pathlib import Path
from typing import Any, Final

import msgpack
import pytest

import fabric
from fabric.journal.journal import Journal
from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.bounds import TABLE, Bound
from fabric_protocol.errors import ProtocolError
from tests import numbers
from tests.commands import SAMPLES, handler_of
from tests.router.world import World

A: Final = b"a"
VERBS: Final = {"Publish": "PUB", "Transact": "TXN", "Settle": "ACK", "Subscribe": "SUB", "Request": "REQ"}


class Table(World):
    """What arrives as frames is decoded as the hub does it; what is written also goes to a journal."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self.journal = journal
        self.hello(A, producer={"name": "p"}, ttl_ms=600_000)
        self.sub(A, numbers.CHAN, "t", group="g")
        self.pub(A, "t", "1")

    def write(self, records: Any) -> None:
        records = list(records)
        if hasattr(self, "journal"):
            self.journal.commit(records)
        super().write(records)

    def frames(self, peer: bytes, frames: list[bytes]) -> list[m.ToClient]:
        """All that a peer hears at once because of some frames."""
        out: list[tuple[bytes, m.ToClient]] = []
        try:
            self.router.step(wire.decode(frames), peer, self.now)
            out += self.router.take_frames()
        except ProtocolError as error:
            self.router.refuse(error, peer, *wire.request_id(frames))
            out += self.router.take_frames()
        self.router.tick(self.now)
        out += self.router.take_frames()
        heard = [message for to, message in out if to == peer]
        for message in heard:
            wire.encode(message)
        self.commit()
        return heard


@pytest.fixture
def world(tmp_path: Path) -> Table:
    return Table(Journal.open(tmp_path / "journal"))


@pytest.mark.parametrize("bound", TABLE, ids=lambda bound: f"{bound.verb}-{bound.field}")
def test_a_number_is_accepted_within_its_range_only(world: Table, bound: Bound) -> None:
    """And each record that follows from it can be written."""
    for n, value in enumerate(numbers.values(bound)):
        rid = 1000 + n
        frames = numbers.command(bound, value, rid)
        if frames is None:
            continue
        peer = b"new %d" % n if bound.verb == "HELLO" else A
        errors = [message for message in world.frames(peer, frames) if isinstance(message, m.Err)]
        if numbers.is_within(bound, value):
            refused = [error for error in errors if error.code == bound.code]
            assert not refused or (bound.verb, bound.field) in numbers.REFUSED_ANYHOW, (value, refused)
        else:
            nameless = bound.field == "rid" or bound.verb == "CREDIT"
            assert [(e.rid, e.code) for e in errors] == [(0 if nameless else rid, bound.code)], (value, errors)
    assert world.say(A, m.Ping(7)) == [m.Pong(7)]


def test_every_number_that_the_hub_reads_is_in_the_table() -> None:
    """Positional fields in the decoder; fields of maps where the router asks for them by name."""
    named = {bound.field.rpartition(".")[2].rpartition(": ")[2] for bound in TABLE}
    found = set()
    for path in sorted(Path(fabric.__file__).parent.glob("router/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(ast.Name("bounded" | "_optional"), [_, ast.Constant(field), *_]):
                    found.add(field)
    assert len(found) > 20
    assert found <= named, "a number without a row in fabric_protocol/bounds.py"


def test_every_positional_number_is_in_the_table() -> None:
    verbs = {type(sample.message): handler_of(sample) for sample in SAMPLES}
    assert set(verbs) == set(m.ToHub.__args__)
    listed = {(bound.verb, bound.field) for bound in TABLE}
    found = 0
    for kind in verbs:
        verb = VERBS.get(kind.__name__, kind.__name__.upper())
        for field, of_type in kind.__annotations__.items():
            if of_type is int and field not in ("chan", "rid"):
                assert (verb, field) in listed, f"{verb} {field} has no row in fabric_protocol/bounds.py"
                found += 1
    assert found >= 8


@pytest.mark.parametrize("junk", [[], {}, None, b"1", [1], {"n": 1}])
def test_what_is_no_number_is_refused_as_well(world: Table, junk: Any) -> None:
    for bound in TABLE:
        frames = numbers.command(bound, junk, 9) if not bound.field.startswith("block") else None
        if frames is None:
            continue
        for message in world.frames(b"new" if bound.verb == "HELLO" else A, frames):
            assert not isinstance(message, m.Welcome) or junk is None
            if isinstance(message, m.Err):
                msgpack.packb(message)
        world.router.session_table._by_peer.pop(b"new", None)
    assert world.say(A, m.Ping(7)) == [m.Pong(7)]
