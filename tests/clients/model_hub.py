"""A simple hub for the client's tests: plain lists, one message at a time, no disk and no time.

It implements the whole protocol towards a client, and a test can let it refuse, forget or answer late. It is used in
two ways: a test passes messages by hand, or `Served` puts it behind a real ROUTER socket.
"""

import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import zmq

from fabric_protocol import block, wire
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from tests.clients.real_hub import eventually

JOURNAL = b"J" * 16
TS_US = 1_700_000_000_000_000


class Sub:
    def __init__(self, fields: dict[str, Any], cursor: int) -> None:
        self.fields = fields
        self.group: str | None = fields.get("group")
        self.ordinal = 0
        self.credit = list(fields.get("credit", [0, 0]))
        self.bytes_sent = 0
        self.cursor = cursor
        self.leased: dict[int, int] = {}  # ordinal -> seq
        self.sent: list[m.Deliver] = []
        self.fetch: tuple[int, int, int] | None = None  # rid, ordinals allowed at the end, sent before


class Peer:
    """A session."""

    def __init__(self, token: bytes, producer: str) -> None:
        self.token = token
        self.producer = producer
        self.subs: dict[int, Sub] = {}


class ModelHub:
    def __init__(self, flow: tuple[int, int] = (8, 1 << 20), deliver_max: int = 1000) -> None:
        self.journal: list[tuple[str, bytes]] = []  # seq - 1 -> topic, payload
        self.blocks: list[block.Block] = []  # as stored, for headers and keys
        self.producers: dict[str, tuple[int, int]] = {}  # name -> epoch, last pseq
        self.stored_at: dict[tuple[str, int], int] = {}  # producer, pseq of a block -> first seq
        self.groups: dict[str, deque[tuple[int, int]]] = {}  # name -> (seq, attempt) to deliver
        self.cursors: dict[str, int] = {}
        self.acked: dict[str, list[int]] = {}
        self.verdicts: list[tuple[int, int, int, Any]] = []
        self.sessions: dict[bytes, Peer] = {}  # by token
        self.peers: dict[bytes, Peer] = {}  # by routing id
        self.flow = flow
        self.deliver_max = deliver_max
        self.heard: list[m.ToHub] = []
        self.refuse: deque[m.Err | None] = deque()  # the next PUBs get these, None: accept
        self.silent: set[type] = set()  # kinds of messages that get no answer
        self._tokens = 0
        self._out: list[tuple[bytes, m.ToClient]] = []

    def restart(self) -> None:
        """Sessions and leases are memory; the journal, producers and acks are not."""
        for session in self.sessions.values():
            for sub in session.subs.values():
                self._release(sub)
        self.sessions.clear()
        self.peers.clear()

    def step(self, peer: bytes, message: m.ToHub) -> list[tuple[bytes, m.ToClient]]:
        self._out = []
        self.heard.append(message)
        session = self.peers.get(peer)
        if isinstance(message, m.Hello):
            self._hello(peer, message)
        elif session is None:
            chan, rid = getattr(message, "chan", 0), getattr(message, "rid", 0)
            self._say(peer, m.Err(chan, rid, Code.NO_SESSION, "who are you?", {}))
        elif type(message) not in self.silent:
            self._command(peer, session, message)
        self._dispatch()
        return self._out

    def _command(self, peer: bytes, session: Peer, message: m.ToHub) -> None:
        match message:
            case m.Publish():
                self._publish(peer, session, message)
            case m.Subscribe():
                self._subscribe(peer, session, message)
            case m.Unsubscribe():
                sub = session.subs.pop(message.chan, None)
                if sub is not None:
                    self._release(sub)
                self._say(peer, m.Ok(message.chan, message.rid, {}))
            case m.Credit():
                session.subs[message.chan].credit = [message.ordinal_max, message.bytes_max]
            case m.Settle():
                self._settle(peer, session, message)
            case m.Fetch():
                sub = session.subs[message.chan]
                sub.credit = [sub.ordinal + message.count, sub.bytes_sent + (1 << 30)]
                sub.fetch = (message.rid, sub.ordinal + message.count, sub.ordinal)
            case m.Ping():
                self._say(peer, m.Pong(message.rid))
            case m.Info():
                self._say(
                    peer, m.Ok(0, message.rid, {"what": message.fields.get("what"), "messages": len(self.journal)})
                )
            case m.Goodbye():
                self._say(peer, m.Ok(0, message.rid, {}))
                for sub in session.subs.values():
                    self._release(sub)
                del self.peers[peer], self.sessions[session.token]

    def _hello(self, peer: bytes, message: m.Hello) -> None:
        fields = message.fields
        named = fields.get("producer", {"name": "", "epoch": 1})
        name = named["name"]
        epoch, last = self.producers.get(name, (0, 0))
        if "epoch" not in named:
            epoch += 1
        self.producers[name] = (epoch, last)
        resume = fields.get("resume", {})
        session = self.sessions.get(resume.get("session", b""))
        resumed = session is not None
        if session is None:
            self._tokens += 1
            session = Peer(self._tokens.to_bytes(16, "big"), name)
            self.sessions[session.token] = session
        for old in [routing_id for routing_id, s in self.peers.items() if s is session]:
            del self.peers[old]
        self.peers[peer] = session
        for chan in [chan for chan, sub in session.subs.items() if sub.group is None]:
            del session.subs[chan]
        welcome = {
            "proto": 1, "hub": "model", "journal": JOURNAL, "epoch": 1, "session": session.token, "resumed": resumed,
            "hb_ms": fields["hb_ms"], "ttl_ms": fields["ttl_ms"], "limits": {"block_bytes": block.BLOCK_BYTES_MAX},
            "flow": list(self.flow), "producer": {"epoch": epoch, "last_pseq": last, "last_seq": 0},
            "subs": list(session.subs) if resumed else [],
        }  # fmt: skip
        self._say(peer, m.Welcome(message.rid, welcome))
        for chan, seen in resume.get("subs", []):
            if resumed and chan in session.subs:
                for deliver in session.subs[chan].sent:
                    if deliver.first_ordinal > seen:
                        self._say(peer, deliver)

    def _publish(self, peer: bytes, session: Peer, message: m.Publish) -> None:
        refusal = self.refuse.popleft() if self.refuse else None
        epoch, last = self.producers[session.producer]
        parsed = block.Block(message.block)
        parsed.verify()
        first_seq = self.stored_at.get((session.producer, message.pseq))
        if first_seq is not None and message.pseq <= last:
            self._say(peer, m.PubOk(message.level, ((message.rid, first_seq, 0, parsed.count),)))
        elif message.pseq != last + 1:
            gap = {"expected": last + 1, "retry_ms": 10}
            self._say(peer, m.Err(0, message.rid, Code.SEQUENCE_GAP, "a number is missing", gap))
        elif refusal is not None:
            self._say(peer, refusal._replace(rid=message.rid))
        else:
            first_seq = len(self.journal) + 1
            self.journal.extend(zip(parsed.topic_names(), parsed.payloads(), strict=True))
            self.blocks.extend([parsed.stamped(first_seq, TS_US)] * parsed.count)
            self.producers[session.producer] = (epoch, last + parsed.count)
            self.stored_at[session.producer, message.pseq] = first_seq
            self._say(peer, m.PubOk(message.level, ((message.rid, first_seq, parsed.count, 0),)))

    def _subscribe(self, peer: bytes, session: Peer, message: m.Subscribe) -> None:
        fields = dict(message.fields)
        group, start = fields.get("group"), fields.get("start")
        cursor = len(self.journal) + 1
        if isinstance(start, dict):
            cursor = start["seq"]
        elif start == "first":
            cursor = 1
        if group == "taken":
            text = "the group exists with other settings"
            mismatch = {"field": "lease_ms", "have": 30000, "want": 1}
            self._say(peer, m.Err(message.chan, message.rid, Code.GROUP_MISMATCH, text, mismatch))
            return
        if group is not None and group not in self.groups:
            self.groups[group], self.acked[group], self.cursors[group] = deque(), [], 1
        session.subs[message.chan] = Sub(fields, cursor)
        ok = {"group": group, "cursor": cursor, "floor": 0, "created": True, "lease_ms": fields.get("lease_ms", 30_000)}
        self._say(peer, m.Ok(message.chan, message.rid, ok))

    def _settle(self, peer: bytes, session: Peer, message: m.Settle) -> None:
        sub = session.subs.get(message.chan)
        if sub is None or sub.group is None:
            self._say(peer, m.Err(message.chan, message.rid, Code.NOT_FOUND, "no such subscription", {}))
            return
        applied, stale = 0, []
        for verdict, first, last, arg in message.verdicts:
            self.verdicts.append((verdict, first, last, arg))
            assert last <= sub.ordinal, "a verdict on an ordinal never sent"
            for ordinal in range(first, last + 1):
                seq = sub.leased.get(ordinal)
                if seq is None:
                    stale.append([ordinal, ordinal])
                    continue
                applied += 1
                if verdict == m.Verdict.TOUCH:
                    continue
                del sub.leased[ordinal]
                if verdict == m.Verdict.ACK:
                    self.acked[sub.group].append(seq)
                elif verdict in (m.Verdict.RETRY, m.Verdict.RELEASE):
                    self.groups[sub.group].append((seq, 2))
        if message.rid:
            self._say(peer, m.Ok(message.chan, message.rid, {"applied": applied, "stale": stale}))

    def _release(self, sub: Sub) -> None:
        if sub.group is not None:
            self.groups[sub.group].extendleft((seq, 2) for seq in reversed(sub.leased.values()))
            sub.leased.clear()

    def _dispatch(self) -> None:
        for group, waiting in self.groups.items():
            while self.cursors[group] <= len(self.journal):
                waiting.append((self.cursors[group], 1))
                self.cursors[group] += 1
        for peer, session in self.peers.items():
            for chan, sub in session.subs.items():
                for run in self._runs(sub):
                    self._deliver(peer, chan, sub, run)
                if sub.fetch is not None:  # what is not there now will not come: the model does not wait
                    rid, _, before = sub.fetch
                    self._say(peer, m.End(chan, rid, sub.ordinal - before))
                    sub.fetch, sub.credit = None, [sub.ordinal, sub.bytes_sent]

    def _runs(self, sub: Sub) -> Iterator[list[tuple[int, int]]]:
        """What this subscription gets now, in pieces of neighbouring seqs with the same attempt."""
        room = sub.credit[0] - sub.ordinal
        run: list[tuple[int, int]] = []
        while room > 0 and sub.bytes_sent < sub.credit[1]:
            if sub.group is not None:
                waiting = self.groups[sub.group]
                if not waiting:
                    break
                item = waiting.popleft()
            elif sub.cursor <= len(self.journal):
                item = (sub.cursor, 1)
                sub.cursor += 1
            else:
                break
            if run and (item != (run[-1][0] + 1, run[-1][1]) or len(run) >= self.deliver_max):
                yield run
                run = []
            run.append(item)
            room -= 1
        if run:
            yield run

    def _deliver(self, peer: bytes, chan: int, sub: Sub, run: list[tuple[int, int]]) -> None:
        first_seq, attempt = run[0]
        rows = [self.journal[seq - 1] for seq, _ in run]
        blocks = [self.blocks[seq - 1] for seq, _ in run]
        places = [(b, seq - b.base_seq) for (seq, _), b in zip(run, blocks, strict=True)]
        raw = block.encode(
            [topic for topic, _ in rows],
            [payload for _, payload in rows],
            keys=[b.keys()[i] for b, i in places] if any(b.flags & block.KEYS for b in blocks) else None,
            headers=[b.headers()[i] for b, i in places] if any(b.flags & block.HEADERS for b in blocks) else None,
        )
        deliver = m.Deliver(chan, sub.ordinal + 1, attempt, (), block.stamp(raw, first_seq, TS_US))
        for seq, _ in run:
            sub.ordinal += 1
            if sub.group is not None:
                sub.leased[sub.ordinal] = seq
        sub.bytes_sent += len(raw)
        sub.sent.append(deliver)
        self._say(peer, deliver)

    def _say(self, peer: bytes, message: m.ToClient) -> None:
        self._out.append((peer, message))


class Served:
    """A ModelHub behind a ROUTER socket, in a thread. `hub` may be used under `lock`."""

    def __init__(self, url: str = "tcp://127.0.0.1:*", hub: ModelHub | None = None) -> None:
        self.hub = hub or ModelHub()
        self.lock = threading.Lock()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._bind = url
        self._start()

    def _start(self) -> None:
        self._stop = threading.Event()
        self._socket = self.context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._bind_when_free()
        self.url = self._bind = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _bind_when_free(self) -> None:
        """A socket of the same address that was closed just now may still be on its way out."""
        for _ in range(1000):
            try:
                self._socket.bind(self._bind)
                return
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE:
                    raise
                time.sleep(0.01)
        raise AssertionError(f"{self._bind} did not become free")

    def _serve(self) -> None:
        while not self._stop.is_set():
            if not self._socket.poll(20):
                continue
            peer, *frames = self._socket.recv_multipart()
            message = wire.decode(frames)
            with self.lock:
                answers = self.hub.step(peer, message)  # type: ignore[arg-type]
            for receiver, answer in answers:
                self._socket.send_multipart([receiver, *wire.encode(answer)])
        self._socket.close(0)

    def stop(self) -> None:
        """Stop, and wait until the address accepts no connections: ZeroMQ closes a socket in the background."""
        self._stop.set()
        self._thread.join()
        if self.url.startswith("tcp://"):
            host, _, port = self.url.removeprefix("tcp://").rpartition(":")
            eventually(lambda: not _accepts(host, int(port)))

    def restart(self) -> None:
        """A crash: connections and sessions are gone, what was stored is not."""
        self.stop()
        self.hub.restart()
        self._start()

    def close(self) -> None:
        self.stop()
        self.context.destroy(0)


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port)).close()
    except OSError:
        return False
    return True
