"""The golden vectors and the code agree in both directions, and the vectors do not change."""

import json
import struct
import zlib
from typing import Any

import pytest

from clients.vectors import make
from fabric_protocol import block as b
from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.errors import Code

BLOCKS: dict[str, Any] = json.loads((make.HERE / "blocks.json").read_text(encoding="utf-8"))
FRAMES: dict[str, Any] = json.loads((make.HERE / "frames.json").read_text(encoding="utf-8"))


def named(vector: dict[str, Any]) -> str:
    return str(vector["name"])


def unhexed(vector: dict[str, Any]) -> list[bytes]:
    return [bytes.fromhex(frame) for frame in vector["frames"]]


def test_the_files_are_what_the_code_says() -> None:
    assert (make.HERE / "blocks.json").read_text(encoding="utf-8") == make.text(make.blocks())
    assert (make.HERE / "frames.json").read_text(encoding="utf-8") == make.text(make.frames())


@pytest.mark.parametrize("vector", BLOCKS["good"], ids=named)
def test_a_good_block_means_what_the_file_says(vector: dict[str, Any]) -> None:
    assert make.block_meaning(bytes.fromhex(vector["hex"])) == vector["block"]


@pytest.mark.parametrize("vector", BLOCKS["bad"], ids=named)
def test_a_bad_block_is_refused_with_the_error_of_the_file(vector: dict[str, Any]) -> None:
    code = make.block_error(bytes.fromhex(vector["hex"]))
    assert (code.name, int(code)) == (vector["error"], vector["code"])


@pytest.mark.parametrize("vector", FRAMES["good"], ids=named)
def test_good_frames_mean_what_the_file_says(vector: dict[str, Any]) -> None:
    frames = unhexed(vector)
    assert make.frames_meaning(frames) == vector["meaning"]
    assert isinstance(wire.decode(frames), m.ToHub if vector["to"] == "hub" else m.ToClient)


@pytest.mark.parametrize("vector", FRAMES["bad"], ids=named)
def test_bad_frames_are_refused_with_the_error_of_the_file(vector: dict[str, Any]) -> None:
    code = make.frames_error(unhexed(vector))
    assert (code.name, int(code)) == (vector["error"], vector["code"])


def test_every_verb_has_a_vector() -> None:
    assert {vector["meaning"]["verb"] for vector in FRAMES["good"]} == {verb.name for verb in wire.Verb}


def test_names_are_unique() -> None:
    for vectors in (BLOCKS["good"], BLOCKS["bad"], FRAMES["good"], FRAMES["bad"]):
        assert len({named(v) for v in vectors}) == len(vectors)


# What follows is written out by hand, byte by byte, so that regenerating the files cannot move the layout.


def by_hand(count: int, n_topics: int, flags: int, *sections: bytes) -> bytes:
    body = b"".join(section + bytes(-len(section) % 8) for section in sections)
    head = b"FAB1" + bytes([1, flags, 0, 0]) + struct.pack("<IHH", count, n_topics, 0)
    return head + struct.pack("<QqqIIII", 0, 0, 0, len(body), zlib.crc32(body), 0, 0) + body


def u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def u16(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}H", *values)


def test_the_layout_of_version_1_has_not_moved() -> None:
    assert b.encode("ab", [b"payload"], priority=0) == by_hand(1, 1, 0, u32(0, 2) + b"ab", u32(0, 7) + b"payload")
    assert b.encode(["a", "bc"], [b"1", b"22"], keys=[b"k", b""], ids=[b"", b"i"], priority=0) == by_hand(
        *(2, 2, 3),
        u32(0, 1, 3) + b"abc",
        u16(0, 1),
        u32(0, 1, 1) + b"k",
        u32(0, 0, 1) + b"i",
        u32(0, 1, 3) + b"122",
    )
    assert b.encode("a", [b"1", b"2"], headers=[{"n": "v", "m": b"\xff"}, None], priority=0) == by_hand(
        *(2, 1, 4),
        u32(0, 1) + b"a",
        u32(2, 2, 0, 2, 2),
        u32(0, 1, 2) + b"nm",
        u16(0x8000, 1),
        u32(0, 1, 2) + b"v\xff",
        u32(0, 1, 2) + b"12",
    )


def test_the_stamp_of_version_1_has_not_moved() -> None:
    stamped = b.stamp(b.encode("a", [b"x"]), 5, 6)
    assert stamped[16:32] == struct.pack("<Qq", 5, 6)
    assert stamped[52:56] == u32(zlib.crc32(stamped[:52]))


def test_the_numbers_of_version_1_have_not_moved() -> None:
    verbs = "HELLO 1 WELCOME 2 GOODBYE 3 PING 4 PONG 5 OK 6 ERR 7 NOTICE 8 PUB 16 PUBOK 17 FLOW 18"
    verbs += " SUB 32 UNSUB 33 CREDIT 34 DELIVER 35 ACK 36 FETCH 37 END 38 GAP 39 RESET 40 READY 41 GET 48 GOT 49"
    verbs += " INFO 50 ADMIN 51 CANCEL 52 TXN 53 REQ 54 REP 55"
    codes = "BAD_FRAME 101 BAD_META 102 UNKNOWN_VERB 103 UNSUPPORTED_VERSION 104 BAD_BLOCK 105 TOO_LARGE 106"
    codes += " NO_SESSION 201 SESSION_EXISTS 202 AUTH_FAILED 203 FORBIDDEN 204 TAKEN_OVER 205 BAD_TOPIC 301"
    codes += " TOPIC_FULL 303 DISK_FULL 304 OVERRUN 305 SEQUENCE_GAP 306 FENCED 307 PSEQ_TAKEN 308 BAD_OPTION 310"
    codes += " BAD_PATTERN 401"
    codes += " GROUP_MISMATCH 402 BAD_ORDINAL 403 NOT_FOUND 404 STALE 405 NO_RESPONDERS 406 TIMED_OUT 407 CONFLICT 409"
    codes += " INTERNAL 501 SHUTTING_DOWN 502 BUSY 503"
    frozen = dict(zip(verbs.split()[::2], map(int, verbs.split()[1::2]), strict=True))
    assert {verb.name: int(verb) for verb in wire.Verb} == frozen
    frozen = dict(zip(codes.split()[::2], map(int, codes.split()[1::2]), strict=True))
    assert {code.name: int(code) for code in Code} == frozen
    assert [int(v) for v in m.Verdict] == [0, 1, 2, 3, 4]
    assert (m.Level.JOURNALED, m.Level.RECEIVED, b.KEYS, b.IDS, b.HEADERS, b.SPARSE) == (0, 1, 1, 2, 4, 8)


def test_hot_frames_of_version_1_have_not_moved() -> None:
    assert wire.encode(m.Publish(1, 2, 0, b"block")) == [bytes([0x95, 16, 0, 1, 2, 0]), b"block"]
    options = wire.encode(m.Publish(1, 2, 0, b"block", {"ttl_ms": 5}))
    assert options == [bytes([0x96, 16, 0, 1, 2, 0, 0x81, 0xA6]) + b"ttl_ms" + bytes([5]), b"block"]
    transaction = wire.encode(m.Transact(1, 2, ((3, ((m.Verdict.ACK, 4, 5, None),)),), b"block"))
    assert transaction == [bytes([0x95, 53, 0, 1, 2, 0x91, 0x92, 3, 0x91, 0x94, 0, 4, 5, 0xC0]), b"block"]
    assert wire.encode(m.Credit(1, 2, 3)) == [bytes([0x95, 34, 1, 0, 2, 3])]
    assert wire.encode(m.Deliver(1, 2, 1, (), b"block")) == [bytes([0x96, 35, 1, 0, 2, 1, 0x90]), b"block"]
    ack = wire.encode(m.Settle(1, 0, ((m.Verdict.ACK, 2, 3, None),)))
    assert ack == [bytes([0x94, 36, 1, 0, 0x91, 0x94, 0, 2, 3, 0xC0])]
