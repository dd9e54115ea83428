"""The hex dumps and the table of numbers in PROTOCOL.md, made from the code so that they cannot go stale.

A dump stands in PROTOCOL.md below a line `<!-- bytes: NAME -->`, the table below `<!-- numbers -->`. Run
`python clients/dumps.py` to write them anew.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgpack

from fabric_protocol import block as b
from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.bounds import NUMBER_MAX, TABLE

PROTOCOL: Final = Path(__file__).parent / "PROTOCOL.md"
PER_LINE: Final = 8
SLOT: Final = re.compile(r"<!-- bytes: ([a-z-]+) -->\n```text\n(.*?)```\n", re.DOTALL)
NUMBERS: Final = re.compile(r"<!-- numbers -->\n.*?\n\n", re.DOTALL)

Part = tuple[bytes, str]  # some bytes, and what they say


def block_parts(raw: bytes) -> Iterator[Part]:
    """A block of two messages with one topic and nothing else, field by field."""
    sizes = [
        (4, 'magic "FAB1"'),
        (1, "version"),
        (1, "flags"),
        (1, "priority"),
        (1, "spare"),
        (4, "count"),
        (2, "n_topics"),
    ]
    sizes += [(2, "spare"), (8, "base_seq"), (8, "ts_us"), (8, "expires_us"), (4, "body_len"), (4, "body_crc")]
    sizes += [(4, "spare"), (4, "head_crc"), (8, "topics: offsets 0, 9"), (9, '"order.new"'), (7, "padding")]
    sizes += [(12, "payload: offsets 0, 3, 6"), (6, '"one" "two"'), (6, "padding")]
    at = 0
    for size, label in sizes:
        yield raw[at : at + size], label
        at += size
    assert at == len(raw)


def meta_parts(value: Any, depth: int = 0) -> Iterator[Part]:
    """A msgpack value, token by token."""
    indent = "  " * depth
    packer = msgpack.Packer()
    if isinstance(value, dict):
        yield packer.pack_map_header(len(value)), f"{indent}map of {len(value)}"
        for key, item in value.items():
            yield from meta_parts(key, depth + 1)
            yield from meta_parts(item, depth + 2)
    elif isinstance(value, list | tuple):
        yield packer.pack_array_header(len(value)), f"{indent}array of {len(value)}"
        for item in value:
            yield from meta_parts(item, depth + 1)
    else:
        shown = f'"{value}"' if isinstance(value, str) else f"bin {len(value)}" if isinstance(value, bytes) else value
        yield packer.pack(value), f"{indent}{'nil' if value is None else shown}"


def lines(parts: Iterable[Part]) -> Iterator[str]:
    at = 0
    for data, label in parts:
        for start in range(0, len(data), PER_LINE):
            piece = data[start : start + PER_LINE].hex(" ")
            yield f"{at + start:04x}  {piece:<{3 * PER_LINE}} {label if not start else ''}".rstrip()
        at += len(data)


def of_block(raw: bytes) -> str:
    return "".join(f"{line}\n" for line in lines(block_parts(raw)))


def of_meta(message: m.ToHub | m.ToClient) -> str:
    """The meta frame of a message; its first token, after the array, is the verb."""
    meta = wire.encode(message)[0]
    parts = list(meta_parts(msgpack.unpackb(meta)))
    parts[1] = (parts[1][0], f"{parts[1][1]}   {wire.Verb(meta[1]).name}")
    parts[2] = (parts[2][0], f"{parts[2][1]}   chan")
    parts[3] = (parts[3][0], f"{parts[3][1]}   rid")
    assert b"".join(data for data, _ in parts) == meta
    return "".join(f"{line}\n" for line in lines(parts))


def dumps() -> dict[str, str]:
    """All dumps by name: one short conversation."""
    block = b.encode("order.new", [b"one", b"two"])
    stamped = b.stamp(block, 1001, 1_700_000_000_000_000)
    return {
        "hello": of_meta(m.Hello(1, {"proto": 1, "client": "n1", "producer": {"name": "p1"}})),
        "sub": of_meta(m.Subscribe(1, 2, {"patterns": ["order.#"], "group": "mail", "credit": [200, 4_194_304]})),
        "pub": of_meta(m.Publish(3, 1, m.Level.JOURNALED, block)),
        "block": of_block(block),
        "pubok": of_meta(m.PubOk(m.Level.JOURNALED, ((3, 1001, 2, 0),))),
        "deliver": of_meta(m.Deliver(1, 1, 1, (), stamped)),
        "stamped": of_block(stamped),
        "ack": of_meta(m.Settle(1, 0, ((m.Verdict.ACK, 1, 2, None),))),
        "credit": of_meta(m.Credit(1, 400, 8_388_608)),
        "txn": of_meta(m.Transact(4, 3, ((1, ((m.Verdict.ACK, 3, 3, None),)),), block)),
        "txn-ok": of_meta(m.Ok(0, 4, {"first_seq": 1003, "stored": 2, "dups": 0, "applied": 1})),
        "pub-later": of_meta(m.Publish(5, 5, m.Level.JOURNALED, block, {"delay_ms": 5000})),
    }


def numbers() -> str:
    """The table of all numbers that clients send. Commands and fields with the same range share a row."""
    fields: dict[tuple[str, int, int, str], list[str]] = {}
    for bound in TABLE:
        fields.setdefault((bound.verb, bound.least, bound.most, bound.code.name), []).append(bound.field)
    verbs: dict[tuple[str, int, int, str], list[str]] = {}
    for (verb, least, most, code), names in fields.items():
        verbs.setdefault((", ".join(names), least, most, code), []).append(verb)
    lines = ["| command | field | least | most | otherwise |", "|---|---|---:|---:|---|"]
    for (shown, least, most, code), commands in verbs.items():
        highest = "2^63-1" if most == NUMBER_MAX else f"{most:,}"
        lines.append(f"| {', '.join(commands)} | {shown} | {least:,} | {highest} | `{code}` |")
    return "\n".join(lines)


def renewed(text: str) -> str:
    """PROTOCOL.md with every dump and the table of numbers as the code makes them."""
    made = dumps()
    text = NUMBERS.sub(lambda _: f"<!-- numbers -->\n{numbers()}\n\n", text)
    return SLOT.sub(lambda slot: f"<!-- bytes: {slot[1]} -->\n```text\n{made[slot[1]]}```\n", text)


if __name__ == "__main__":
    PROTOCOL.write_text(renewed(PROTOCOL.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{PROTOCOL.name}: {len(dumps())} dumps\n")
