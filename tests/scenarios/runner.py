"""Runs scenario files: on the router alone, where time is a number, and through a real hub with real sockets.

A scenario is read line by line; README.md describes the language. A line either does something (`ann publishes …`) or
names what follows (`bob gets …`). Frames must come in that order; frames that no line names are kept, except errors,
which must be named.
"""

import re
import shlex
import time
from collections import deque
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import zmq

from fabric.hub.hub import Hub, HubOptions
from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.block import Block, encode
from fabric_protocol.errors import Code
from fabric_protocol.messages import Verdict
from tests.patience import PATIENCE_S
from tests.router.world import BIG, World

SLICE_MS: Final = 20  # virtual time passes in steps, as a hub's ticks do
VERDICTS: Final = {
    "acks": Verdict.ACK,
    "retries": Verdict.RETRY,
    "releases": Verdict.RELEASE,
    "rejects": Verdict.REJECT,
    "touches": Verdict.TOUCH,
}
SHORT: Final = {  # what is written shorter here than on the wire
    "lease": "lease_ms",
    "attempts": "attempts_max",
    "backoff": "backoff_ms",
    "jitter": "jitter_pct",
    "ttl": "ttl_ms",
    "delay": "delay_ms",
    "every": "every_ms",
}


class Stage(Protocol):
    """Where a scenario is played."""

    def connect(self, name: str) -> None: ...
    def send(self, name: str, message: m.ToHub) -> None: ...
    def heard(self, name: str) -> list[Any]: ...
    def wait(self, name: str) -> bool:
        """Let something happen; False when nothing more will."""
        ...

    def cut(self, name: str) -> None: ...
    def pass_ms(self, ms: int) -> None: ...
    def restart(self) -> None: ...
    def close(self) -> None: ...


class BareCore:
    def __init__(self) -> None:
        self._world = World()
        self._peers: dict[str, bytes] = {}
        self._seen: dict[str, int] = {}
        self._count = 0

    def connect(self, name: str) -> None:
        self._count += 1
        self._peers[name] = b"\0" + self._count.to_bytes(4, "big")
        self._seen[name] = 0

    def send(self, name: str, message: m.ToHub) -> None:
        self._world.say(self._peers[name], message)

    def heard(self, name: str) -> list[Any]:
        said = self._world.said.get(self._peers.get(name, b""), [])[self._seen.get(name, 0) :]
        self._seen[name] = self._seen.get(name, 0) + len(said)
        return said

    def wait(self, name: str) -> bool:
        return False

    def cut(self, name: str) -> None:
        self._world.router.peer_gone(self._peers.pop(name))

    def pass_ms(self, ms: int) -> None:
        for at in range(0, ms, SLICE_MS):
            self._world.pass_time(min(SLICE_MS, ms - at) / 1000)

    def restart(self) -> None:
        self._world.restart()
        self._peers.clear()
        self._seen.clear()

    def close(self) -> None:
        pass


class RealHub:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._hub = self._start()
        self._deadline = 0.0

    def _start(self) -> Hub:
        options = HubOptions(binds=["inproc://scenario"], drain_s=0.0)
        return Hub(self._folder / "journal", options, self._context).start()

    def connect(self, name: str) -> None:
        socket = self._sockets[name] = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect("inproc://scenario")

    def send(self, name: str, message: m.ToHub) -> None:
        self._sockets[name].send_multipart(wire.encode(message))
        self._deadline = time.monotonic() + PATIENCE_S

    def heard(self, name: str) -> list[Any]:
        found: list[Any] = []
        socket = self._sockets.get(name)
        while socket is not None and socket.poll(0):
            found.append(wire.decode(socket.recv_multipart()))
        return found

    def wait(self, name: str) -> bool:
        if name in self._sockets:
            self._sockets[name].poll(50)
        return time.monotonic() < self._deadline

    def cut(self, name: str) -> None:
        self._sockets.pop(name).close()

    def pass_ms(self, ms: int) -> None:
        time.sleep(ms / 1000)
        self._deadline = time.monotonic() + PATIENCE_S

    def restart(self) -> None:
        for name in list(self._sockets):
            self.cut(name)
        self._hub.stop()
        self._hub = self._start()

    def close(self) -> None:
        for name in list(self._sockets):
            self.cut(name)
        self._hub.stop()
        self._context.term()


class Got(NamedTuple):
    """One delivery."""

    chan: int
    ordinal: int
    seq: int
    attempt: int
    body: str


class Person:
    """What somebody has heard and not been asked about."""

    def __init__(self) -> None:
        self.session = b""
        self.epoch: int | None = None
        self.seen: dict[int, int] = {}  # by channel: the last ordinal
        self.pseq = 0
        self.rid = 100
        self.got: deque[Got] = deque()
        self.held: dict[str, Got] = {}  # the latest delivery of each body
        self.other: deque[Any] = deque()
        self.answers: dict[int, Any] = {}  # by rid
        self.asked: dict[str, tuple[int, int]] = {}  # requests to answer: body -> channel, rid


class Play:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.people: dict[str, Person] = {}

    def run(self, text: str) -> None:
        for number, line in enumerate(text.splitlines(), 1):
            line = line.split("#", 1)[0].strip() if not line.strip().startswith("#") else ""
            if line:
                try:
                    self._line(line)
                except AssertionError as error:
                    raise AssertionError(f"line {number}: {line}\n  {error}") from error

    def _line(self, line: str) -> None:
        if match := re.fullmatch(r"(\d+) ms pass", line):
            self.stage.pass_ms(int(match[1]))
        elif line == "the hub restarts":
            self.stage.restart()
            for person in self.people.values():
                person.seen, person.session = {}, b""
        else:
            line, _, refusal = line.partition(" !")
            name, verb, *words = shlex.split(line)
            options = dict(word.split("=", 1) for word in words if "=" in word)
            words = [word for word in words if "=" not in word]
            act = getattr(self, f"_{verb}", None) if verb not in VERDICTS else None
            if verb in VERDICTS:
                self._settle(name, VERDICTS[verb], words, options, refusal)
            else:
                assert act is not None, f"nobody knows how to do {verb!r}"
                act(name, words, options, refusal)

    # Speaking and hearing.

    def _ask(self, name: str, message: Any, refusal: str) -> Any:
        """Say something, and hear the answer: the one that was foreseen."""
        self.stage.send(name, message)
        answer = self._until(name, lambda person: person.answers.pop(message.rid, None), f"an answer to {message}")
        if refusal:
            assert isinstance(answer, m.Err), f"{answer} is not an error"
            assert Code(answer.code).name == refusal.strip(), f"refused with {answer}"
        else:
            assert not isinstance(answer, m.Err), f"refused: {answer}"
        return answer

    def _until(self, name: str, found: Any, what: str) -> Any:
        person = self.people[name]
        while True:
            self._absorb(name)
            result = found(person)
            if result is not None:
                return result
            if not self.stage.wait(name):
                self._absorb(name)
                result = found(person)
                heard = [*person.got, *person.other, *person.answers.values()]
                assert result is not None, f"{what} did not come, but {heard}"
                return result

    def _absorb(self, name: str) -> None:
        person = self.people[name]
        for message in self.stage.heard(name):
            match message:
                case m.Deliver(chan, first, attempt, seqs, raw):
                    self._take(person, chan, first, attempt, seqs, Block(raw))
                case m.PubOk(_, confirms):
                    person.answers.update({row[0]: row for row in confirms})
                case m.Request(chan, rid, _, raw):
                    person.asked[Block(raw).payloads()[0].decode()] = (chan, rid)
                case m.Reply() | m.Got() | m.Notice() | m.Gap() | m.Reset() | m.End():
                    person.other.append(message)
                case m.Ok() | m.Err() | m.Welcome() | m.Pong():
                    person.answers[message.rid] = message

    def _take(self, person: Person, chan: int, first: int, attempt: int, seqs: tuple[int, ...], block: Block) -> None:
        block.verify()
        if first <= person.seen.get(chan, 0):
            return
        flat = [s for a, n in zip(seqs[::2], seqs[1::2], strict=True) for s in range(a, a + n)]
        flat = flat or list(range(block.base_seq, block.base_seq + block.count))
        for at, (seq, body) in enumerate(zip(flat, block.payloads(), strict=True)):
            got = Got(chan, first + at, seq, attempt, body.decode())
            person.got.append(got)
            person.held[got.body] = got
        person.seen[chan] = first + block.count - 1

    def _rid(self, name: str) -> int:
        self.people[name].rid += 1
        return self.people[name].rid

    # Sessions.

    def _connects(self, name: str, words: list[str], options: dict[str, str], refusal: str) -> None:
        person = self.people.setdefault(name, Person())
        self.stage.connect(name)
        producer = options.pop("producer", name)
        fields = {"proto": 1, "client": name, "hb_ms": 60_000, "ttl_ms": 600_000, **values(options)}
        fields["producer"] = {"name": producer, "epoch": person.epoch} if person.epoch else {"name": producer}
        if "again" in words and person.session:
            fields["resume"] = {"session": person.session, "subs": [[c, o] for c, o in person.seen.items()]}
        else:
            person.seen, person.held = {}, {}
            person.got.clear()
        welcome = self._ask(name, m.Hello(self._rid(name), fields), refusal)
        if not refusal:
            person.session, person.epoch = welcome.fields["session"], welcome.fields["producer"]["epoch"]
            person.pseq = welcome.fields["producer"]["last_pseq"]

    def _leaves(self, name: str, words: list[str], options: dict[str, str], refusal: str) -> None:
        self._ask(name, m.Goodbye(self._rid(name)), refusal)
        self.stage.cut(name)

    def _vanishes(self, name: str, words: list[str], options: dict[str, str], refusal: str) -> None:
        self._absorb(name)
        self.stage.cut(name)

    # Publishing.

    def _publishes(self, name: str, words: list[str], options: dict[str, str], refusal: str) -> None:
        """TOPIC BODY… key= id= priority= numbered= and the options of PUB."""
        person, given = self.people[name], values(options)
        block = self._block(words, given)
        pseq = 0
        if given.pop("numbered", None) == "again":
            pseq = person.pseq
        elif "numbered" in options:
            pseq, person.pseq = person.pseq + 1, person.pseq + len(words) - 1
        expected = {key: given.pop(key) for key in ("stored", "dups") if key in given}
        answer = self._ask(name, m.Publish(self._rid(name), pseq, 0, block, given), refusal)
        if expected:
            told = {"stored": answer[2], "dups": answer[3]}
            assert told == expected, f"confirmed with {told}"

    def _block(self, words: list[str], given: dict[str, Any]) -> bytes:
        topic, *bodies = words
        keys = [str(given["key"]).encode()] * len(bodies) if "key" in given else None
        ids = [str(given["id"]).encode()] * len(bodies) if "id" in given else None
        priority = given.get("priority", 4)
        for key in ("key", "id", "priority"):
            given.pop(key, None)
        return encode(topic, [body.encode() for body in bodies], keys=keys, ids=ids, priority=priority)

    def _cancels(self, name: str, words: list[str], options: dict[str, str], refusal: str) -> None:
        self._ask(name, m.Cancel(self._rid(name), values(options)), refusal)

    def _transacts(self, name: str, words: list[str], options: dict[str, str], refusal: str) -> None:
        """ack BODY… then TOPIC BODY…"""
        person, then = self.people[name], words.index("then")
        rows: dict[int, list[tuple[int, int, int, Any]]] = {}
        for body in words[1:then]:
            got = person.held[body]
            rows.setdefault(got.chan, []).append((Verdict.ACK, got.ordinal, got.ordinal, None))
        settles = tuple((chan, tuple(verdicts)) for chan, verdicts in rows.items())
        block = self._block(words[then + 1 :], values(options))
        message = m.Transact(self._rid(name), person.pseq + 1, settles, block)
        self._ask(name, message, refusal)
        if not refusal:
            person.pseq += len(words) - then - 2

    # Consuming.

    def _subscribes(self, name: str, words: list[str], options: dict[str, str], refusal: str) -> None:
        given = values(options)
        chan = given.pop("chan", 1)
        fields = {"patterns": words, "credit": [given.pop("credit", 1000), BIG], **given}
        if not words:
            del fields["patterns"]
        self._ask(name, m.Subscribe(chan, self._rid(name), fields), refusal)

    def _grants(self, name: str, words: list[str], options: dict[str, str], refusal: str) -> None:
        chan = int(options.get("chan", 1))
        self.stage.send(name, m.Credit(chan, self.people[name].seen.get(chan, 0) + int(words[0]), BIG))

    def _gets(self, name: str, words: list[str], options: dict[str, str], refusal: str) -> None:
        """BODY… in that order, and nothing before or between; `nothing`; `in any order` at the end."""
        if words == ["nothing"]:
            self._ask(name, m.Ping(self._rid(name)), "")
            assert not self.people[name].got, f"got {list(self.people[name].got)}"
            return
        loose = words[-3:] == ["in", "any", "order"]
        bodies = words[:-3] if loose else words
        got = self._until(
            name,
            lambda person: [person.got.popleft() for _ in bodies] if len(person.got) >= len(bodies) else None,
            f"{bodies}",
        )
        found = [one.body for one in got]
        assert sorted(found) == sorted(bodies), f"got {found}"
        assert loose or found == bodies, f"got {found}"
        if "attempt" in options:
            assert {one.attempt for one in got} == {int(options["attempt"])}, f"got {got}"

    def _settle(self, name: str, verdict: Verdict, words: list[str], options: dict[str, str], refusal: str) -> None:
        """BODY…, with after= (retry), because= (retry, reject), for= (touch); `too late` at the end when it is."""
        late = words[-2:] == ["too", "late"]
        given = values(options)
        arg: Any = given.get("for")
        if verdict is Verdict.RETRY:
            arg = (given.get("after"), str(given.get("because", "")))
        elif verdict is Verdict.REJECT:
            arg = given.get("because")
        for body in words[:-2] if late else words:
            got = self.people[name].held[body]
            row = (verdict, got.ordinal, got.ordinal, arg)
            answer = self._ask(name, m.Settle(got.chan, self._rid(name), (row,)), refusal)
            assert answer.fields["applied"] == (0 if late else 1), f"{body}: {answer.fields}"

    def _hears(self, name: str, words: list[str], options: dict[str, str], refusal: str) -> None:
        """KIND: a notice's kind, `gap`, `reset PHASE`, `end`, or `reply BODY`."""

        def wanted(message: Any) -> bool:
            match message:
                case m.Notice(kind):
                    return kind == words[0]
                case m.Gap():
                    return words == ["gap"]
                case m.Reset(_, fields):
                    return words == ["reset", fields["phase"]]
                case m.Reply(_, _, _, raw):
                    return words == ["reply", Block(raw).payloads()[0].decode()]
            return False

        def found(person: Person) -> Any:
            hit = next((message for message in person.other if wanted(message)), None)
            if hit is not None:
                person.other.remove(hit)
            return hit

        message = self._until(name, found, " ".join(words))
        if isinstance(message, m.Reset):
            self.people[name].answers[-1] = message.fields["refresh"]

    def _is_ready(self, name: str, words: list[str], options: dict[str, str], refusal: str) -> None:
        """A consumer has reloaded its copy."""
        refresh = self.people[name].answers.pop(-1)
        self._ask(name, m.Ready(int(options.get("chan", 1)), self._rid(name), refresh), refusal)

    # Asking and answering.

    def _asks(self, name: str, words: list[str], options: dict[str, str], refusal: str) -> None:
        """TOPIC BODY: a request; its replies are heard later, a refusal at once."""
        rid = self._rid(name)
        message = m.Request(0, rid, {"timeout_ms": 10_000, **values(options)}, self._block(words, {}))
        if refusal:
            self._ask(name, message, refusal)
        else:
            self.stage.send(name, message)

    def _answers(self, name: str, words: list[str], options: dict[str, str], refusal: str) -> None:
        """BODY with REPLY"""
        body, _, reply = words
        chan, rid = self._until(name, lambda person: person.asked.pop(body, None), f"request {body}")
        self.stage.send(name, m.Reply(chan, rid, {"final": True}, encode("reply", [reply.encode()])))

    # Reading and managing.

    def _reads(self, name: str, words: list[str], options: dict[str, str], refusal: str) -> None:
        """TOPIC gives BODY…: GET without a group."""
        topic, _, *bodies = words
        fields = {"topic": topic, "n": 100, **values(options)}
        self._ask(name, m.Get(self._rid(name), fields), refusal)
        person, found = self.people[name], []
        for message in [one for one in person.other if isinstance(one, m.Got)]:
            found += [body.decode() for body in Block(message.block).payloads()]
            person.other.remove(message)
        assert found == bodies, f"read {found}"

    def _orders(self, name: str, words: list[str], options: dict[str, str], refusal: str) -> None:
        """OP with its fields: ADMIN."""
        self._ask(name, m.Admin(self._rid(name), {"op": words[0], **values(options)}), refusal)


def values(options: dict[str, str]) -> dict[str, Any]:
    """Options as they go on the wire: numbers, true and false, lists as [a,b], {seq: n} as seq:n."""
    return {SHORT.get(name, name): _value(value) for name, value in options.items()}


def _value(value: str) -> Any:
    if value in ("true", "false"):
        return value == "true"
    if re.fullmatch(r"-?\d+", value):
        return int(value)
    if match := re.fullmatch(r"(\w+):(\d+)", value):
        return {match[1]: int(match[2])}
    if value.startswith("["):
        return value[1:-1].split(",")
    return value
