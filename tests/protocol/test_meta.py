"""Maps of a peer are decoded as msgpack does; maps that would cost too much are refused before decoding."""

import struct
import tracemalloc
from typing import Final

import msgpack
import pytest

from clients.vectors import make
from fabric_protocol import messages as m
from fabric_protocol import meta, wire
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.wire import Verb
from tests.seeds import seeded

TRACED_BYTES_MAX: Final = 16 << 20
LONG: Final = b"\xdc" + struct.pack(">H", 65_535)
LONGER: Final = b"\xdd" + struct.pack(">I", 65_536)


@pytest.mark.parametrize("message", [message for _, message in make.good_frames()], ids=lambda one: type(one).__name__)
def test_good_frames_are_the_same_either_way(message: m.ToHub | m.ToClient) -> None:
    frames = wire.encode(message)
    assert wire.decode_command(frames) == wire.decode(frames)


def test_long_acks_and_transactions_are_read_as_they_are() -> None:
    rng = seeded("long acks")
    for _ in range(20):
        rows = tuple(_row(rng.randrange(5), rng.randint(1, 1 << 40)) for _ in range(rng.choice((100, 3_000, 20_000))))
        ack = wire.encode(m.Settle(3, 7, rows))
        assert wire.decode_command(ack) == wire.decode(ack) == m.Settle(3, 7, rows)
        txn = wire.encode(m.Transact(9, 4, ((1, rows[:50]), (2, rows[50:])), b"block"))
        assert wire.decode_command(txn) == wire.decode(txn)


def _row(verdict: int, first: int) -> tuple[int, int, int, object]:
    arguments = {1: (5, "later"), 3: "broken", 4: 10}
    return verdict, first, first + 3, arguments.get(verdict)


BOMBS: Final = {
    "arrays": LONG * 1_000,
    "arrays with the rest of a frame": (LONG * 1_000).ljust(1 << 20, b"\x00"),
    "longer arrays": LONGER * 1_000,
    "one element before each array": b"\x93\x32\x00" + b"\xdc\x00\xff\x00" * 1_000,
    "an ACK": b"\x94\x24\x01\x00" + (LONG * 1_000).ljust(1 << 19, b"\x00"),
    "an ACK with its rows nested": b"\x94\x24\x01\x00\x91" + (LONG * 1_000).ljust(1 << 19, b"\x00"),
    "an ACK with a nested channel": b"\x94\x24" + (LONG * 1_000).ljust(1 << 19, b"\x00"),
    "a TXN": b"\x95\x35\x00\x05\x00" + (LONG * 1_000).ljust(1 << 19, b"\x00"),
    "an INFO": b"\x94\x32\x00\x05\x81\xa1x" + (LONG * 1_000).ljust(30_000, b"\x00"),
    "a short INFO": b"\x94\x32\x00\x05\x81\xa1x" + LONG * 80,
    "an OK": b"\x94\x06\x00\x05\x81\xa1x" + (LONG * 1_000).ljust(30_000, b"\x00"),
}


@pytest.mark.parametrize("what", BOMBS)
def test_nested_arrays_cost_little_memory(what: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError) as caught:
            wire.decode_command([BOMBS[what]])
        wire.request_id([BOMBS[what]])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.code in (Code.BAD_META, Code.TOO_LARGE, Code.BAD_FRAME)
    assert peak < TRACED_BYTES_MAX


@pytest.mark.parametrize("verb", [verb for verb in Verb if verb not in (Verb.ACK, Verb.TXN)])
def test_a_map_of_more_than_32_kib_is_refused_before_it_is_unpacked(verb: Verb) -> None:
    data = msgpack.packb([verb, 1, 9, {"what": list(range(1 << 16))[:40_000]}])
    with pytest.raises(ProtocolError) as caught:
        wire.decode_command([data])
    assert caught.value.code is Code.TOO_LARGE
    assert wire.request_id([data]) == (1, 9)


def test_the_longest_lists_of_a_map_pass() -> None:
    """A resume of all channels, and the dead letters that one ADMIN may name, whatever their numbers."""
    rng = seeded("longest lists")
    subs = [[chan, rng.randrange(1 << 62)] for chan in range(1, 1_025)]
    hello = wire.encode(m.Hello(1, {"proto": 1, "resume": {"session": bytes(16), "subs": subs}}))
    assert wire.decode_command(hello) == wire.decode(hello)
    admin = wire.encode(m.Admin(1, {"op": "dlq.discard", "seqs": [rng.randrange(1 << 62) for _ in range(1_000)]}))
    assert wire.decode_command(admin) == wire.decode(admin)
    odd = wire.encode(m.Admin(1, {"seqs": [0xDCDD_DCDD_DCDC] * 200}))
    assert wire.decode_command(odd) == wire.decode(odd)


@pytest.mark.parametrize(
    "data",
    [
        msgpack.packb([36, 1, 9, [[0, 1, 1]] * 100]) + b"\x00",
        msgpack.packb([36, 1, 9, [[0, 1, 1]] * 100])[:-1],
        msgpack.packb([36, 1, 9, [list(range(17))] * 100]),
        msgpack.packb([36, 1, 9, "x" * 300]),
        msgpack.packb([53, 1, 9, 0, [[1, [[0, 1, 1]] * 100, 5]]]),
        msgpack.packb([53, 1, 9, 0, [[1, [[0, 1, 1]] * 40_000], [2, [[0, 1, 1]] * 40_000]]]),
        msgpack.packb({"a": "x" * 300}),
    ],
)
def test_a_wrong_ack_is_bad_meta(data: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        wire.decode_command([data, b""] if data[1] == Verb.TXN else [data])
    assert caught.value.code is Code.BAD_META


def test_the_id_of_a_request_is_read_from_its_head() -> None:
    assert meta.request_id(msgpack.packb([99, 3, 1 << 60, "x" * 1_000])) == (3, 1 << 60)
    assert meta.request_id(b"\x94\x24\x03\x09" + LONG * 1_000) == (3, 9)
    for bad_chan in (b"\x93\x01\xa1x\x02", b"\x93\x01\xff\x02"):
        assert meta.request_id(bad_chan) == (0, 2)
    for junk in (b"", b"\x92\x01\x02", b"\xc1", LONG * 1_000, b"\xa5abcde"):
        assert meta.request_id(junk) == (0, 0)
