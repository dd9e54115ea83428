"""A hub on one host and its clients on another, without a loopback in common: joining, refusals, a cut cable."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq

from fabric.access.keys import make_pair
from fabric.hub.advisory_log import TEXT_CHARS_MAX
from fabric_client.credentials import Credentials
from tests.network.far_hub import FarHub, far_hub, lines_until
from tests.network.tenants import ROWS, Contents, access_file, make_keys

pytestmark = pytest.mark.xdist_group("namespaces")
FAR = "10.79.0.2"
SOON = ("--connect-timeout", "2s")


def refused(result: "subprocess.CompletedProcess[str]", code: int, *says: str) -> None:
    assert (result.returncode, result.stdout) == (code, ""), result.stderr
    for text in says:
        assert text in result.stderr


def joined(hub: FarHub, name: str = "billing", role: str = "client") -> str:
    """Let the far host join; the link that it has used."""
    link = hub.link(name, role)
    result = hub.far("join", link, "--context", name)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["principal"] == name
    return link


def test_another_host_joins_and_is_told_each_refusal(tmp_path: Path) -> None:
    with far_hub(tmp_path) as hub:
        link = joined(hub)
        published = hub.far("pub", "orders.created", "x", "-o", "seq")
        assert (published.returncode, published.stdout) == (0, "1\n"), published.stderr
        received = hub.far("sub", "orders.#", "--group", "billing", "--count", "1", "-f", "%v")
        assert (received.returncode, received.stdout) == (0, "x"), received.stderr

        refused(hub.far("join", link, "--context", "again"), 5, "the link was used", "hint: ask for a new link")
        hub.audited(kind="refused_key", address=FAR, code="AUTH_FAILED", why="the key is not known")
        other = hub.link("other")
        refused(hub.far("join", link, "--context", "again"), 5, "is wrong or was used", "hint: ask for a new link")
        hub.audited(kind="refused", principal="?", address=FAR, code="AUTH_FAILED", op="keys.enrol")
        assert hub.far("join", other, "--context", "other").returncode == 0, "the other link is as before"

        joined(hub, "ci", "reader")
        assert hub.far("info", "--context", "ci").returncode == 0
        why = "principal 'ci' may not publish to 'orders.created': role 'reader' publishes to no topic"
        refused(hub.far("pub", "orders.created", "x", "--context", "ci"), 5, why)
        hub.audited(kind="refused", principal="ci", address=FAR, code="FORBIDDEN", verb="PUB", why=why)


def _revoked(hub: FarHub) -> "subprocess.CompletedProcess[str]":
    joined(hub)
    assert hub.far("pub", "t", "x").returncode == 0
    assert hub.keys("revoke", "billing", "--yes").returncode == 0
    return hub.far("pub", "t", "y", *SOON)


def _without_key(hub: FarHub) -> "subprocess.CompletedProcess[str]":
    return hub.far("pub", "t", "x", "--url", hub.url, *SOON)


def _other_hub_key(hub: FarHub) -> "subprocess.CompletedProcess[str]":
    joined(hub)
    path = hub.folder / "wrong.cred"
    Credentials.load(hub.context("billing")).replace(hub_key=make_pair().public).save(path)
    return hub.far("pub", "t", "x", "--credentials", str(path), *SOON)


@pytest.mark.parametrize(
    ("act", "code", "says", "why", "stored"),
    [
        (_without_key, 5, "wants a key", "a client without a key", 0),
        (_other_hub_key, 3, "is not the one that", "trusts another key", 0),
        (_revoked, 5, "the key of this client is not known to the hub", "the key is not known", 1),
    ],
)
def test_a_client_of_another_host_without_the_right_keys_is_told(
    tmp_path: Path,
    act: "Callable[[FarHub], subprocess.CompletedProcess[str]]",
    code: int,
    says: str,
    why: str,
    stored: int,
) -> None:
    with far_hub(tmp_path) as hub:
        refused(act(hub), code, says, "hint: ")

        def is_told(row: dict[str, Any]) -> bool:
            # The client may close first, and then the hub does not learn why.
            told = why in row.get("why", "") or row.get("why") == "the handshake failed"
            return row.get("kind") == "refused_key" and row["address"] in (FAR, "") and told

        hub.heard(is_told)
        with hub.owner() as owner:
            assert owner.info("hub")["last_seq"] == stored


def test_a_cable_is_cut_and_mended_while_a_client_publishes(tmp_path: Path) -> None:
    with far_hub(tmp_path) as hub:
        joined(hub)
        program = (sys.executable, "-m", "tests.network.far_publisher", str(hub.context("billing")), "t")
        publisher = hub.hosts.other.start(*program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert publisher.stdin is not None
        printed = lines_until(publisher, lambda lines: len(lines) >= 50)
        for _ in range(2):
            hub.hosts.cut()
            printed += lines_until(publisher, lambda lines: "away" in lines)
            hub.hosts.mend()
            printed += lines_until(publisher, lambda lines: len(lines) >= 50)
        publisher.stdin.close()
        printed += lines_until(publisher, lambda lines: "end" in lines)
        publisher.wait()
        confirmed = [int(line) for line in printed if line.isdigit()]
        with hub.owner() as owner:
            stored = [int(message.body) for message in owner.get("t", n=1_000_000)]
    assert confirmed == list(range(len(confirmed)))
    assert stored == confirmed


def test_the_table_of_refused_attempts_is_refused_to_another_host(tmp_path: Path) -> None:
    keys = make_keys()
    path = tmp_path / "access.toml"
    path.write_text(access_file(keys))
    with far_hub(tmp_path, "--access", str(path)) as hub, zmq.Context() as context:
        contents = Contents(context, f"ipc://{hub.data}/hub.sock")
        given = {"url": hub.url, "hub_key": contents.admin.info("keys")["hub_key"], "keys": keys}
        program = hub.hosts.other.start(
            sys.executable, "-m", "tests.network.far_rows", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        digest = contents.digest()
        answers = [json.loads(line) for line in program.communicate(json.dumps(given))[0].splitlines()]
        assert [row["name"] for row in answers] == [row.attempt.name for row in ROWS]
        assert [row["code"] for row in answers] == [row.attempt.code.name for row in ROWS]
        assert contents.digest() == digest, "nothing has changed"
        contents.close()
    lines = [row for row in hub.events("audit") if row.get("address") == FAR]
    found = {(line["principal"], line["code"], line["why"]) for line in lines if line["kind"] == "refused"}
    for row in answers:
        why = row["text"] if len(row["text"]) <= TEXT_CHARS_MAX else row["text"][:TEXT_CHARS_MAX] + "…"
        assert (row["principal"], row["code"], why) in found, row
    assert len(lines) == len(answers)
