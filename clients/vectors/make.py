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

from fabric_protocol import block as b
from fabric_protocol import block_parts, wire
from fabric_protocol import messages as m
from fabric_protocol.block import Block
from fabric_protocol.errors import BlockError, Code, ProtocolError
from fabric_protocol.origin import Origin

HERE: Final = Path(__file__).parent
TS_US: Final = 1_700_000_000_000_000
BORN: Final = Origin(bytes(range(16)), 3, 700, TS_US - 1_000_000)
SESSION: Final = bytes(range(16))
JOURNAL: Final = bytes(range(16, 32))


def _encode(topics: str | Sequence[str], payloads: Sequence[bytes], **more: Any) -> bytes:
    """A block of priority 0, unless it says otherwise: what a program chooses by default is not frozen."""
    return b.encode(topics, payloads, **{"priority": 0, **more})


def good_blocks() -> Iterator[tuple[str, bytes]]:
    yield "one message", _encode("order.new", [b"hello"])
    yield "one empty message", _encode("a", [b""])
    yield "three of one topic", _encode("order.new", [b"one", b"", b"three"])
    yield "several topics", _encode(["order.new", "order.paid", "order.new"], [b"1", b"22", b"333"])
    yield "topics beyond ASCII", _encode(["заказ.новый", "注文"], ["привет".encode(), b"\x00\xff"])
    yield "keys", _encode("order.new", [b"1", b"2", b"3"], keys=[b"customer-7", b"", b"\x00\x01"])
    yield "ids", _encode("order.new", [b"1", b"2"], ids=[b"7f3a", b"7f3b"])
    yield (
        "headers",
        _encode("a.b", [b"1", b"2", b"3"], headers=[{"kind": "text", "raw": b"\xff"}, None, {"kind": "ж"}]),
    )
    yield "headers, all empty", _encode("a.b", [b"1"], headers=[None])
    yield "priority and expiry", _encode("a.b", [b"soon"], priority=9, expires_us=TS_US)
    everything = _encode(
        ["a", "b", "a"],
        [b"x", b"yy", b"zzz"],
        keys=[b"k", b"", b"k"],
        ids=[b"i1", b"i2", b"i3"],
        headers=[{"h": "v"}, {"h": b"v"}, {}],
        priority=5,
    )
    yield "everything", everything
    yield "twenty of one size", _encode("load.test", [b"%08d" % i for i in range(20)])
    yield "longest topic, key and id", _encode("t" * 255, [b""], keys=[b"k" * 255], ids=[b"i" * 200])
    stamped = b.stamp(everything, 1001, TS_US)
    yield "stamped", stamped
    yield "stamped, cut to its last two", block_parts.cut(Block(stamped), 1, 3)
    yield "stamped, first and third picked", block_parts.pick(Block(stamped), [(0, 1), (2, 3)])


def bad_blocks() -> Iterator[tuple[str, bytes, Code]]:
    one = _encode("ab", [b"payload"])
    two = _encode(["ab", "cd"], [b"first", b"second"])
    keyed = _encode("ab", [b"x", b"y"], keys=[b"key", b"kez"])
    named = _encode("ab", [b"x", b"y"], headers=[{"n": "text"}, {"m": b"\xff"}])
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
    yield from _session_frames()
    yield from _publishing_frames()
    yield from _consuming_frames()
    yield from _asking_frames()


def _session_frames() -> Iterator[tuple[str, m.ToHub | m.ToClient]]:
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
    lost = {"chan": 1, "ordinals": [[3, 5], [9, 9]], "why": "an earlier message comes first"}
    yield "NOTICE, leases lost", m.Notice("lease_lost", lost)
    yield "NOTICE, unsubscribed", m.Notice("unsubscribed", {"chan": 1, "group": "mail", "why": "the group was deleted"})


def _publishing_frames() -> Iterator[tuple[str, m.ToHub | m.ToClient]]:
    block = _encode("order.new", [b"one", b"two"])
    level = m.Level.JOURNALED
    yield "PUB", m.Publish(4, 513, level, block)
    yield "PUB, confirmed on receipt", m.Publish(5, 515, m.Level.RECEIVED, block)
    yield "PUB, unnumbered", m.Publish(6, 0, level, block)
    yield "PUBOK", m.PubOk(0, ((4, 1001, 2, 0),))
    yield "PUBOK of several, one a duplicate", m.PubOk(0, ((4, 1001, 2, 0), (5, 997, 0, 2)))
    yield "FLOW", m.Flow(64, 64 << 20)
    yield "FLOW, stop", m.Flow(0, 0)
    yield "PUB, expires", m.Publish(20, 517, level, block, {"ttl_ms": 60_000})
    yield "PUB, delayed", m.Publish(21, 519, level, block, {"delay_ms": 5000, "ttl_ms": 60_000})
    yield "PUB, at a time", m.Publish(22, 521, level, block, {"at_us": TS_US})
    yield "PUB, again and again", m.Publish(23, 523, level, block, {"every_ms": 60_000, "name": "tick"})
    yield "PUB, by the calendar", m.Publish(24, 525, level, block, {"cron": "0 3 * * 1-5", "name": "nightly"})
    yield "OK to a delayed PUB", m.Ok(0, 21, {"schedule": 7, "due_us": TS_US})
    yield "OK to a delayed PUB, sent again", m.Ok(0, 21, {"schedule": 7, "due_us": TS_US, "dup": True})
    ids = _encode("order.new", [b"one", b"two", b"three"], ids=[b"7f3a", b"7f3b", b"7f3c"])
    source = {"proto": 1, "client": "tail", "producer": {"name": "kafka:c1:orders:0", "jumps": True}}
    yield "HELLO of a numbered source", m.Hello(30, source)
    yield "PUB of a numbered source", m.Publish(31, 700, level, block, {"last": 705, "after": 690})
    yield "PUB with an origin", m.Publish(32, 0, level, block, {"origin": BORN})
    yield "PUB, with ids", m.Publish(25, 527, level, ids)
    yield "PUBOK, the second of three known by its id", m.PubOk(0, ((25, 1003, 2, 1, ((1, 998),)),))
    yield (
        "PUBOK, all known by their ids",
        m.PubOk(0, ((25, 997, 0, 3, ((0, 997), (1, 998), (2, 1000))), (26, 1005, 1, 0))),
    )
    yield "ERR, topic full", m.Err(0, 27, Code.TOPIC_FULL, "topic 'order.new' has 1000 of max_msgs 1000 messages", {})
    yield "CANCEL by id", m.Cancel(28, {"id": 7})
    yield "CANCEL by name", m.Cancel(29, {"name": "nightly"})
    yield "OK to CANCEL", m.Ok(0, 28, {"cancelled": True, "schedule": 7, "due_us": TS_US})
    yield "TXN", m.Transact(30, 530, ((1, ((m.Verdict.ACK, 41, 41, None),)),), block)
    settles = (
        (1, ((m.Verdict.ACK, 42, 45, None), (m.Verdict.REJECT, 46, 46, "no such customer"))),
        (2, ((m.Verdict.RETRY, 7, 7, 500),)),
    )
    yield "TXN, two channels", m.Transact(31, 532, settles, block)
    yield "OK to TXN", m.Ok(0, 30, {"first_seq": 1006, "stored": 2, "dups": 0, "applied": 1})
    stale = {"chan": 1, "ordinals": [[41, 41]]}
    yield "ERR, stale TXN", m.Err(0, 30, Code.STALE, "channel 1: ordinals 41 are not yours any more", stale)


def _consuming_frames() -> Iterator[tuple[str, m.ToHub | m.ToClient]]:
    stamped = b.stamp(_encode("order.new", [b"one", b"two"]), 1001, TS_US)
    four = Block(b.stamp(_encode("order.new", [b"1", b"2", b"3", b"4"]), 1001, TS_US))
    yield "SUB, group", m.Subscribe(1, 3, {"patterns": ["order.#"], "group": "mail", "credit": [200, 4 << 20]})
    options = {"start": {"seq": 100}, "lease_ms": 60_000, "attempts_max": 3, "level": "journaled"}
    yield "SUB, all options", m.Subscribe(2, 4, {"patterns": ["a.*", "b.>"], "group": "g", "credit": [0, 0]} | options)
    yield "SUB, ephemeral", m.Subscribe(3, 5, {"patterns": ["#"], "start": "first", "credit": [1000, 1 << 20]})
    settings = {
        "concurrency": 16,
        "lease_max_ms": 600_000,
        "backoff": "fixed",
        "backoff_ms": 1000,
        "backoff_max_ms": 60_000,
    }
    settings |= {"jitter_pct": 0, "order": "key", "ack": "explicit", "on_expire": "dead", "start": "last_per_key"}
    yield "SUB, all settings", m.Subscribe(4, 6, {"patterns": ["a"], "group": "h", "credit": [32, 1 << 20]} | settings)
    yield "UNSUB", m.Unsubscribe(1, 6)
    yield "CREDIT", m.Credit(1, 400, 8 << 20)
    yield "CREDIT of a consumer that is unsure what it has begun", m.Credit(1, 400, 8 << 20, 1024)
    yield "DELIVER", m.Deliver(1, 1, 1, (), stamped)
    yield "DELIVER, second attempt", m.Deliver(1, 3, 2, (), stamped)
    yield "DELIVER with an origin", m.Deliver(1, 9, 1, (), stamped, BORN)
    yield "GOT with an origin", m.Got(33, (), stamped, BORN)
    yield "DELIVER, picked", m.Deliver(1, 5, 1, (1001, 1, 1003, 2), block_parts.pick(four, [(0, 1), (2, 4)]))
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
    reasons = ((m.Verdict.RETRY, 21, 21, "the shop is closed"), (m.Verdict.RETRY, 22, 22, (5000, "the shop is closed")))
    yield "ACK, retries with reasons", m.Settle(1, 15, reasons)
    yield "FETCH", m.Fetch(2, 13, 10, 1000)
    yield "FETCH, one is enough", m.Fetch(2, 13, 10, 1000, 1)
    yield "END", m.End(2, 13, 10)
    yield "GAP", m.Gap(1, 500, 749, "retention")
    yield "RESET, begin", m.Reset(1, {"refresh": 3, "phase": "begin", "target": 1004})
    yield "RESET, end", m.Reset(1, {"refresh": 3, "phase": "end", "target": 1004})
    yield "READY", m.Ready(1, 16, 3)


def _asking_frames() -> Iterator[tuple[str, m.ToHub | m.ToClient]]:
    one = _encode("quote.get", [b'{"sku":"A1"}'], headers=[{"content-type": "application/json"}])
    answer = _encode("quote.get", [b'{"price":5}'], headers=[{"content-type": "application/json"}])
    stored = Block(b.stamp(_encode("order.new", [b"1", b"2", b"3"]), 1001, TS_US))
    yield "INFO", m.Info(14, {"what": "groups"})
    yield "INFO about one group", m.Info(40, {"what": "group", "name": "mail"})
    yield "INFO, the second page of schedules", m.Info(41, {"what": "schedules", "after": [TS_US, 7], "n": 100})
    yield "GET by seq", m.Get(42, {"topic": "order.new", "seq": 1001, "n": 100})
    yield "GET, the latest of each key", m.Get(43, {"pattern": "state.#", "by_key": True, "n": 1000})
    yield "GET, the last", m.Get(44, {"topic": "mail.DLQ", "last": True})
    yield "GOT", m.Got(42, (), stored.raw)
    yield "GOT, picked", m.Got(42, (1001, 1, 1003, 1), block_parts.pick(stored, [(0, 1), (2, 3)]))
    yield "OK to GET", m.Ok(0, 42, {"count": 3, "next": 1004, "more": False})
    create = {"op": "group.create", "group": "mail", "patterns": ["order.#"], "order": "key", "start": "new"}
    yield "ADMIN, create a group", m.Admin(45, create)
    yield "ADMIN, seek", m.Admin(46, {"op": "group.seek", "group": "mail", "to": {"time_us": TS_US}})
    redrive = {"op": "dlq.redrive", "group": "mail", "filter": {"reason": "rejected", "topic": "order.*"}, "max": 100}
    yield "ADMIN, redrive", m.Admin(47, redrive)
    yield "ERR, conflict", m.Err(0, 45, Code.CONFLICT, "group 'mail' exists with order 'none', not 'key'", {})
    yield (
        "SUB, responder",
        m.Subscribe(5, 48, {"patterns": ["quote.*"], "respond": True, "group": "shop", "concurrency": 8}),
    )
    yield "REQ to the hub", m.Request(0, 49, {"timeout_ms": 2000, "replies_max": 1}, one)
    yield "REQ to a responder", m.Request(5, 900, {"timeout_ms": 1990, "from": "web-3"}, one)
    yield "REP to the hub, more follow", m.Reply(5, 900, {"final": False}, answer)
    failed = {"final": True, "error": "ValueError: no such sku"}
    yield "REP to the hub, failed", m.Reply(5, 900, failed, _encode("quote.get", [b""]))
    yield "REP to the one who asked", m.Reply(0, 49, {"final": True, "from": "shop-1"}, answer)
    yield "ERR, no responders", m.Err(0, 49, Code.NO_RESPONDERS, "nobody answers requests to topic 'quote.get'", {})
    yield "ERR, timed out", m.Err(0, 49, Code.TIMED_OUT, "no answer within the time", {"sent": True})


def bad_frames() -> Iterator[tuple[str, list[bytes], Code]]:
    block = _encode("a", [b"x"])
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
    yield "PUB with options that are no map", [b"\x96\x10\x00\x01\x01\x00\x91\x01", block], bad_meta
    yield "PUBOK of three columns", [b"\x95\x11\x00\x00\x00\x91\x93\x01\x01\x01"], bad_meta
    yield "TXN without a block", [b"\x95\x35\x00\x01\x01\x90"], Code.BAD_FRAME
    yield "TXN of a channel without verdicts", [b"\x95\x35\x00\x01\x01\x91\x92\x01\x90", block], bad_meta
    yield "READY without a number", [b"\x93\x29\x01\x01"], bad_meta
    yield "ACK with a list of three as argument", [b"\x94\x24\x01\x01\x91\x94\x01\x01\x01\x93\x01\x02\x03"], bad_meta
    yield "REQ without a block", [b"\x94\x36\x00\x01\x80"], Code.BAD_FRAME
    yield "GET with an array", [b"\x94\x30\x00\x01\x91\x01"], bad_meta


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
    """What a command says, as JSON: the verb and the fields by the names of `fabric_protocol.messages`."""
    message = wire.decode(frames)
    verb = wire.Verb(frames[0][1])  # the second byte of the array: all verbs are below 128
    fields = {name: _plain(value) for name, value in message._asdict().items() if name != "block"}
    for optional in ("options", "enough", "origin"):
        if not fields.get(optional, True):
            del fields[optional]  # a PUB, a FETCH, a DELIVER or a GOT that has none
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
        to = "hub" if isinstance(message, m.ToHub) and not _comes_back(message) else "client"
        good.append({"name": name, "to": to, "frames": [f.hex() for f in encoded], "meaning": frames_meaning(encoded)})
    for name, encoded, code in bad_frames():
        bad.append({"name": name, "frames": [f.hex() for f in encoded], "error": code.name, "code": int(code)})
    return {"schema": "fabric.vectors.frames.v1", "good": good, "bad": bad}


def _comes_back(message: m.ToHub | m.ToClient) -> bool:
    """REQ and REP go both ways: to a responder on its channel, to the one who asked without one."""
    return (isinstance(message, m.Request) and message.chan > 0) or (isinstance(message, m.Reply) and message.chan == 0)


def text(vectors: Mapping[str, Any]) -> str:
    return json.dumps(vectors, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name, vectors in (("blocks.json", blocks()), ("frames.json", frames())):
        (HERE / name).write_text(text(vectors), encoding="utf-8")
        sys.stdout.write(f"{name}: {len(vectors['good'])} good, {len(vectors['bad'])} bad\n")
