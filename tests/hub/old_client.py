"""A conversation of an older client, as bytes: recorded once, played to every later hub.

`fixtures/old_client.json` has the frames of both sides, recorded before numbered sources and origins existed. `play`
sends the client's frames again and returns what the hub answers. Times, secrets and random epochs differ from run to
run, so `comparable` blanks them.

    python -m tests.hub.old_client        records the conversation anew; an older recording is worth more
"""

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgpack
import zmq

from fabric_protocol import block as b
from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.block import Block
from tests.hub.hostile import HubProcess
from tests.patience import PATIENCE_S

FIXTURE: Final = Path(__file__).parent / "fixtures" / "old_client.json"
BLANK: Final = "blank"
# Other in each run, or in each version of the hub.
VARIES: Final = frozenset({"session", "journal", "hub", "path", "due_us", "time_us"})
QUIET_S: Final = 0.3  # while recording: no frame for so long means that the hub has said all

Frames = list[bytes]


def commands() -> Iterator[m.ToHub]:
    """What the client says, one command after the other."""
    credit = [1 << 20, 1 << 30]
    yield m.Hello(
        1, {"proto": 1, "client": "old", "hb_ms": 60_000, "ttl_ms": 600_000, "producer": {"name": "p", "epoch": 1}}
    )
    yield m.Subscribe(1, 2, {"patterns": ["a.#"], "group": "g", "credit": credit, "lease_ms": 600_000})
    yield m.Publish(3, 1, 0, b.encode("a.b", [b"one", b"two"]))
    yield m.Publish(4, 1, 0, b.encode("a.b", [b"one", b"two"]))  # a resend
    yield m.Publish(5, 9, 0, b.encode("a.b", [b"after a gap"]))
    yield m.Publish(6, 1, 0, b.encode("a.b", [b"other", b"bodies"]))
    yield m.Publish(7, 3, 0, b.encode(["a.b", "c"], [b"three", b"four"], keys=[b"k", b""], headers=[{"h": "v"}, None]))
    yield m.Publish(8, 5, 0, b.encode("a.b", [b"five"], ids=[b"id"]), {"ttl_ms": 600_000})
    yield m.Publish(9, 6, 0, b.encode("a.b", [b"again"], ids=[b"id"]))
    yield m.Publish(10, 7, 1, b.encode("a.b", [b"received"]))
    yield m.Publish(11, 8, 0, b.encode("later", [b"later"]), {"delay_ms": 3_600_000, "name": "s"})
    yield m.Publish(12, 0, 0, b.encode("a.b", [b"without a number"]))
    yield m.Publish(13, 9, 0, b.encode("a.b", [b"?"]), {"no_such_option": 1})
    yield m.Settle(1, 14, ((m.Verdict.ACK, 1, 2, None), (m.Verdict.REJECT, 3, 3, "bad")))
    yield m.Transact(15, 9, ((1, ((m.Verdict.ACK, 4, 4, None),)),), b.encode("a.c", [b"result"]))
    yield m.Get(16, {"pattern": "#", "n": 100})
    yield m.Get(17, {"topic": "c", "n": 1})
    yield m.Get(18, {"topic": "$dlq.g", "n": 1})
    yield m.Subscribe(2, 19, {"patterns": ["a.b"], "start": "first", "credit": credit})
    yield m.Subscribe(3, 20, {"patterns": ["c"], "group": "fetching", "start": "first", "credit": [0, 0]})
    yield m.Fetch(3, 21, 1, 1_000)
    yield m.Cancel(22, {"name": "s"})
    yield m.Unsubscribe(2, 23)
    yield m.Ping(24)
    yield m.Goodbye(25)


def recorded() -> list[tuple[Frames, list[Frames]]]:
    """(frames of the client, what the hub answered) of each command."""
    rows = json.loads(FIXTURE.read_text(encoding="utf-8"))
    return [([*map(bytes.fromhex, said)], [[*map(bytes.fromhex, part)] for part in heard]) for said, heard in rows]


def play(url: str, said: Sequence[Frames], counts: Sequence[int] | None = None) -> list[list[Frames]]:
    """What the hub answers to each command: so many frames as `counts` says, or what comes until it is quiet."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(url)
        answers: list[list[Frames]] = []
        for at, frames in enumerate(said):
            socket.send_multipart(frames)
            heard: list[Frames] = []
            deadline = time.monotonic() + PATIENCE_S
            while counts is None or len(heard) < counts[at]:
                wait_s = QUIET_S if counts is None and heard else deadline - time.monotonic()
                if not socket.poll(max(int(wait_s * 1000), 0)):
                    break
                heard.append(socket.recv_multipart())
            answers.append(heard)
        return answers


def comparable(frames: Frames) -> list[Any]:
    """The meta with what varies blanked, and the block without its time."""
    meta: list[Any] = [_blanked(value) for value in msgpack.unpackb(frames[0])]
    if meta[0] == wire.Verb.ERR:
        meta[4] = BLANK  # the text is for people
    if len(frames) == 1:
        return meta
    block = Block(frames[1])
    block.verify()
    block.verify_stamp()
    rows = list(zip(block.topic_names(), block.payloads(), strict=True))
    return [meta, block.base_seq, block.flags, block.priority, bool(block.expires_us), rows]


def _blanked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: BLANK if key in VARIES else _blanked(inner) for key, inner in value.items()}
    return [_blanked(inner) for inner in value] if isinstance(value, list) else value


def main() -> None:
    said = [wire.encode(command) for command in commands()]
    with tempfile.TemporaryDirectory() as folder:
        hub = HubProcess(Path(folder))
        try:
            answers = play(hub.url, said)
        finally:
            hub.stop()
    rows = [
        [[frame.hex() for frame in frames], [[frame.hex() for frame in part] for part in heard]]
        for frames, heard in zip(said, answers, strict=True)
    ]
    FIXTURE.parent.mkdir(exist_ok=True)
    FIXTURE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
