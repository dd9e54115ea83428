"""Invitations at a real hub: late, used by many at once, and guessed ten thousand times."""

import json
import logging
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fabric.access.keys import KeyPair, make_pair
from fabric.access.tries import PERIOD_US, TRIES_MAX
from fabric.hub.advisory_log import LINES_MAX, PERIOD_S
from fabric_client.links import Link
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from tests.hub.curve_kit import Keyed, keyed
from tests.hub.hostile import Canary
from tests.hub.kit import Talker, eventually
from tests.network.namespaces import PYTHON_PATH
from tests.network.tenants import PATIENT
from tests.patience import PATIENCE_S

GUESSES = 10_000
GUESSERS = 8
AT_ONCE = 25  # guesses of one connection that wait for their answers
MACHINES = 4
HOUR_MS = 3_600_000


def invite(hub: Keyed, name: str, ttl_ms: int = HOUR_MS) -> str:
    """The code of a new invitation."""
    return str(hub.admin.admin("keys.invite", name=name, role="client", ttl_ms=ttl_ms)["code"])


def join(hub: Keyed, code: str, home: Path) -> "subprocess.Popen[str]":
    """Start `fabric join` on a machine that has its contexts in a folder."""
    link = Link(hub.url, hub.key, code, "billing").text()
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH, "FABRIC_HOME": str(home)}
    words = [sys.executable, "-m", "fabric", "join", link, "--context", "shop", "--timeout", f"{PATIENCE_S:g}s"]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, errors


@pytest.mark.parametrize(("is_open", "says"), [(False, "its time is over"), (True, "has expired")])
def test_a_late_link_is_refused(tmp_path: Path, is_open: bool, says: str) -> None:
    """Also while an invitation of another name is open, so that the handshake succeeds."""
    with keyed(tmp_path) as hub:
        code = invite(hub, "billing", 1_000)
        if is_open:
            invite(hub, "other")
        eventually(lambda: len(hub.admin.info("keys")["invitations"]) == is_open, "the invitation ends")
        status, out, errors = ended(join(hub, code, tmp_path / "home"))
        assert (status, out) == (5, ""), errors
        assert says in errors
        assert "hint: ask for a new link" in errors
        assert hub.admin.info("keys")["principals"] == []


@pytest.mark.parametrize("is_open", [False, True])
def test_one_of_many_that_join_at_once_succeeds(tmp_path: Path, is_open: bool) -> None:
    with keyed(tmp_path) as hub:
        if is_open:
            invite(hub, "other")
        code = invite(hub, "billing")
        results = [ended(one) for one in [join(hub, code, tmp_path / f"home-{n}") for n in range(MACHINES)]]
        assert sorted(status for status, _, _ in results) == [0] + [5] * (MACHINES - 1), results
        homes = [number for number in range(MACHINES) if (tmp_path / f"home-{number}/contexts/shop.toml").exists()]
        (winner,) = (number for number, result in enumerate(results) if result[0] == 0)
        assert homes == [winner], "the others have saved nothing"
        told = json.loads(results[winner][1])
        (row,) = hub.admin.info("keys")["principals"]
        assert (row["principal"], row["keys"]) == ("billing", [told["key"]])
        for status, _, errors in results:
            assert status == 0 or "hint: ask for a new link" in errors


def guest(hub: Keyed, url: str = "", pair: KeyPair | None = None) -> Talker:
    talker = hub.talker(pair or make_pair(), url)
    talker.hello(**PATIENT, enrol=True)
    return talker


def guess(guests: list[Talker]) -> "Counter[Code]":
    """A round of wrong codes over all connections; how often each error came."""
    for talker in guests:
        for rid in range(1, AT_ONCE + 1):
            talker.send(m.Admin(rid, {"op": "keys.enrol", "code": os.urandom(16).hex()}))
    found: Counter[Code] = Counter()
    for talker in guests:
        for _ in range(AT_ONCE):
            answer = talker.receive()
            assert isinstance(answer, m.Err), answer
            found[Code(answer.code)] += 1
    return found


def test_ten_thousand_guesses_find_nothing_and_others_are_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found: Counter[Code] = Counter()
    begun = time.monotonic()
    with caplog.at_level(logging.INFO, "fabric"), keyed(tmp_path) as hub:
        code = invite(hub, "billing")
        canary = Canary(hub.talker(url=hub.access.admin_bind))
        guests = [guest(hub) for _ in range(GUESSERS)]
        while found.total() < GUESSES:
            found += guess(guests)
            canary.round_trip()
        periods = 1 + (time.monotonic() - begun) * 1e6 // PERIOD_US
        assert set(found) <= {Code.AUTH_FAILED, Code.BUSY}
        assert TRIES_MAX <= found[Code.AUTH_FAILED] <= TRIES_MAX * periods
        assert [row["name"] for row in hub.admin.info("keys")["invitations"]] == ["billing"]
        # The same link from another address, which has not guessed.
        pair, url = make_pair(), hub.url.replace("tcp://", "tcp://127.0.0.2:0;")
        assert guest(hub, url, pair).admin("keys.enrol", code=code)["principal"] == "billing"
        joined = hub.talker(pair, url)
        joined.hello(**PATIENT)
        assert joined.info("me")["principal"] == "billing"
    lines: list[dict[str, Any]] = [record.fields for record in caplog.records if record.message == "audit"]  # type: ignore[attr-defined]
    guesses = [line for line in lines if line.get("address") == "127.0.0.1" and line.get("kind") == "refused"]
    more = sum(line["and_more"] for line in lines if line.get("source") == "127.0.0.1")
    assert LINES_MAX <= len(guesses) <= LINES_MAX * (1 + (time.monotonic() - begun) // PERIOD_S)
    assert found.total() <= len(guesses) + more <= found.total() + GUESSERS, "each guess, and the ends of the sessions"
    assert any(line["kind"] == "enrolled" and line["address"] == "127.0.0.2" for line in lines if "kind" in line)
