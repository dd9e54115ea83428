"""The ZAP handler: which keys it lets in, any question it is asked, and what a hub does without it."""

from collections.abc import Iterator

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fabric.access.book import KeyView
from fabric.access.keys import KeyPair, make_pair, raw_key
from fabric.hub.curve import encrypt, require_refusal
from fabric.hub.zap import ADDRESS, ZapHandler
from fabric_protocol.errors import FabricError
from tests.hub.kit import eventually

LATER_US = 1 << 62


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    with zmq.Context() as context:
        yield context


@pytest.fixture
def zap(context: "zmq.Context[zmq.Socket[bytes]]") -> Iterator[ZapHandler]:
    handler = ZapHandler(context)
    yield handler
    handler.close()


def question(raw: bytes, **other: bytes) -> list[bytes]:
    fields = {"version": b"1.0", "id": b"7", "domain": b"fabric", "address": b"10.0.0.9", "routing": b"", **other}
    fields.setdefault("mechanism", b"CURVE")
    return [*fields.values(), raw]


def test_a_known_key_gets_a_user_id_and_another_is_refused(zap: ZapHandler) -> None:
    known, other = make_pair().public, make_pair().public
    assert zap.reply(question(raw_key(known)))[2] == b"300", "not ready"
    zap.show(KeyView({raw_key(known): known}))
    reply = zap.reply(question(raw_key(known)))
    assert reply[:3] == [b"1.0", b"7", b"200"]
    assert zap.key_of(reply[4].decode()) == known
    assert zap.reply(question(raw_key(other)))[2:5] == [b"400", b"this key is not known to the hub", b""]
    assert list(zap.refusals) == [("10.0.0.9", other, "the key is not known")]
    zap.show(KeyView({}, LATER_US))
    assert zap.key_of(zap.reply(question(raw_key(other)))[4].decode()) == other, "an invitation is open"
    zap.show(KeyView({}, 1))
    assert zap.reply(question(raw_key(other)))[2] == b"400", "it has expired"


@pytest.mark.parametrize(
    "frames",
    [
        question(b"k" * 32, mechanism=b"NULL"),
        question(b"k" * 32, mechanism=b"PLAIN"),
        question(b"k" * 32, domain=b"other"),
        question(b"k" * 31),
        question(b"k" * 33),
        [*question(b"k" * 32), b"more"],
        question(b"")[:-1],
        question(b"k" * 32, version=b"2.0"),
        question(b"k" * 32, version=b""),
        [b"1.0"],
        [],
    ],
)
def test_a_question_of_another_form_is_refused(zap: ZapHandler, frames: list[bytes]) -> None:
    zap.show(KeyView({b"k" * 32: "k"}, LATER_US))
    assert zap.reply(frames)[2] in (b"400", b"500")
    assert zap.reply(frames)[4] == b""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([b"1.0", b"CURVE", b"fabric", b"", b"k" * 32]) | st.binary(max_size=40), max_size=9))
def test_any_question_has_an_answer(zap: ZapHandler, frames: list[bytes]) -> None:
    zap.show(KeyView({b"k" * 32: "k"}))
    reply = zap.reply(frames)
    assert len(reply) == 6
    assert reply[2] in (b"200", b"400", b"500")
    assert (reply[2] == b"200") == (
        frames[0:1] == [b"1.0"] and frames[2:] == [b"fabric", *frames[3:5], b"CURVE", b"k" * 32]
    )


def test_questions_of_any_form_do_not_end_the_thread(
    context: "zmq.Context[zmq.Socket[bytes]]", zap: ZapHandler
) -> None:
    with context.socket(zmq.REQ) as asking:
        asking.connect(ADDRESS)
        for frames in ([b""], [b"\xff"] * 20, [b"1.0", b"1", b"fabric", b"\xff", b"\xff", b"CURVE", b"x" * 32]):
            asking.send_multipart(frames)
            assert asking.recv_multipart()[2] in (b"300", b"500")
    assert zap.is_alive


def test_a_user_id_of_another_origin_is_no_key(zap: ZapHandler) -> None:
    key = make_pair().public
    for text in ("", key, "0" * 32 + key, "é" * 72):
        assert zap.key_of(text) == ""


def test_a_second_handler_in_one_context_is_refused(context: "zmq.Context[zmq.Socket[bytes]]", zap: ZapHandler) -> None:
    with pytest.raises(FabricError, match="another hub with keys") as error:
        ZapHandler(context)
    assert "context of its own" in error.value.hint


def test_the_number_of_refusals_is_bounded(zap: ZapHandler) -> None:
    zap.show(KeyView({}))
    for number in range(3000):
        zap.reply(question(number.to_bytes(32, "big")))
    assert len(zap.refusals) == 1000


@pytest.fixture
def server(context: "zmq.Context[zmq.Socket[bytes]]") -> Iterator["zmq.Socket[bytes]"]:
    with context.socket(zmq.ROUTER) as socket:
        yield socket


def test_the_self_test_passes_only_when_the_key_is_refused(zap: ZapHandler, server: "zmq.Socket[bytes]") -> None:
    pair = make_pair()
    encrypt(server, pair)
    zap.show(KeyView({}))
    require_refusal(server, pair.public)
    assert len(zap.refusals) == 1
    zap.show(KeyView({}, LATER_US))
    with pytest.raises(FabricError, match="it was let in"):
        require_refusal(server, pair.public)


def test_the_self_test_fails_without_a_handler(server: "zmq.Socket[bytes]", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fabric.hub.curve.TEST_S", 1.0)
    pair = make_pair()
    encrypt(server, pair)
    with pytest.raises(FabricError, match="was not refused as it must be"):
        require_refusal(server, pair.public)


def test_the_self_test_fails_if_all_keys_are_let_in(server: "zmq.Socket[bytes]") -> None:
    pair = make_pair()
    server.setsockopt(zmq.CURVE_SERVER, 1)  # without the domain that `encrypt` sets
    server.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())
    with pytest.raises(FabricError, match="it was let in"):
        require_refusal(server, pair.public)


def test_an_option_that_is_not_taken_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf:
        def setsockopt(self, *_: object) -> None:
            pass

        def getsockopt(self, _: object) -> int:
            return 0

    with pytest.raises(FabricError, match="refusing to listen"):
        encrypt(Deaf(), KeyPair(*make_pair()))  # type: ignore[arg-type]


def test_the_end_of_the_thread_is_seen(context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    handler = ZapHandler(context)
    handler.close()
    eventually(lambda: not handler.is_alive, "the thread ends")
    handler.close()
