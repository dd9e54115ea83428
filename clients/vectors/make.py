"""Golden vectors for clients in every language: bytes as hex beside their meaning as JSON.

Run `python clients/vectors/make.py` to write blocks.json and frames.json anew. The bytes of version 1 are frozen: add
vectors as you like, but a vector whose hex changes is a change of the protocol and needs a new version number.
"""

import json
import struct
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fabric import block as b
from fabric import messages as m
from fabric import wire
from fabric.block import Block
from fabric.errors import BlockError, Code, ProtocolError

HERE: Final = Path(__file__).parent
TS_US: Final = 1_700_000_000_000_000
SESSION: Final = bytes(range(16))
JOURNAL: Final = bytes(range(16, 32))


def good_blocks() -> Iterator[tuple[str, bytes]]:
    yield "one message", b.encode("order.new", [b"hello"])
    yield "one empty message", b.encode("a", [b""])
    yield "three of one topic", b.encode("order.new", [b"one", b"", b"three"])
    yield "several topics", b.encode(["order.new", "order.paid", "order.new"], [b"1", b"22", b"333"])
    yield "topics beyond ASCII", b.encode(["заказ.новый", "注文"], ["привет".encode(), b"\x00\xff"])
    yield "keys", b.encode("order.new", [b"1", b"2", b"3"], keys=[b"customer-7", b"", b"\x00\x01"])
    yield "ids", b.encode("order.new", [b"1", b"2"], ids=[b"7f3a", b"7f3b"])
    yield (
        "headers",
        b.encode("a.b", [b"1", b"2", b"3"], headers=[{"kind": "text", "raw": b"\xff"}, None, {"kind": "ж"}]),
    )
    yield "headers, all empty", b.encode("a.b", [b"1"], headers=[None])
    yield "priority and expiry", b.encode("a.b", [b"soon"], priority=9, expires_us=TS_US)
    everything = b.encode(
        ["a", "b", "a"],
        [b"x", b"yy", b"zzz"],
        keys=[b"k", b"", b"k"],
        ids=[b"i1", b"i2", b"i3"],
        headers=[{"h": "v"}, {"h": b"v"}, {}],
        priority=5,
    )
    yield "everything", everything
    yield "twenty of one size", b.encode("load.test", [b"%08d" % i for i in range(20)])
    yield "longest topic, key and id", b.encode("t" * 255, [b""], keys=[b"k" * 255], ids=[b"i" * 200])
    stamped = b.stamp(everything, 1001, TS_US)
    yield "stamped", stamped
    yield "stamped, cut to its last two", b.cut(Block(stamped), 1, 3)
    yield "stamped, first and third picked", b.pick(Block(stamped), [(0, 1), (2, 3)])


def bad_blocks() -> Iterator[tuple[str, bytes, Code]]:
    one = b.encode("ab", [b"payload"])
    two = b.encode(["ab", "cd"], [b"first", b"second"])
    keyed = b.encode("ab", [b"x", b"y"], keys=[b"key", b"kez"])
    named = b.encode("ab", [b"x", b"y"], headers=[{"n": "text"}, {"m": b"\xff"}])
    body = one[b.HEAD_BYTES :]
    wrong = Code.BAD_BLOCK
    yield "nothing at all", b"", wrong
    yield "less than a head", one[:55], wrong
    yield "a head without its body", one[:56], wrong
    yield "the end is missing", one[:-8], wrong
    yield "eight bytes too many", one + bytes(8), wrong
    yield "eight bytes too many, sealed", _sealed(one, body + bytes(8)), wrong
    yield "body not a multiple of eight", _sealed(one, body + b"x"), wrong
    yield "another magic", b"FAB2" + one[4:], wrong
    yield "version 2", _sealed(one, at={4: b"\x02"}), Code.UNSUPPORTED_VERSION
    yield "unknown flag", _sealed(one, at={5: b"\x10"}), wrong
    yield "keys flagged but absent", _sealed(one, at={5: b"\x01"}), wrong
    yield "keys present but not flagged", _sealed(keyed, at={5: b"\x00"}), wrong
    yield "priority 10", _sealed(one, at={6: b"\x0a"}), wrong
    yield "count 0", _sealed(one, at={8: struct.pack("<I", 0)}), wrong
    yield "count of four billion", _sealed(one, at={8: b"\xff\xff\xff\xff"}), wrong
    yield "no topic", _sealed(one, at={12: b"\x00\x00"}), wrong
    yield "more topics than messages", _sealed(one, at={12: b"\x02\x00"}), wrong
    yield "expiry before 1970", _sealed(one, at={32: struct.pack("<q", -1)}), wrong
    yield "CRC of the body", one[:44] + bytes([one[44] ^ 1]) + one[45:], wrong
    yield "a flipped bit in a payload", one[:-8] + bytes([one[-8] ^ 1]) + one[-7:], wrong
    yield "topic runs out of the block", _sealed(one, at={60: struct.pack("<I", 5000)}), wrong
    yield "topic offsets decrease", _sealed(two, at={60: struct.pack("<I", 3000)}), wrong
    yield "topic twice in the table", _sealed(two, at={68: b"abab"}), wrong
    yield "topic not UTF-8", _sealed(one, at={64: b"\xff\xfe"}), Code.BAD_TOPIC
    yield "topic index outside the table", _sealed(two, at={72: struct.pack("<HH", 0, 2)}), wrong
    yield "topic that no message uses", _sealed(two, at={72: bytes(4)}), wrong
    yield "payload offsets do not start at 0", _sealed(two, at={80: struct.pack("<I", 1)}), wrong
    yield "payload offsets decrease", _sealed(two, at={84: struct.pack("<I", 12)}), wrong
    yield "key offsets decrease", _sealed(keyed, at={76: struct.pack("<I", 99)}), wrong
    yield "header pairs do not fit", _sealed(named, at={76: struct.pack("<I", 2000)}), wrong
    yield "header pairs out of order", _sealed(named, at={84: struct.pack("<I", 9)}), wrong
    yield "header name index outside", _sealed(named, at={112: struct.pack("<HH", 0x8000, 2)}), wrong
    yield "header text not UTF-8", _sealed(named, at={112: struct.pack("<HH", 0x8000, 0x8001)}), wrong
    stamped = b.stamp(one, 7, TS_US)
    yield "stamped: seq changed after the stamp", stamped[:16] + b"\x08" + stamped[17:], wrong


def _sealed(raw: bytes, body: bytes | None = None, at: Mapping[int, bytes] | None = None) -> bytes:
    """The block with bytes replaced, and body_len and body_crc made to fit: a lie that the CRC does not show."""
    bent = bytearray(raw if body is None else raw[: b.HEAD_BYTES] + body)
    for place, data in (at or {}).items():
        bent[place : place + len(data)] = data
    tail = bytes(bent[b.HEAD_BYTES :])
    struct.pack_into("<II", bent, 40, len(tail), zlib.crc32(tail))
    return bytes(bent)


def good_frames() -> Iterator[tuple[str, m.ToHub | m.ToClient]]:
    block = b.encode("order.new", [b"one", b"two"])
    stamped = b.stamp(block, 1001, TS_US)
    four = Block(b.stamp(b.encode("order.new", [b"1", b"2", b"3", b"4"]), 1001, TS_US))
    hello = {"proto": 1, "client": "billing-7", "hb_ms": 5000, "ttl_ms": 30_000}
    resume = {"session": SESSION, "subs": [[1, 41], [2, 0]]}
    limits = {"block_bytes": 16 << 20, "count": 65_536, "topic_bytes": 255, "meta_bytes": 1 << 20, "channels": 65_535}
    welcome = {"proto": 1, "hub": "0.1.0", "journal": JOURNAL, "epoch": 3, "session": SESSION, "resumed": False}
    welcome |= {"hb_ms": 5000, "ttl_ms": 30_000, "limits": limits, "flow": [64, 64 << 20], "subs": []}
    yield "HELLO, consumer only", m.Hello(1, hello)
    yield "HELLO, new producer", m.Hello(1, hello | {"producer": {"name": "orders-api"}})
    yield "HELLO, resume", m.Hello(2, hello | {"producer": {"name": "orders-api", "epoch": 4}, "resume": resume})
    yield "WELCOME", m.Welcome(1, welcome)
    producer = {"producer": {"epoch": 4, "last_pseq": 512, "last_seq": 1512}}
    yield "WELCOME, resumed", m.Welcome(2, welcome | {"resumed": True, "subs": [1, 2]} | producer)
    yield "GOODBYE", m.Goodbye(9)
    yield "PING", m.Ping(0)
    yield "PONG", m.Pong(0)
    yield "OK", m.Ok(1, 3, {"group": "mail", "cursor": 1, "floor": 0, "created": True, "lease_ms": 30_000})
    yield "ERR", m.Err(0, 7, Code.BAD_TOPIC, "topic 'a..b' has an empty word", {})
    yield "ERR, try again", m.Err(0, 8, Code.BUSY, "the disk is behind", {"retry_ms": 100})
    yield "NOTICE", m.Notice("drain", {})
    yield "PUB", m.Publish(4, 513, m.Level.JOURNALED, block)
    yield "PUB, confirmed on receipt", m.Publish(5, 515, m.Level.RECEIVED, block)
    yield "PUB, unnumbered", m.Publish(6, 0, m.Level.JOURNALED, block)
    yield "PUBOK", m.PubOk(0, ((4, 1001, 2, 0),))
    yield "PUBOK of several, one a duplicate", m.PubOk(0, ((4, 1001, 2, 0), (5, 997, 0, 2)))
    yield "FLOW", m.Flow(64, 64 << 20)
    yield "FLOW, stop", m.Flow(0, 0)
    yield "SUB, group", m.Subscribe(1, 3, {"patterns": ["order.#"], "group": "mail", "credit": [200, 4 << 20]})
    options = {"start": {"seq": 100}, "lease_ms": 60_000, "attempts_max": 3, "level": "journaled"}
    yield "SUB, all options", m.Subscribe(2, 4, {"patterns": ["a.*", "b.>"], "group": "g", "credit": [0, 0]} | options)
    yield "SUB, ephemeral", m.Subscribe(3, 5, {"patterns": ["#"], "start": "first", "credit": [1000, 1 << 20]})
    yield "UNSUB", m.Unsubscribe(1, 6)
    yield "CREDIT", m.Credit(1, 400, 8 << 20)
    yield "DELIVER", m.Deliver(1, 1, 1, (), stamped)
    yield "DELIVER, second attempt", m.Deliver(1, 3, 2, (), stamped)
    yield "DELIVER, picked", m.Deliver(1, 5, 1, (1001, 1, 1003, 2), b.pick(four, [(0, 1), (2, 4)]))
    yield "ACK of one range", m.Settle(1, 0, ((m.Verdict.ACK, 1, 200, None),))
    rows = (
        (m.Verdict.ACK, 1, 5, None),
        (m.Verdict.RETRY, 6, 6, 500),
        (m.Verdict.RETRY, 7, 7, None),
        (m.Verdict.RELEASE, 8, 9, None),
        (m.Verdict.REJECT, 10, 10, "no such customer"),
        (m.Verdict.TOUCH, 11, 20, 60_000),
    )
    yield "ACK with every verdict", m.Settle(1, 12, rows)
    yield "FETCH", m.Fetch(2, 13, 10, 1000)
    yield "END", m.End(2, 13, 10)
    yield "GAP", m.Gap(1, 500, 749, "retention")
    yield "INFO", m.Info(14, {"what": "groups"})


def bad_frames() -> Iterator[tuple[str, list[bytes], Code]]:
    block = b.encode("a", [b"x"])
    ping = wire.encode(m.Ping(1))[0]
    bad_meta, unknown = Code.BAD_META, Code.UNKNOWN_VERB
    yield "three frames", [wire.encode(m.Publish(1, 1, 0, block))[0], block, block], Code.BAD_FRAME
    yield "PUB without a block", [wire.encode(m.Publish(1, 1, 0, block))[0]], Code.BAD_FRAME
    yield "PING with a block", [ping, block], Code.BAD_FRAME
    yield "empty meta", [b""], bad_meta
    yield "not msgpack", [b"\xc1"], bad_meta
    yield "truncated meta", [ping[:-1]], bad_meta
    yield "bytes after the array", [ping + b"\x00"], bad_meta
    yield "a map in place of the array", [b"\x81\xa4verb\x04"], bad_meta
    yield "two fields", [b"\x92\x04\x00"], bad_meta
    yield "array that lies about its length", [b"\xdd\xff\xff\xff\xff\x04"], bad_meta
    yield "text that is not UTF-8", [b"\x94\x01\x00\x01\x81\xa1\xff\x01"], bad_meta
    yield "map with a number as key", [b"\x94\x01\x00\x01\x81\x01\x01"], bad_meta
    yield "unknown verb", [b"\x93\x63\x00\x01"], unknown
    yield "verb as text", [b"\x93\xa4PING\x00\x01"], unknown
    yield "verb as a float", [b"\x93\xca\x40\x80\x00\x00\x00\x01"], unknown
    yield "verb as a boolean", [b"\x93\xc3\x00\x01"], unknown
    yield "negative chan", [b"\x93\x04\xff\x01"], bad_meta
    yield "rid nil", [b"\x93\x04\x00\xc0"], bad_meta
    yield "HELLO with an array", [b"\x94\x01\x00\x01\x91\x01"], bad_meta
    yield "PUB with level 2", [b"\x95\x10\x00\x01\x01\x02", block], bad_meta
    yield "CREDIT without bytes", [b"\x94\x22\x01\x00\x05"], bad_meta
    yield "ACK of nothing", [b"\x94\x24\x01\x01\x90"], bad_meta
    yield "ACK of ordinal 0", [b"\x94\x24\x01\x01\x91\x93\x00\x00\x01"], bad_meta
    yield "ACK of a backward range", [b"\x94\x24\x01\x01\x91\x93\x00\x05\x04"], bad_meta
    yield "ACK with verdict 5", [b"\x94\x24\x01\x01\x91\x93\x05\x01\x01"], bad_meta
    yield "DELIVER without seqs", [b"\x95\x23\x01\x00\x01\x01", block], bad_meta


def block_meaning(raw: bytes) -> dict[str, Any]:
    """What a block says, as JSON."""
    block = Block(raw)
    block.verify()
    if block.base_seq:
        block.verify_stamp()
    head = ("flags", "priority", "count", "base_seq", "ts_us", "expires_us")
    rows = zip(block.topic_names(), block.payloads(), block.keys(), block.ids(), block.headers(), strict=True)
    messages = [
        {"topic": topic, "payload": payload.hex(), "key": key.hex(), "id": id_.hex(), "headers": _plain(headers)}
        for topic, payload, key, id_, headers in rows
    ]
    return {name: getattr(block, name) for name in head} | {"topics": list(block.topics), "messages": messages}


def frames_meaning(frames: Sequence[bytes]) -> dict[str, Any]:
    """What a command says, as JSON: the verb and the fields by the names of `fabric.messages`."""
    message = wire.decode(frames)
    verb = wire.Verb(frames[0][1])  # the second byte of the array: all verbs are below 128
    fields = {name: _plain(value) for name, value in message._asdict().items() if name != "block"}
    return {"verb": verb.name, "number": int(verb)} | fields


def _plain(value: Any) -> Any:
    """JSON has no bytes: they become {"hex": …}."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def block_error(raw: bytes) -> Code:
    """The code with which a reader refuses the bytes; a block with a seq is checked as a stamped one."""
    try:
        block_meaning(raw)
    except BlockError as error:
        return error.code
    raise AssertionError("a bad vector is good")


def frames_error(frames: Sequence[bytes]) -> Code:
    try:
        wire.decode(frames)
    except ProtocolError as error:
        return error.code
    raise AssertionError("a bad vector is good")


def blocks() -> dict[str, Any]:
    good = [{"name": name, "hex": raw.hex(), "block": block_meaning(raw)} for name, raw in good_blocks()]
    bad = [{"name": name, "hex": raw.hex(), "error": code.name, "code": int(code)} for name, raw, code in bad_blocks()]
    return {"schema": "fabric.vectors.blocks.v1", "good": good, "bad": bad}


def frames() -> dict[str, Any]:
    good, bad = [], []
    for name, message in good_frames():
        encoded = wire.encode(message)
        to = "hub" if isinstance(message, m.ToHub) else "client"
        good.append({"name": name, "to": to, "frames": [f.hex() for f in encoded], "meaning": frames_meaning(encoded)})
    for name, encoded, code in bad_frames():
        bad.append({"name": name, "frames": [f.hex() for f in encoded], "error": code.name, "code": int(code)})
    return {"schema": "fabric.vectors.frames.v1", "good": good, "bad": bad}


def text(vectors: Mapping[str, Any]) -> str:
    return json.dumps(vectors, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name, vectors in (("blocks.json", blocks()), ("frames.json", frames())):
        (HERE / name).write_text(text(vectors), encoding="utf-8")
        sys.stdout.write(f"{name}: {len(vectors['good'])} good, {len(vectors['bad'])} bad\n")
