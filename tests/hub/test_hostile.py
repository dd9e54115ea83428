"""The hub answers any frames with a stable code or drops them, and goes on serving other peers."""

import json
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgpack
import pytest
import zmq

from clients.vectors import make
from fabric_protocol import block as b
from fabric_protocol import block_parts, wire
from fabric_protocol import messages as m
from fabric_protocol.block import Block
from fabric_protocol.errors import Code
from fabric_protocol.wire import Verb
from tests.hub.hostile import Canary, HubProcess, Peer
from tests.protocol.twin import resealed
from tests.seeds import seeded

RSS_MB_MAX: Final = 300  # a hub at rest has some 50; a few largest blocks in flight are allowed for
BAD_FRAMES: Final = json.loads((make.HERE / "frames.json").read_text(encoding="utf-8"))["bad"]
# What is wrong with a stamp is no matter in a PUB: the hub writes its own.
BAD_BLOCKS: Final = [
    vector
    for vector in json.loads((make.HERE / "blocks.json").read_text(encoding="utf-8"))["bad"]
    if not vector["name"].startswith("stamped")
]


class Stage:
    """A hub, a canary in it, and a way to get hostile peers."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", hub: HubProcess) -> None:
        self._context = context
        self.hub = hub
        self.canary = Canary(Peer(context, hub.url))
        self.harmed = False

    def peer(self, routing_id: bytes = b"") -> Peer:
        return Peer(self._context, self.hub.url, routing_id)

    def assert_well(self) -> None:
        """The hub lives and serves the canary. After the first failure, later tests fail at once instead of waiting."""
        assert not self.harmed, "an earlier test has harmed the hub"
        self.harmed = True
        self.hub.assert_alive()
        self.canary.round_trip()
        assert self.hub.rss_mb() < RSS_MB_MAX
        self.harmed = False


@pytest.fixture(scope="module")
def shared_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    hub = HubProcess(tmp_path_factory.mktemp("hostile"))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        yield Stage(context, hub)
        hub.assert_alive()
    finally:
        context.destroy(linger=0)
        code = hub.stop()
    assert code == 0


@pytest.fixture
def stage(shared_hub: Stage) -> Iterator[Stage]:
    """The shared hub; after each test the hub has to be well."""
    yield shared_hub
    shared_hub.assert_well()


# Before HELLO.


@pytest.mark.parametrize("verb", [v for v in Verb if v is not Verb.HELLO])
def test_nothing_is_processed_before_hello(stage: Stage, verb: Verb) -> None:
    samples = {wire.encode(message)[0][1]: message for _, message in make.good_frames()}
    with stage.peer() as peer:
        peer.send(samples[verb])
        refusal = peer.until(m.Err)
        assert refusal.code == Code.NO_SESSION
        assert refusal.rid == getattr(samples[verb], "rid", 0)
        peer.hello()


def test_junk_before_hello_is_counted_and_dropped(stage: Stage) -> None:
    before = stage.canary.counters().get("dropped_junk", 0)
    with stage.peer() as peer:
        for vector in BAD_FRAMES:
            peer.send_raw([bytes.fromhex(frame) for frame in vector["frames"]])
        welcome = peer.hello()
    assert not welcome.fields["resumed"]
    stage.canary.wait_for("dropped_junk", before + len(BAD_FRAMES) - 1)


BAD_HELLOS: Final[dict[str, tuple[Any, Code]]] = {
    "no proto": ({}, Code.UNSUPPORTED_VERSION),
    "proto 2": ({"proto": 2}, Code.UNSUPPORTED_VERSION),
    "proto as text": ({"proto": "1"}, Code.UNSUPPORTED_VERSION),
    "proto as list": ({"proto": [1, 0]}, Code.UNSUPPORTED_VERSION),
    "client as number": ({"proto": 1, "client": 5}, Code.BAD_OPTION),
    "client too long": ({"proto": 1, "client": "x" * 1000}, Code.BAD_OPTION),
    "heartbeat 0": ({"proto": 1, "hb_ms": 0}, Code.BAD_OPTION),
    "heartbeat as text": ({"proto": 1, "hb_ms": "5000"}, Code.BAD_OPTION),
    "heartbeat as boolean": ({"proto": 1, "hb_ms": True}, Code.BAD_OPTION),
    "ttl of a year": ({"proto": 1, "ttl_ms": 31_536_000_000}, Code.BAD_OPTION),
    "producer as text": ({"proto": 1, "producer": "me"}, Code.BAD_OPTION),
    "producer without name": ({"proto": 1, "producer": {}}, Code.BAD_OPTION),
    "producer with a number as name": ({"proto": 1, "producer": {"name": 5}}, Code.BAD_OPTION),
    "resume as text": ({"proto": 1, "resume": "me"}, Code.BAD_OPTION),
    "resume with bad subs": ({"proto": 1, "resume": {"session": bytes(16), "subs": [[1]]}}, Code.BAD_OPTION),
    "resume with subs as map": ({"proto": 1, "resume": {"session": bytes(16), "subs": {"1": 1}}}, Code.BAD_OPTION),
    "nested": ({"proto": 1, "client": [[[[[[[[[["x"]]]]]]]]]]}, Code.BAD_META),
}


@pytest.mark.parametrize("what", BAD_HELLOS)
def test_a_wrong_hello_is_refused_and_a_right_one_follows(stage: Stage, what: str) -> None:
    fields, code = BAD_HELLOS[what]
    with stage.peer() as peer:
        peer.send(m.Hello(5, fields))
        if code is not Code.BAD_META:  # junk before a session is dropped without a word
            assert peer.refused(5) is code
        peer.hello()


def test_an_unknown_session_is_not_resumed(stage: Stage) -> None:
    with stage.peer() as peer:
        assert not peer.hello(resume={"session": bytes(16), "subs": [[1, 10]]}).fields["resumed"]
    with stage.peer() as peer:
        assert not peer.hello(resume={"session": "text", "subs": []}).fields["resumed"]


def test_a_routing_id_chosen_by_the_client_is_ignored(stage: Stage) -> None:
    before = stage.canary.counters().get("dropped_chosen_id", 0)
    with stage.peer(b"client-7") as peer:
        peer.send(m.Hello(1, {"proto": 1}))
        stage.canary.wait_for("dropped_chosen_id", before)
        assert peer.receive(0.0) is None


# In a session.


@pytest.mark.parametrize("vector", BAD_FRAMES, ids=lambda v: str(v["name"]))
def test_malformed_frames_are_answered_with_their_code(stage: Stage, vector: dict[str, Any]) -> None:
    with stage.peer() as peer:
        peer.hello()
        peer.send_raw([bytes.fromhex(frame) for frame in vector["frames"]])
        assert peer.until(m.Err).code == vector["code"]
        peer.still_served()


@pytest.mark.parametrize("vector", BAD_BLOCKS, ids=lambda v: str(v["name"]))
def test_malformed_blocks_are_answered_with_their_code(stage: Stage, vector: dict[str, Any]) -> None:
    with stage.peer() as peer:
        peer.hello()
        peer.send(m.Publish(7, 0, 0, bytes.fromhex(vector["hex"])))
        assert peer.refused(7) == vector["code"]
        peer.still_served()


SPARSE: Final = block_parts.pick(Block(b.stamp(b.encode("a", [b"1", b"2", b"3"]), 1, 1)), [(0, 1), (2, 3)])
BAD_PUBS: Final[dict[str, tuple[int, bytes, Code]]] = {
    "empty topic": (0, b.encode("", [b"x"]), Code.BAD_TOPIC),
    "empty word": (0, b.encode("a..b", [b"x"]), Code.BAD_TOPIC),
    "dot at the end": (0, b.encode("a.", [b"x"]), Code.BAD_TOPIC),
    "wildcard": (0, b.encode("a.*", [b"x"]), Code.BAD_TOPIC),
    "space": (0, b.encode("a b", [b"x"]), Code.BAD_TOPIC),
    "control character": (0, b.encode("a\x00b", [b"x"]), Code.BAD_TOPIC),
    "17 words": (0, b.encode(".".join("a" * 17), [b"x"]), Code.BAD_TOPIC),
    "one bad among good": (0, b.encode(["a.b", "a..b"], [b"x", b"y"]), Code.BAD_TOPIC),
    "the hub's own topic": (0, b.encode("$dlq.canary", [b"x"]), Code.FORBIDDEN),
    "sparse": (0, SPARSE, Code.BAD_BLOCK),
    "numbered without a producer": (1, b.encode("a", [b"x"]), Code.BAD_OPTION),
}


@pytest.mark.parametrize("what", BAD_PUBS)
def test_a_wrong_publish_is_refused(stage: Stage, what: str) -> None:
    pseq, block, code = BAD_PUBS[what]
    with stage.peer() as peer:
        peer.hello()
        peer.send(m.Publish(7, pseq, 0, block))
        assert peer.refused(7) is code
        peer.still_served()


def test_numbers_of_a_producer_that_do_not_follow_are_refused(stage: Stage) -> None:
    block = b.encode("hostile.a", [b"1", b"2"])
    with stage.peer() as peer:
        peer.hello(producer={"name": "hostile"})
        for rid, pseq, code in ((1, 2, Code.SEQUENCE_GAP), (2, 1 << 62, Code.SEQUENCE_GAP)):
            peer.send(m.Publish(rid, pseq, 0, block))
            assert peer.refused(rid) is code
        peer.send(m.Publish(3, 1, 0, block))
        assert peer.until(m.PubOk).confirms[0][::2] == (3, 2)
        peer.send(m.Publish(4, 2, 0, block))
        assert peer.refused(4) is Code.PSEQ_TAKEN, "2..3 overlaps what was stored and reaches beyond it"
        with stage.peer() as newer:
            newer.hello(producer={"name": "hostile"})
            peer.send(m.Publish(5, 3, 0, block))
            assert peer.refused(5) is Code.FENCED


def test_a_frame_over_the_limit_ends_the_connection_and_nothing_else(stage: Stage) -> None:
    with stage.peer() as peer:
        peer.hello()
        peer.send_raw([wire.encode(m.Publish(7, 0, 0, b""))[0], bytes(b.BLOCK_BYTES_MAX + 1)])
        stage.canary.round_trip()
    with stage.peer() as peer:
        peer.hello()


BAD_SUBS: Final[dict[str, tuple[int, dict[str, Any], Code]]] = {
    "channel 0": (0, {"patterns": ["a"]}, Code.BAD_OPTION),
    "channel beyond all": (65_536, {"patterns": ["a"]}, Code.BAD_OPTION),
    "no patterns": (1, {}, Code.BAD_OPTION),
    "patterns as text": (1, {"patterns": "a"}, Code.BAD_OPTION),
    "patterns as numbers": (1, {"patterns": [1]}, Code.BAD_OPTION),
    "too many patterns": (1, {"patterns": ["a"] * 1000}, Code.BAD_OPTION),
    "empty word": (1, {"patterns": ["a..b"]}, Code.BAD_PATTERN),
    "long pattern": (1, {"patterns": ["x" * 300]}, Code.BAD_PATTERN),
    "wildcard within a word": (1, {"patterns": ["a*"]}, Code.BAD_PATTERN),
    "> before the end": (1, {"patterns": [">.a"]}, Code.BAD_PATTERN),
    "group as number": (1, {"patterns": ["a"], "group": 5}, Code.BAD_OPTION),
    "empty group": (1, {"patterns": ["a"], "group": ""}, Code.BAD_OPTION),
    "long group": (1, {"patterns": ["a"], "group": "g" * 500}, Code.BAD_OPTION),
    "the hub's own group": (1, {"patterns": ["a"], "group": "$g"}, Code.BAD_OPTION),
    "lease 0": (1, {"patterns": ["a"], "group": "g", "lease_ms": 0}, Code.BAD_OPTION),
    "lease as text": (1, {"patterns": ["a"], "group": "g", "lease_ms": "1"}, Code.BAD_OPTION),
    "negative attempts": (1, {"patterns": ["a"], "group": "g", "attempts_max": -1}, Code.BAD_OPTION),
    "unknown order": (1, {"patterns": ["a"], "group": "g", "order": "random"}, Code.BAD_OPTION),
    "order as list": (1, {"patterns": ["a"], "group": "g", "order": ["key"]}, Code.BAD_OPTION),
    "order without a group": (1, {"patterns": ["a"], "order": "strict"}, Code.BAD_OPTION),
    "order and no acks": (1, {"patterns": ["a"], "group": "g", "order": "key", "ack": "auto"}, Code.BAD_OPTION),
    "no concurrency": (1, {"patterns": ["a"], "group": "g", "concurrency": 0}, Code.BAD_OPTION),
    "jitter over all": (1, {"patterns": ["a"], "group": "g", "jitter_pct": 101}, Code.BAD_OPTION),
    "unknown level": (1, {"patterns": ["a"], "level": "maybe"}, Code.BAD_OPTION),
    "level as list": (1, {"patterns": ["a"], "level": []}, Code.BAD_OPTION),
    "unknown start": (1, {"patterns": ["a"], "group": "g", "start": "middle"}, Code.BAD_OPTION),
    "start as list": (1, {"patterns": ["a"], "group": "g", "start": [1]}, Code.BAD_OPTION),
    "start at a negative seq": (1, {"patterns": ["a"], "group": "g", "start": {"seq": -1}}, Code.BAD_OPTION),
    "start at no number": (1, {"patterns": ["a"], "group": "g", "start": {"time_us": "now"}}, Code.BAD_OPTION),
    "credit as number": (1, {"patterns": ["a"], "credit": 5}, Code.BAD_OPTION),
    "credit of one": (1, {"patterns": ["a"], "credit": [5]}, Code.BAD_OPTION),
    "negative credit": (1, {"patterns": ["a"], "credit": [-5, 5]}, Code.BAD_OPTION),
    "other patterns than the group has": (1, {"patterns": ["b"], "group": "canary"}, Code.GROUP_MISMATCH),
    "another lease than the group has": (1, {"group": "canary", "lease_ms": 1000}, Code.GROUP_MISMATCH),
}


@pytest.mark.parametrize("what", BAD_SUBS)
def test_a_wrong_subscription_is_refused(stage: Stage, what: str) -> None:
    chan, fields, code = BAD_SUBS[what]
    with stage.peer() as peer:
        peer.hello()
        peer.send(m.Subscribe(chan, 7, fields))
        assert peer.refused(7) is code
        peer.still_served()


def test_a_channel_is_used_once(stage: Stage) -> None:
    with stage.peer() as peer:
        peer.hello()
        peer.send(m.Subscribe(1, 7, {"patterns": ["hostile.#"]}))
        peer.until(m.Ok, 7)
        peer.send(m.Subscribe(1, 8, {"patterns": ["hostile.#"]}))
        assert peer.refused(8) is Code.BAD_OPTION


def test_commands_for_channels_that_do_not_exist_are_refused(stage: Stage) -> None:
    with stage.peer() as peer:
        peer.hello()
        for command in (
            m.Unsubscribe(9, 1),
            m.Credit(9, 10, 10),
            m.Settle(9, 3, ((m.Verdict.ACK, 1, 1, None),)),
            m.Fetch(9, 4, 10, 0),
        ):
            peer.send(command)
            assert peer.refused(getattr(command, "rid", 0)) is Code.NOT_FOUND
        peer.still_served()


def test_a_second_hello_is_refused(stage: Stage) -> None:
    with stage.peer() as peer:
        peer.hello()
        peer.send(m.Hello(7, {"proto": 1}))
        assert peer.refused(7) is Code.SESSION_EXISTS
        peer.still_served()


def test_an_unknown_question_is_refused(stage: Stage) -> None:
    with stage.peer() as peer:
        peer.hello()
        for what in ("secrets", 5, None, ["hub"]):
            peer.send(m.Info(7, {"what": what}))
            assert peer.refused(7) is Code.NOT_FOUND
        peer.still_served()


def test_words_of_the_hub_are_not_taken_from_clients(stage: Stage) -> None:
    frames = [message for _, message in make.good_frames()]
    words = [message for message in frames if isinstance(message, m.ToClient) and not isinstance(message, m.ToHub)]
    with stage.peer() as peer:
        peer.hello()
        for word in words:
            peer.send(word)
            assert peer.until(m.Err).code == Code.UNKNOWN_VERB
        peer.still_served()


def test_verdicts_on_what_was_never_sent_change_nothing(stage: Stage) -> None:
    with stage.peer() as peer:
        peer.hello()
        fields = {"patterns": ["hostile.ack"], "group": "hostile-ack", "credit": [10, 1 << 20]}
        peer.send(m.Subscribe(1, 7, fields))
        peer.until(m.Ok, 7)
        peer.send(m.Publish(8, 0, 0, b.encode("hostile.ack", [b"1", b"2", b"3"])))
        while peer.until(m.Deliver).first_ordinal + 2 < 3:
            pass
        for rid, first, last in ((9, 4, 4), (10, 1, 4), (11, 1, (1 << 63) - 1), (12, 1 << 62, 1 << 62)):
            for verdict in m.Verdict:
                peer.send(m.Settle(1, rid, ((verdict, first, last, None),)))
                assert peer.refused(rid) is Code.BAD_ORDINAL
        peer.send(m.Settle(1, 13, ((m.Verdict.ACK, 1, 3, None), (m.Verdict.ACK, 1, 3, None))))
        answer = peer.until(m.Ok, 13).fields
        assert answer == {"applied": 3, "stale": [[1, 3]]}
        peer.send(m.Settle(1, 14, ((m.Verdict.REJECT, 1, 3, "too late"),)))
        assert peer.until(m.Ok, 14).fields["applied"] == 0


def rejected(peer: Peer, group: str, block: bytes) -> None:
    """Publish a block, receive it as a member of the group, and reject it."""
    topic = Block(block).topics[0]
    peer.send(m.Subscribe(1, 7, {"patterns": [topic], "group": group, "start": "new", "credit": [10, 1 << 30]}))
    answer = peer.receive()
    if isinstance(answer, m.Err):
        return  # such a group is not allowed: as good
    peer.send(m.Publish(8, 0, 0, block))
    while not isinstance(answer, m.Deliver):
        answer = peer.receive()
        assert answer is not None, "neither a delivery nor an error came"
        if isinstance(answer, m.Err):
            return  # such a block is not allowed: as good
    peer.send(m.Settle(1, 9, ((m.Verdict.REJECT, 1, 1, "x" * 1000),)))
    assert peer.until(m.Ok, 9).fields["applied"] == 1


def test_a_dead_letter_is_written_however_long_the_name_of_its_group(stage: Stage) -> None:
    for group in ("ж" * 128, "g" * 128, "two words", "a..b", "*", "\x00"):
        with stage.peer() as peer:
            peer.hello()
            rejected(peer, group, b.encode("hostile.dead", [b"x"]))
        stage.assert_well()


def test_a_dead_letter_is_written_however_large_it_is(stage: Stage) -> None:
    largest = b.BLOCK_BYTES_MAX - b.HEAD_BYTES - 24 - 8
    for size in (largest, largest - 1_000, largest - 100_000):
        with stage.peer() as peer:
            peer.hello()
            rejected(peer, f"hostile-large-{size}", b.encode("hostile.large", [bytes(size)]))
        stage.assert_well()


# Raw bytes on the wire.

GREETING: Final = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\x00") + b"\x00" + bytes(31)
READY: Final = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
HANDSHAKE: Final = GREETING + b"\x04" + bytes([len(READY)]) + READY

RAW: Final = {
    "nothing": b"",
    "one byte": b"\xff",
    "HTTP": b"GET / HTTP/1.1\r\nHost: hub\r\n\r\n",
    "half a greeting": GREETING[:30],
    "greeting of another mechanism": GREETING.replace(b"NULL", b"EVIL"),
    "greeting of ZMTP 9": GREETING[:10] + b"\x09" + GREETING[11:],
    "greeting, then junk": GREETING + b"\xaa" * 200,
    "no READY": GREETING + b"\x00\x03abc",
    "READY with a lying length": GREETING + b"\x04\xff" + READY,
    "a frame of 2^62 bytes": HANDSHAKE + b"\x02" + struct.pack(">Q", 1 << 62) + b"x",
    "a frame of 2^64 - 1 bytes": HANDSHAKE + b"\x02" + b"\xff" * 8,
    "a frame that never ends": HANDSHAKE + b"\x01\xff" + b"x" * 100,
    "unknown frame flags": HANDSHAKE + b"\xf8\x01x",
    "a thousand empty frames": HANDSHAKE + b"\x01\x00" * 1000 + b"\x00\x00",
    "empty messages": HANDSHAKE + b"\x00\x00" * 1000,
    "a routing id of ours": GREETING + b"\x04\x2e" + READY + b"\x08Identity\x00\x00\x00\x05\x00abcd",
}


@pytest.mark.parametrize("what", RAW)
def test_raw_bytes_do_no_harm(stage: Stage, what: str) -> None:
    for wait in (False, True):
        with socket.create_connection(("127.0.0.1", stage.hub.port)) as raw:
            raw.sendall(RAW[what])
            if wait:
                stage.canary.round_trip()  # the hub has had its chance to read


def test_random_bytes_do_no_harm(stage: Stage) -> None:
    rng = seeded("raw bytes")
    for start in (b"", GREETING, HANDSHAKE):
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", stage.hub.port)) as raw:
                raw.sendall(start + rng.randbytes(rng.randrange(1, 2000)))
        stage.assert_well()


def test_connections_that_never_speak_are_borne(stage: Stage) -> None:
    silent = [socket.create_connection(("127.0.0.1", stage.hub.port)) for _ in range(100)]
    stage.assert_well()
    for connection in silent:
        connection.close()


# Floods.


def test_a_flood_of_errors_to_a_peer_that_does_not_read_is_bounded(stage: Stage) -> None:
    junk = wire.encode(m.Settle(9, 1, ((m.Verdict.ACK, 1, 1, None),)))
    before = stage.canary.counters().get("refused_not_found", 0)
    with stage.peer() as peer:
        peer.hello()
        for _ in range(10_000):
            peer.send_raw(junk)
        stage.canary.wait_for("refused_not_found", before + 1_000)
        stage.assert_well()


def test_nested_arrays_do_not_eat_memory(stage: Stage) -> None:
    """msgpack allocates an array before it reads it, so a small frame can ask for a lot of memory."""
    with stage.peer() as peer:
        peer.hello()
        for size in (4_000, 65_000, 1 << 20):
            header = b"\xdc" + struct.pack(">H", min(size, 65_535))
            meta = (header * 1_000).ljust(size, b"\x00")
            peer.send_raw([meta])
            assert peer.until(m.Err).code in (Code.BAD_META, Code.TOO_LARGE)


# Sessions of a client that has gone mad.


def hostile_value(rng: random.Random) -> Any:
    """A value of an unexpected kind."""
    return rng.choice(
        [
            *(
                None,
                True,
                False,
                0,
                1,
                -1,
                2**31,
                2**53,
                2**63 - 1,
                2**64 - 1,
                -(2**63),
                0.5,
                float("nan"),
                float("inf"),
            ),
            *("", "x", "#", "$dlq.#", "a..b", "first", "last", "x" * 5_000, "\x00", "ж" * 200),
            *(b"", b"\x00" * 16, bytes(5_000), [], {}, [1], [[1, 1]], [1, 2], [-1, 5], [2**63, 2**63], {"seq": 1}),
            *(
                {"seq": -1},
                {"seq": 2**63},
                {"time_us": -(2**63)},
                {"time_us": 2**64 - 1},
                {"time_us": 1.5},
                {"name": "p"},
            ),
            *({"name": "p", "epoch": 2**63}, {"a": {"b": {"c": {}}}}, ["a", 1], ["#"], ["x"] * 100, [[[[[[]]]]]]),
            *(msgpack.ExtType(5, b"x"), msgpack.Timestamp(1, 1), {"session": bytes(16)}, {"session": 5, "subs": None}),
        ]
    )


HELLO_FIELDS: Final = ("proto", "client", "hb_ms", "ttl_ms", "producer", "resume", "unknown")
SUB_FIELDS: Final = ("patterns", "group", "start", "lease_ms", "attempts_max", "level", "credit", "unknown")


def test_fields_with_hostile_values_are_answered(stage: Stage) -> None:
    """Every HELLO, SUB and INFO has exactly one answer, whatever its fields hold."""
    rng = seeded("hostile fields")
    for _ in range(400):
        with stage.peer() as peer:
            hello = {"proto": 1} | {name: hostile_value(rng) for name in rng.sample(HELLO_FIELDS, 2)}
            peer.send(m.Hello(1, hello))
            first = peer.receive()
            assert isinstance(first, m.Welcome | m.Err), hello
            if isinstance(first, m.Err):
                continue
            for rid in range(2, 8):
                good = {"patterns": ["hostile.fields"], "credit": [1, 1]}
                fields = good | {name: hostile_value(rng) for name in rng.sample(SUB_FIELDS, 2)}
                peer.send(m.Subscribe(rng.choice((rid, 0, 1, 2**63)), rid, fields))
            peer.send(m.Info(8, {"what": hostile_value(rng)}))
            answers = [_answer(peer) for _ in range(7)]
            assert sorted(answers) == list(range(2, 9)), hello
    stage.assert_well()


def _answer(peer: Peer) -> int:
    """The rid of the next answer; deliveries in between are passed over."""
    while True:
        message = peer.receive()
        assert message is not None, "no answer came"
        if isinstance(message, m.Ok | m.Err):
            return message.rid


def test_mutated_sessions_do_no_harm(stage: Stage) -> None:
    rng = seeded("mutated sessions")
    for i in range(500):
        with stage.peer() as peer:
            peer.hello(producer={"name": f"mad-{rng.randrange(5)}"})
            for frames in _session(rng):
                peer.send_raw(_bent(rng, frames) if rng.random() < 0.5 else frames)
            rid = 1 << 40
            peer.send(m.Info(rid, {"what": "hub"}))
            if not _heard(peer, rid):
                continue  # a mutant said GOODBYE
        if i % 50 == 0:
            stage.assert_well()


def _heard(peer: Peer, rid: int) -> bool:
    while True:
        message = peer.receive()
        assert message is not None, "the hub has stopped answering"
        if getattr(message, "rid", None) == rid:
            return isinstance(message, m.Ok)


def _session(rng: random.Random) -> list[list[bytes]]:
    """A plausible session on a group of its own, in a plausible order."""
    group = f"mad-{rng.randrange(8)}"
    words: list[m.ToHub] = [m.Subscribe(1, 1, {"patterns": ["mad.#"], "group": group, "credit": [50, 1 << 20]})]
    for n in range(rng.randint(3, 12)):
        first = rng.randint(1, 20)
        verdict = rng.choice(list(m.Verdict))
        argument = {m.Verdict.RETRY: 1, m.Verdict.REJECT: "mad"}.get(verdict)
        block = b.encode(rng.choice(["mad.a", "mad.b"]), [rng.randbytes(20) for _ in range(rng.randint(1, 5))])
        words += rng.sample(
            [
                m.Publish(10 + n, rng.choice([0, 0, n]), rng.choice([0, 1]), block),
                m.Settle(1, 30 + n, ((verdict, first, first + rng.randint(0, 3), argument),)),
                m.Credit(1, rng.randrange(100), rng.randrange(1 << 20)),
                m.Fetch(1, 50 + n, rng.randint(1, 5), rng.choice([0, 1, 1000])),
                m.Subscribe(rng.randint(2, 4), 70 + n, {"patterns": ["mad.*"], "credit": [10, 1000], "start": "first"}),
                m.Unsubscribe(rng.randint(1, 4), 90 + n),
                m.Ping(110 + n),
            ],
            3,
        )
    return [wire.encode(word) for word in words]


def _bent(rng: random.Random, frames: list[bytes]) -> list[bytes]:
    """One mutation somewhere in the frames; a lie within a block is sealed with a CRC that fits."""
    if len(frames) == 2 and rng.random() < 0.7:
        body = bytearray(frames[1][b.HEAD_BYTES :])
        struct.pack_into("<H", body, rng.randrange(len(body) // 2) * 2, rng.choice((0, 1, 3, 9, 255, 0x8000, 0xFFFF)))
        return [frames[0], resealed(frames[1], bytes(body), flags=rng.choice((0, 0, 0, 1, 2, 4, 8, 15)))]
    bent = [bytearray(frame) for frame in frames]
    kind, frame = rng.randrange(6), rng.choice(bent)
    at = rng.randrange(len(frame))
    if kind == 0:
        frame[at] = rng.randrange(256)
    elif kind == 1:
        frame[at] ^= 1 << rng.randrange(8)
    elif kind == 2:
        del frame[at:]
    elif kind == 3:
        frame[at:at] = rng.randbytes(rng.randint(1, 9))
    elif kind == 4:
        bent.append(bytearray(rng.randbytes(8)))
    else:
        bent.pop()
    return [bytes(one) for one in bent] or [b""]


@pytest.fixture(scope="module", autouse=True)
def _vectors_are_there() -> None:
    assert Path(make.HERE / "frames.json").exists()
    assert len(BAD_BLOCKS) > 20
