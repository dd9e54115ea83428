"""Every message survives the wire, and every list of byte strings is a message or a ProtocolError."""

import random
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.bounds import HORIZON_MS
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.wire import Verb
from tests.protocol.twin import checked
from tests.seeds import seeded

BLOCK = b"the wire does not look into blocks"
MAP = {"text": "ж", "bin": b"\xff", "n": 5, "none": None, "yes": True, "list": [1, [2]], "map": {"a": 1.5}}

SAMPLES: list[Any] = [
    m.Hello(1, MAP),
    m.Welcome(1, MAP),
    m.Goodbye(2),
    m.Ping(0),
    m.Pong(9),
    m.Ok(1, 2, MAP),
    m.Err(1, 2, Code.BUSY, "later", {"retry_ms": 5}),
    m.Notice("drain", MAP),
    m.Publish(3, 1, m.Level.RECEIVED, BLOCK),
    m.PubOk(0, ((1, 100, 5, 0), (2, 105, 0, 3))),
    m.PubOk(1, ((1, 100, 1, 2, ((0, 7), (2, 1 << 40))), (2, 101, 1, 0))),
    m.Flow(64, 1 << 24),
    m.Subscribe(7, 4, MAP),
    m.Unsubscribe(7, 5),
    m.Credit(7, 1000, 1 << 30),
    m.Credit(7, 1000, 1 << 30, 1024),
    m.Deliver(7, 1, 2, (5, 1, 9, 2), BLOCK),
    m.Deliver(7, 1, 1, (), BLOCK),
    m.Settle(7, 6, ((m.Verdict.ACK, 1, 9, None), (m.Verdict.RETRY, 10, 10, 500), (m.Verdict.REJECT, 11, 11, "no"))),
    m.Fetch(7, 8, 10, 1000),
    m.End(7, 8, 3),
    m.Gap(7, 1, 50, "retention"),
    m.Info(9, {"what": "hub"}),
    m.Publish(3, 0, 1, BLOCK, {"delay_ms": 100}),
    m.Transact(4, 7, ((1, ((0, 1, 5, None),)), (2, ((1, 2, 2, 500),))), BLOCK),
    m.Cancel(5, {"id": 17}),
    m.Get(6, MAP),
    m.Got(6, (1, 3), BLOCK),
    m.Admin(7, MAP),
    m.Reset(1, MAP),
    m.Ready(1, 8, 3),
    m.Request(0, 9, MAP, BLOCK),
    m.Reply(2, 9, MAP, BLOCK),
]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda s: type(s).__name__)
def test_every_message_survives_the_wire(message: Any) -> None:
    assert wire.decode(wire.encode(message)) == message


def test_every_kind_of_message_is_sampled() -> None:
    kinds = set(m.ToHub.__args__) | set(m.ToClient.__args__)
    assert {type(s) for s in SAMPLES} == kinds
    assert {msgpack.unpackb(wire.encode(s)[0])[0] for s in SAMPLES} == set(Verb)


uints = st.integers(0, (1 << 63) - 1)
ids = uints
waits = st.integers(0, HORIZON_MS)
verdicts = st.tuples(st.sampled_from(m.Verdict), uints, uints, st.one_of(st.none(), waits, st.text())).map(
    lambda v: (v[0], min(v[1], v[2]) or 1, max(v[1], v[2], 1), v[3])
)


@checked
@given(ids, ids, st.lists(verdicts, min_size=1, max_size=20).map(tuple))
def test_verdicts_survive_the_wire(chan: int, rid: int, rows: tuple[Any, ...]) -> None:
    message = m.Settle(chan, rid, rows)
    assert wire.decode(wire.encode(message)) == message


@checked
@given(ids, uints, uints, st.lists(uints, max_size=20).map(tuple), st.binary())
def test_deliveries_survive_the_wire(
    chan: int, ordinal: int, attempt: int, seqs: tuple[int, ...], block: bytes
) -> None:
    message = m.Deliver(chan, ordinal, attempt, seqs, block)
    assert wire.decode(wire.encode(message)) == message


def test_levels_and_verdicts_come_back_as_themselves() -> None:
    published = wire.decode([msgpack.packb([Verb.PUB, 0, 1, 1, 1]), BLOCK])
    settled = wire.decode([msgpack.packb([Verb.ACK, 1, 1, [[4, 1, 1]]])])
    assert isinstance(published, m.Publish)
    assert isinstance(settled, m.Settle)
    assert published.level is m.Level.RECEIVED
    assert settled.verdicts == ((m.Verdict.TOUCH, 1, 1, None),)


def test_additional_fields_are_ignored_so_that_commands_can_grow() -> None:
    assert wire.decode([msgpack.packb([Verb.PING, 0, 5, "new"])]) == m.Ping(5)
    assert wire.decode([msgpack.packb([Verb.CREDIT, 1, 0, 5, 6, 7, 8])]) == m.Credit(1, 5, 6, 7)
    assert wire.decode([msgpack.packb([Verb.ACK, 1, 0, [[0, 1, 2, None, "new"]]])]) == m.Settle(
        1, 0, ((m.Verdict.ACK, 1, 2, None),)
    )


def test_a_map_may_be_left_out() -> None:
    assert wire.decode([msgpack.packb([Verb.INFO, 0, 5])]) == m.Info(5, {})
    assert wire.decode([msgpack.packb([Verb.INFO, 0, 5, None])]) == m.Info(5, {})


def test_the_text_of_an_error_is_cut() -> None:
    message = wire.decode(wire.encode(m.Err(0, 0, Code.BAD_OPTION, "x" * 9999, {})))
    assert isinstance(message, m.Err)
    assert message.text == "x" * wire.ERROR_CHARS_MAX


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\x90"


def raw(*meta: Any) -> list[bytes]:
    return [msgpack.packb(meta)]


BAD: dict[str, tuple[list[bytes], Code]] = {
    "no frame": ([], Code.BAD_FRAME),
    "three frames": ([*raw(Verb.PUB, 0, 1, 1, 0), b"", b""], Code.BAD_FRAME),
    "empty frame": ([b""], Code.BAD_META),
    "a PUB without block": (raw(Verb.PUB, 0, 1, 1, 0), Code.BAD_FRAME),
    "a DELIVER without block": (raw(Verb.DELIVER, 1, 0, 1, 1, []), Code.BAD_FRAME),
    "a PING with block": ([*raw(Verb.PING, 0, 1), b""], Code.BAD_FRAME),
    "not msgpack": ([b"\xc1"], Code.BAD_META),
    "something after it": ([raw(Verb.PING, 0, 1)[0] + b"\x00"], Code.BAD_META),
    "truncated": ([raw(Verb.PING, 0, 1)[0][:-1]], Code.BAD_META),
    "not an array": ([msgpack.packb({"verb": 1})], Code.BAD_META),
    "a number": ([b"\x01"], Code.BAD_META),
    "two fields": (raw(Verb.PING, 0), Code.BAD_META),
    "meta too large": ([msgpack.packb([Verb.HELLO, 0, 1, {"a": bytes(m.META_BYTES_MAX)}])], Code.TOO_LARGE),
    "an array that lies": ([b"\xdd\xff\xff\xff\xff"], Code.BAD_META),
    "text that is not UTF-8": ([b"\x94\x01\x00\x01\x81\xa1\xff\x01"], Code.BAD_META),
    "a map with numbers as keys": ([b"\x94\x01\x00\x01\x81\x01\x01"], Code.BAD_META),
    "nested beyond msgpack": ([nested(5000)], Code.BAD_META),
    "verb 0": (raw(0, 0, 1), Code.UNKNOWN_VERB),
    "verb 99": (raw(99, 0, 1), Code.UNKNOWN_VERB),
    "verb -1": (raw(-1, 0, 1), Code.UNKNOWN_VERB),
    "verb as text": (raw("PING", 0, 1), Code.UNKNOWN_VERB),
    "verb as float": (raw(4.0, 0, 1), Code.UNKNOWN_VERB),
    "verb as boolean": (raw(True, 0, 1), Code.UNKNOWN_VERB),
    "verb as list": (raw([4], 0, 1), Code.UNKNOWN_VERB),
    "verb as deep list": ([b"\x93" + nested(1000) + b"\x00\x00"], Code.UNKNOWN_VERB),
    "verb as long text": (raw("x" * 100_000, 0, 1), Code.UNKNOWN_VERB),
    "verb as extension": (raw(msgpack.ExtType(5, b"x"), 0, 1), Code.UNKNOWN_VERB),
    "chan negative": (raw(Verb.PING, -1, 1), Code.BAD_META),
    "chan as text": (raw(Verb.PING, "1", 1), Code.BAD_META),
    "rid none": (raw(Verb.PING, 0, None), Code.BAD_META),
    "rid boolean": (raw(Verb.PING, 0, True), Code.BAD_META),
    "HELLO with a list": (raw(Verb.HELLO, 0, 1, [1]), Code.BAD_META),
    "HELLO with a number": (raw(Verb.HELLO, 0, 1, 5), Code.BAD_META),
    "HELLO with bytes as keys": (raw(Verb.HELLO, 0, 1, {b"proto": 1}), Code.BAD_META),
    "PUB without level": ([*raw(Verb.PUB, 0, 1, 1), BLOCK], Code.BAD_META),
    "PUB with level 2": ([*raw(Verb.PUB, 0, 1, 1, 2), BLOCK], Code.BAD_META),
    "PUB with boolean level": ([*raw(Verb.PUB, 0, 1, 1, True), BLOCK], Code.BAD_META),
    "PUB with a deep level": ([b"\x95\x10\x00\x01\x01" + nested(1000), BLOCK], Code.BAD_META),
    "PUB with a long level": ([*raw(Verb.PUB, 0, 1, 1, "x" * 10_000), BLOCK], Code.BAD_META),
    "PUB with list as level": ([*raw(Verb.PUB, 0, 1, 1, [[]]), BLOCK], Code.BAD_META),
    "PUB with huge pseq": ([*raw(Verb.PUB, 0, 1, 1 << 63, 0), BLOCK], Code.BAD_META),
    "PUB with pseq as float": ([*raw(Verb.PUB, 0, 1, 1.0, 0), BLOCK], Code.BAD_META),
    "CREDIT of less than 0": (raw(Verb.CREDIT, 1, 0, -1, 5), Code.BAD_META),
    "CREDIT without bytes": (raw(Verb.CREDIT, 1, 0, 5), Code.BAD_META),
    "ACK of nothing": (raw(Verb.ACK, 1, 1, []), Code.BAD_META),
    "ACK without verdicts": (raw(Verb.ACK, 1, 1), Code.BAD_META),
    "ACK with a map": (raw(Verb.ACK, 1, 1, {"a": 1}), Code.BAD_META),
    "ACK with text": (raw(Verb.ACK, 1, 1, "abc"), Code.BAD_META),
    "ACK with rows of text": (raw(Verb.ACK, 1, 1, ["abc"]), Code.BAD_META),
    "ACK with rows of bytes": (raw(Verb.ACK, 1, 1, [b"\x00\x01\x02"]), Code.BAD_META),
    "ACK with rows of maps": (raw(Verb.ACK, 1, 1, [{"a": 1}]), Code.BAD_META),
    "ACK with short rows": (raw(Verb.ACK, 1, 1, [[0, 1]]), Code.BAD_META),
    "ACK with an unknown verdict": (raw(Verb.ACK, 1, 1, [[5, 1, 1]]), Code.BAD_META),
    "ACK with a boolean verdict": (raw(Verb.ACK, 1, 1, [[True, 1, 1]]), Code.BAD_META),
    "ACK with a float verdict": (raw(Verb.ACK, 1, 1, [[0.0, 1, 1]]), Code.BAD_META),
    "ACK with a deep verdict": ([b"\x94\x24\x01\x01\x91\x93" + nested(1000) + b"\x01\x01"], Code.BAD_META),
    "ACK of ordinal 0": (raw(Verb.ACK, 1, 1, [[0, 0, 1]]), Code.BAD_META),
    "ACK backwards": (raw(Verb.ACK, 1, 1, [[0, 5, 4]]), Code.BAD_META),
    "ACK of too many": (raw(Verb.ACK, 1, 1, [[0, 1, 1]] * (wire.VERDICTS_MAX + 1)), Code.BAD_META),
    "ACK with a list as argument": (raw(Verb.ACK, 1, 1, [[1, 1, 1, []]]), Code.BAD_META),
    "ACK with a negative delay": (raw(Verb.ACK, 1, 1, [[1, 1, 1, -5]]), Code.BAD_META),
    "ACK with a long reason": (raw(Verb.ACK, 1, 1, [[3, 1, 1, "x" * 1001]]), Code.BAD_META),
    "HELLO with a deep map": ([b"\x94\x01\x00\x01\x81\xa1a" + nested(1000)], Code.BAD_META),
    "FETCH of text": (raw(Verb.FETCH, 1, 1, "5", 0), Code.BAD_META),
    "DELIVER with bytes as seqs": ([*raw(Verb.DELIVER, 1, 0, 1, 1, b"\x01\x01"), BLOCK], Code.BAD_META),
    "DELIVER without seqs": ([*raw(Verb.DELIVER, 1, 0, 1, 1), BLOCK], Code.BAD_META),
    "PUBOK with rows of maps": (raw(Verb.PUBOK, 0, 0, 0, [{"a": 1}]), Code.BAD_META),
    "PUBOK with duplicates that are no rows": (raw(Verb.PUBOK, 0, 0, 0, [[1, 2, 3, 4, [5]]]), Code.BAD_META),
    "PUBOK with short rows of duplicates": (raw(Verb.PUBOK, 0, 0, 0, [[1, 2, 3, 4, [[5]]]]), Code.BAD_META),
    "PUBOK with duplicates of text": (raw(Verb.PUBOK, 0, 0, 0, [[1, 2, 3, 4, [[5, "6"]]]]), Code.BAD_META),
    "PUBOK with a map": (raw(Verb.PUBOK, 0, 0, 0, {"a": 1}), Code.BAD_META),
    "PUBOK with short rows": (raw(Verb.PUBOK, 0, 0, 0, [[1, 2, 3]]), Code.BAD_META),
    "ERR without text": (raw(Verb.ERR, 0, 0, 501, 5), Code.BAD_META),
    "NOTICE without kind": (raw(Verb.NOTICE, 0, 0), Code.BAD_META),
    "GAP with a number as reason": (raw(Verb.GAP, 1, 0, 1, 2, 3), Code.BAD_META),
}


@pytest.mark.parametrize("what", BAD)
def test_malformed_frames_are_refused_with_their_code(what: str) -> None:
    frames, code = BAD[what]
    with pytest.raises(ProtocolError) as caught:
        wire.decode(frames)
    assert caught.value.code is code
    assert len(str(caught.value)) < 200, "the text of an error does not grow with the input"


def test_the_largest_ack_fits() -> None:
    rows = tuple((m.Verdict.ACK, 2**20 + 2 * i, 2**20 + 2 * i, None) for i in range(wire.VERDICTS_MAX))
    frames = wire.encode(m.Settle(65_535, 1, rows))
    assert len(frames[0]) <= m.META_BYTES_MAX
    assert wire.decode(frames) == m.Settle(65_535, 1, rows)


def test_an_error_can_name_the_request_that_did_not_decode() -> None:
    assert wire.request_id(raw(Verb.CREDIT, 7, 9, "x", "y")) == (7, 9)
    assert wire.request_id(raw(99, 7, 9)) == (7, 9)
    assert wire.request_id([*raw(Verb.PING, 7, 9), b"", b""]) == (7, 9)
    assert wire.request_id(raw(1, "a", 9)) == (0, 9)
    assert wire.request_id(raw(1, 7, 1 << 63)) == (7, 0)


@pytest.mark.parametrize("frames", [[], [b""], [b"\xc1"], [nested(5000)]])
def test_an_unreadable_request_has_no_name(frames: list[bytes]) -> None:
    assert wire.request_id(frames) == (0, 0)


@checked
@given(st.lists(st.binary(max_size=60), max_size=3))
def test_any_byte_strings_are_a_message_or_a_protocol_error(frames: list[bytes]) -> None:
    _judge(frames)


json_like = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(), st.binary()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=12,
)


@checked
@given(st.sampled_from(Verb), st.lists(json_like, max_size=6), st.booleans())
def test_any_fields_after_a_verb_are_a_message_or_a_protocol_error(verb: int, fields: list[Any], block: bool) -> None:
    _judge([msgpack.packb([verb, 1, 1, *fields]), *([BLOCK] if block else [])])
    _judge([msgpack.packb([verb, *fields]), *([BLOCK] if block else [])])


def test_mutated_frames_are_a_message_or_a_protocol_error() -> None:
    rng = seeded("mutated frames")
    metas = [wire.encode(s) for s in SAMPLES] + [
        frames for frames, _ in BAD.values() if frames and len(frames[0]) < 999
    ]
    passed = 0
    for _ in range(200_000):
        frames = rng.choice(metas)
        passed += _judge([_bent(rng, frames[0]), *frames[1:]])
    assert passed > 2_000, "too few mutants pass for this test to mean something"


def _judge(frames: list[bytes]) -> bool:
    try:
        message = wire.decode(frames)
    except ProtocolError:
        assert min(wire.request_id(frames)) >= 0
        return False
    wire.encode(message)
    return True


# The first bytes of every kind of msgpack value, and the ends of the short ranges.
LURES = bytes([0, 0x7F, 0x80, 0x8F, 0x90, 0x93, 0x9F, 0xA0, 0xA1, 0xBF, *range(0xC0, 0xE1), 0xFF])


def _bent(rng: random.Random, data: bytes) -> bytes:
    bent = bytearray(data)
    for _ in range(rng.randint(1, 2)):
        kind, at = rng.randrange(5), rng.randrange(len(bent) + 1)
        if kind == 0:
            bent[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            bent[at : at + 1] = bytes([rng.choice(LURES)])
        elif kind == 2:
            del bent[at : at + rng.randint(1, 4)]
        elif kind == 3:
            bent[at:at] = rng.randbytes(rng.randint(1, 4))
        elif bent:
            bent[at % len(bent)] ^= 1 << rng.randrange(8)
    return bytes(bent)
