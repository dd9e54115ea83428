"""What belongs to another principal, through a real hub with keys: sessions, schedules, producers, and keys.

Each row has its audit, and a control: the same command of the owner, or of a principal with the right, succeeds.
"""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fabric.access.keys import KeyPair, make_pair
from fabric.hub.advisory_log import LINES_MAX
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.errors import Code
from tests.commands import OF_GUEST, SAMPLES
from tests.hub.curve_kit import Keyed, keyed
from tests.hub.kit import Talker, eventually
from tests.network.tenants import PATIENT

ROLES = """
[role.client]
publish = ["#"]
subscribe = ["#"]
groups = ["*"]
[role.shared]
publish = ["#"]
producers = ["*"]
[role.limited]
publish = ["#"]
limits = { sessions = 1 }
[role.reader]
subscribe = ["#"]
"""
ROLE_OF = {"ann": "client", "eve": "client", "mallory": "shared", "small": "limited"}


class Scene(NamedTuple):
    hub: Keyed
    keys: dict[str, KeyPair]
    ann: Talker
    secret: bytes  # of ann's session
    schedule: int  # of ann

    def talker(self, name: str) -> Talker:
        """A new connection of a principal; `local` has no key."""
        return (
            self.hub.talker(self.keys[name]) if name in self.keys else self.hub.talker(url=self.hub.access.admin_bind)
        )

    def hello(self, name: str, **fields: Any) -> Any:
        """The answer to the HELLO of a new connection of a principal."""
        return talked(self.talker(name), m.Hello(9, {"proto": 1, **PATIENT, **fields}))

    def say(self, name: str, message: m.ToHub) -> Any:
        """The answer to a command in a new session of a principal."""
        talker = self.talker(name)
        talker.hello(**PATIENT)
        return talked(talker, message)


def talked(talker: Talker, message: m.ToHub) -> Any:
    talker.send(message)
    while getattr(said := talker.receive(), "rid", None) != message.rid:  # type: ignore[union-attr]
        assert said is not None, message
    return said


def access(**roles: str) -> Callable[[dict[str, KeyPair]], str]:
    return lambda keys: (
        ROLES
        + "".join(
            f'[principal.{name}]\nrole = "{role}"\nkey = "{keys[name].public}"\n'
            for name, role in {**ROLE_OF, **roles}.items()
        )
    )


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    keys = {name: make_pair() for name in ROLE_OF}
    with keyed(folder, text=access()(keys)) as hub:
        ann = hub.talker(keys["ann"])
        welcome = ann.hello(**PATIENT, producer={"name": "p"})
        made = talked(ann, m.Publish(8, 0, 0, encode("t", [b"later"]), {"delay_ms": 3_600_000, "name": "nightly"}))
        yield Scene(hub, keys, ann, welcome.fields["session"], made.fields["schedule"])


class Theft(NamedTuple):
    name: str
    thief: str
    act: Callable[[Scene, str], Any]  # by the thief, and by the owner
    owner: str = "ann"
    code: Code | None = None
    verb: str = "HELLO"


def _resume(scene: Scene, name: str) -> Any:
    return scene.hello(name, resume={"session": scene.secret, "subs": []})


def _cancel(**fields: Any) -> Callable[[Scene, str], Any]:
    def act(scene: Scene, name: str) -> Any:
        return scene.say(name, m.Cancel(9, fields or {"id": scene.schedule}))

    return act


def _list(scene: Scene, name: str) -> Any:
    return scene.say(name, m.Info(9, {"what": "schedules", "owner": "ann"}))


def _claim(producer: str) -> Callable[[Scene, str], Any]:
    return lambda scene, name: scene.hello(name, producer={"name": producer, "epoch": 1 << 40})


THEFTS = [
    Theft("resume by another principal", "eve", _resume),
    Theft("resume by one without a key", "local", _resume),
    Theft("cancel by id", "eve", _cancel(), code=Code.NOT_FOUND, verb="CANCEL"),
    Theft("cancel by owner", "eve", _cancel(name="nightly", owner="ann"), code=Code.NOT_FOUND, verb="CANCEL"),
    Theft("cancel against an administrator", "mallory", _cancel(), "local", Code.NOT_FOUND, "CANCEL"),
    Theft("list of schedules", "eve", _list, code=Code.FORBIDDEN, verb="INFO"),
    Theft("list of schedules against an administrator", "eve", _list, "local", Code.FORBIDDEN, "INFO"),
    # For the owner this is another name, which begins with its own; for the thief it would be the name of the owner.
    Theft("producer by a granted name", "mallory", _claim("ann/p"), code=Code.FORBIDDEN),
    Theft("producer by one without a key", "local", _claim("ann/p"), code=Code.FORBIDDEN),
]


@pytest.mark.parametrize("theft", THEFTS, ids=lambda theft: theft.name)
def test_what_belongs_to_a_principal_is_not_for_another(tmp_path: Path, theft: Theft) -> None:
    with scene(tmp_path) as told:
        told.hub.admin.subscribe("$sys.audit")
        said = theft.act(told, theft.thief)
        if theft.code is None:
            assert not said.fields["resumed"]
        else:
            assert said.code == theft.code, said
        audit = json.loads(told.hub.admin.take(1)[0][1])
        wanted = {"kind": "refused", "verb": theft.verb, "principal": theft.thief}
        assert wanted.items() <= audit.items(), audit
        # ZeroMQ gives user, group and process of a peer of the admin socket.
        assert audit["address"].startswith("localhost:" if theft.thief == "local" else "127.0.0.1"), audit
        assert told.ann.publish("t", b"x", pseq=1) == 1, "the session and its producer are as before"
        said = theft.act(told, theft.owner)
        assert not isinstance(said, m.Err), said
        assert theft.code is not None or said.fields["resumed"]


def test_one_session_more_than_the_limit_is_refused_and_the_first_stays(tmp_path: Path) -> None:
    with scene(tmp_path) as told:
        first = told.hub.talker(told.keys["small"])
        first.hello(**PATIENT)
        said = told.hello("small")
        assert isinstance(said, m.Err)
        assert (said.code, said.fields["retry_ms"] > 0) == (Code.BUSY, True)
        first.still_served()


def test_a_schedule_is_checked_again_when_it_is_due(tmp_path: Path) -> None:
    with scene(tmp_path) as told:
        for talker, topic in ((told.ann, "t"), (told.hub.talker(told.keys["eve"]), "of-eve")):
            if topic != "t":
                talker.hello(**PATIENT)
            talked(talker, m.Publish(8, 0, 0, encode(topic, [b"x"]), {"delay_ms": 3_000}))
        told.hub.admin.subscribe("$sys.audit")
        (tmp_path / "access.toml").write_text(access(ann="reader")(told.keys))
        audits: list[dict[str, Any]] = []

        def is_told() -> bool:
            audits.extend(json.loads(body) for _, body in told.hub.admin.take(1))
            return any(one["kind"] == "refused" and one["principal"] == "ann" for one in audits)

        eventually(is_told, "the audit has it")
        assert "was due" in audits[-1]["why"]
        assert "may not publish to topic 't' any more" in audits[-1]["why"]
        eventually(lambda: told.hub.admin.info("hub")["last_seq"] >= 1, "that of the other is published")
        found = told.hub.admin.info("topics")
        assert [row["topic"] for row in found["topics"]] == ["of-eve"]


def test_a_guest_is_refused_every_command_and_the_lines_of_its_address_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    free = (m.Hello, m.Ping, m.Goodbye, m.Credit)
    refused = [one for one in SAMPLES if not isinstance(one.message, free) and one.name != OF_GUEST]
    with caplog.at_level(logging.INFO, "fabric"), keyed(tmp_path) as hub:
        hub.admin.admin("keys.invite", name="new", role="client", ttl_ms=3_600_000)
        hub.admin.subscribe("$sys.audit")
        guest = hub.talker(make_pair())
        guest.hello(**PATIENT, enrol=True)
        for sample in refused:
            said = talked(guest, sample.message)
            assert isinstance(said, m.Err), sample
            assert said.code == Code.FORBIDDEN, sample
            audit = json.loads(hub.admin.take(1)[0][1])
            wanted = {"kind": "refused", "principal": "?", "address": "127.0.0.1", "code": "FORBIDDEN"}
            assert wanted.items() <= audit.items(), audit
        guest.still_served()
        assert hub.admin.info("hub")["last_seq"] == 0
    lines = [record.fields for record in caplog.records if record.message == "audit"]  # type: ignore[attr-defined]
    ours = [line for line in lines if line.get("principal") == "?"]
    (count,) = [line["and_more"] for line in lines if line.get("source") == "127.0.0.1"]
    assert (len(ours), count) == (LINES_MAX, len(refused) - LINES_MAX)
