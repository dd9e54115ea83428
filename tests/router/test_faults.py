"""An exception at every line of every handler: before the change begins nothing has changed, and after it the router
reports that it must not be used any more."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from types import FrameType
from typing import Any, Final

import pytest

from fabric.router.access.identity import GUEST_NAME, Identity
from fabric.router.change import Change
from fabric.router.router import Router
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.errors import Code
from tests.commands import OF_GUEST, OF_TENANT, READ_ONLY, SAMPLES, SECRET, Sample, handler_of, handlers
from tests.router.access.memory_book import READER, MemoryBook
from tests.router.world import World

A, V = b"a", b"v"
GUEST, TENANT = b"guest", b"tenant"
# Of no consequence: what time it is, what was counted or looked up, which rows INFO pulse tells next (it tells all rows
# after an exception), and when a session was heard of.
IGNORED: Final = {
    *("clock", "counters", "_counters", "last_seen", "change", "spent", "read_bytes", "_views", "reader", "confirmed"),
    *("_known_topics", "_cache", "_made", "_acked_by", "_change", "_mark", "pulse", "changed", "_unsampled"),
    *("_walk", "_is_asked", "_target", "_is_stale", "pace"),  # of tallies: INFO counts blocks
    # Of rights: answers that are remembered.
    *("known", "_known", "_publishable", "_readable", "_requestable", "looked"),
}


class Planted(Exception):
    """The fault that a test has made."""


def world() -> World:
    """A world in which each sample is a good command."""
    book = MemoryBook(tenant=READER)
    book.invite("guest", "reader", 60, 0)
    w = World(book=book)
    for peer, name in ((GUEST, GUEST_NAME), (TENANT, "tenant")):
        w.router.step(m.Hello(1, {"proto": 1, "ttl_ms": 600_000, "enrol": True}), peer, w.now, Identity(name, "K" * 40))
    w.hello(V, producer={"name": "away"})
    w.say(V, m.Goodbye(1))
    w.hello(V, client="victim")
    secret = w.hello(A, client="a", producer={"name": "p"}, ttl_ms=600_000).fields["session"]  # type: ignore[union-attr]
    w.__dict__["secret"] = secret
    w.sub(A, 1, "t", group="g", lease_ms=600_000)
    w.pub(A, "t", "1", pseq=1)
    w.pub(A, "t", "2", "3")
    w.say(A, m.Subscribe(2, 5, {"patterns": ["ask"], "respond": True}))
    w.sub(A, 3, "r", group="r")
    w.say(A, m.Admin(5, {"op": "group.refresh", "group": "r"}))
    w.say(A, m.Publish(5, 0, 0, encode("later", [b"1"]), {"delay_ms": 60_000, "name": "s"}))
    for fields in (
        {"op": "queue.create", "queue": "q"},
        {"op": "topic.create", "topic": "limited", "max_msgs": 5},
        {"op": "group.create", "group": "d", "patterns": ["dying"], "attempts_max": 1},
        {"op": "group.create", "group": "paused", "patterns": ["x"]},
        {"op": "group.pause", "group": "paused"},
    ):
        assert isinstance(w.say(A, m.Admin(5, fields))[-1], m.Ok), fields
    w.sub(V, 1, group="d")
    w.pub(A, "dying", "1", "2")
    w.settle(V, 1, m.Verdict.REJECT, 1, 2)
    w.say(V, m.Request(0, 1, {"timeout_ms": 600_000}, encode("ask", [b"1"])))
    return w


def prepared(sample: Sample, w: World) -> tuple[bytes, m.ToHub]:
    """The peer of the command, and the command."""
    message = sample.message
    if not isinstance(message, m.Hello):
        return {OF_GUEST: GUEST, OF_TENANT: TENANT}.get(sample.name, A), message
    resume = message.fields.get("resume")
    if resume is not None and resume["session"] == SECRET:
        fields = {**message.fields, "resume": {**resume, "session": w.__dict__["secret"]}}
        return b"new", m.Hello(message.rid, fields)
    return b"new", message


def test_there_is_a_sample_of_every_handler() -> None:
    """A new verb or operation comes with a sample here, and so with all the tests of this file."""
    assert {handler_of(sample) for sample in SAMPLES} == handlers()


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_every_sample_is_accepted_and_crosses_its_boundary(sample: Sample) -> None:
    w = world()
    w.commit()
    peer, message = prepared(sample, w)
    out: list[tuple[bytes, m.ToClient]] = []
    w.router.step(message, peer, w.now)
    out += w.router.take_frames()
    assert not any(isinstance(said, m.Err) for _, said in out), out
    assert w.router.shared.change.begun == (sample.name not in READ_ONLY - {"Admin dlq.list"})


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_nothing_has_changed_before_the_boundary(sample: Sample) -> None:
    """An exception at each line that the handler runs before its boundary, one after the other."""
    tried: set[str] = set()
    w = world()
    before = digest(w.router)
    for line in count(1):
        peer, message = prepared(sample, w)
        out: list[tuple[bytes, m.ToClient]] = []
        with planted(line) as fault, suppress(Planted):
            w.router.step(message, peer, w.now)
            out += w.router.take_frames()
        if not fault:
            assert handler_of(sample) in READ_ONLY, "the whole handler ran, and never said that it begins to change"
            break
        if w.router.shared.change.begun:
            assert not w.router.fail(peer, 0, 9)
            out += w.router.take_frames()
            break
        del out[:]
        assert w.router.fail(peer, 0, 9)
        out += w.router.take_frames()
        assert out == [
            (peer, m.Err(0, 9, Code.INTERNAL, "the hub failed at this command; the log of the hub has the error", {}))
        ]
        if fault[0] not in tried:  # a loop runs its lines again; what they change would be seen at the next one
            tried.add(fault[0])
            assert digest(w.router) == before, f"{fault[0]}: changed before the boundary"
    assert tried


@contextmanager
def planted(line: int) -> Iterator[list[str]]:
    """Raise at the line of that number which runs in the router, counted from the handler's first. The result names
    the place, and is empty when so many lines did not run."""
    left, found = line, list[str]()

    def trace(frame: FrameType, what: str, arg: Any) -> Any:
        nonlocal left
        name = frame.f_code.co_filename
        if "/fabric/router/" not in name or frame.f_code is Router.step.__code__ or name.endswith("change.py"):
            return trace if what == "call" else None
        if what == "line":
            left -= 1
            if left == 0:
                found.append(f"{name}:{frame.f_lineno}")
                sys.settrace(None)
                raise Planted
        return trace

    sys.settrace(trace)
    try:
        yield found
    finally:
        sys.settrace(None)


def digest(router: Router) -> Any:
    """All state of a router as plain values that can be compared; objects by where they were met first."""
    seen: dict[int, int] = {}
    keep: list[Any] = []

    def walk(value: Any) -> Any:
        if value is None or isinstance(value, int | float | str | bytes | bool):
            return value
        if id(value) in seen:
            return ("seen", seen[id(value)])
        seen[id(value)] = len(seen)
        keep.append(value)
        if isinstance(value, Counter):
            return sorted((str(k), v) for k, v in value.items() if v)
        if isinstance(value, dict):
            return [(walk(k), walk(v)) for k, v in value.items()]
        if isinstance(value, list | tuple):
            return [walk(item) for item in value]
        if isinstance(value, set | frozenset):
            return sorted(repr(item) if not hasattr(item, "__dict__") else id(item) for item in value)
        if type(value).__module__.startswith("fabric.router"):
            names = [n for kind in type(value).__mro__ for n in getattr(kind, "__slots__", ())]
            names += list(getattr(value, "__dict__", {}))
            return (type(value).__name__, [(n, walk(getattr(value, n, None))) for n in names if n not in IGNORED])
        if type(value).__name__ in ("count", "deque"):
            return repr(value) if type(value).__name__ == "count" else [walk(item) for item in value]
        return type(value).__name__

    return walk(router)


def test_the_digest_sees_changes() -> None:
    """Of every sample that changes something."""
    for sample in SAMPLES:
        w = world()
        peer, message = prepared(sample, w)
        before = digest(w.router)
        w.router.step(message, peer, w.now)
        w.router.take_frames()
        if sample.name not in READ_ONLY:
            assert digest(w.router) != before, sample.name


def test_a_fault_of_the_boundary_itself_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Change) -> None:
        raise Planted

    for sample in SAMPLES:
        w = world()
        peer, message = prepared(sample, w)
        before = digest(w.router)
        with monkeypatch.context() as patched:
            patched.setattr(Change, "begin", fail)
            if sample.name in READ_ONLY - {"Admin dlq.list"}:
                w.router.step(message, peer, w.now)
                w.router.take_frames()
                continue
            with pytest.raises(Planted):
                w.router.step(message, peer, w.now)
            w.router.fail(peer, 0, 9)
            w.router.take_frames()
        assert digest(w.router) == before, sample.name
        if peer == A:
            assert m.Pong(7) in w.say(A, m.Ping(7))
