"""The access file: what it may say, and that each mistake is told with its place."""

import contextlib
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric.access.access_file import FILE_BYTES_MAX, STARTER, parse_access, read_access
from fabric.access.enrolled_file import EnrolledFile, Enrolment, Invitation, parse_enrolled, text_of
from fabric.access.keys import link_form
from fabric.router.access.role import ADMIN_RIGHTS, EVERYTHING, Limits, Role
from fabric_protocol.errors import FabricError

KEY = "HkN*TT.^!gt3NhtSX9m26E5W@i3AB?=Qa^K]7-&t"  # fixed, because names of tests have it
OTHER = "hsq0zX?lM3(ENgpkmN=0K8iL{rfIS8eLHz(76}AJ"
GOOD = f"""
[role.worker]
subscribe = ["orders.>", "a.#.*"]
groups = ["billing*"]
publish = ["invoices.#"]
deny = ["orders.secret.#", "billing.DLQ"]
admin = ["info", "dlq"]
limits = {{ rate = "20k/s", bytes = "20MB/s", sessions = 10, inflight = "16MiB", groups = 20 }}
[role.empty]
[principal.billing]
role = "worker"
key = "{KEY}"
[principal.shop]
role = "empty"
keys = ["{link_form(OTHER)}", "{link_form(OTHER)}"]
[principal.local]
role = "empty"
"""


def test_a_file_is_read() -> None:
    roles, principals = parse_access(GOOD.encode(), "f")
    assert roles["worker"] == Role(
        "worker",
        publish=("invoices.#",),
        subscribe=("orders.*.#", "a.*.#"),
        groups=("billing*",),
        deny=("orders.secret.#", "$dlq.billing"),
        admin=frozenset({"info", "dlq"}),
        limits=Limits(20_000, 20_000_000, 10, 16 << 20, 20),
    )
    assert roles["empty"] == Role("empty")
    assert principals["billing"] == ("worker", (KEY,))
    assert principals["shop"] == ("empty", (OTHER,))
    assert principals["local"] == ("empty", ())


def test_the_starter_file_has_three_roles_and_no_principal() -> None:
    roles, principals = parse_access(STARTER.encode(), "f")
    assert list(roles) == ["admin", "client", "reader"]
    assert not principals
    assert roles["admin"]._replace(name="everything") == EVERYTHING
    uncommented = "\n".join(line.removeprefix("# ") for line in STARTER.splitlines() if line.startswith("# [role.b"))
    assert uncommented == "[role.billing]"


@pytest.mark.parametrize(
    ("text", "place", "hint"),
    [
        ("[role.w]\nsubscibe = []", "f: [role.w]: 'subscibe' is not one of publish, subscribe", "mean subscribe?"),
        ("[roles.w]", "f: the top level: 'roles' is not one of role, principal", "mean role?"),
        ("[role.w]\nsubscribe = 'a'", "[role.w] subscribe: expected a list", ""),
        ("[role.w]\nsubscribe = ['a', 3]", "[role.w] subscribe, number 2: expected a text in quotes, and not 3", ""),
        ("[role.w]\npublish = ['a..b']", "[role.w] publish, number 1: pattern 'a..b'", "patterns are words"),
        ("[role.w]\ngroups = ['']", "[role.w] groups, number 1: '' is not a name", ""),
        ("[role.w]\nadmin = ['key']", f"'key' is not one of {', '.join(ADMIN_RIGHTS)}", "mean keys?"),
        ("[role.w]\nlimits = 3", "[role.w] limits: expected { rate", ""),
        ("[role.w]\nlimits = {rat = 3}", "[role.w] limits: 'rat' is not one of rate", "mean rate?"),
        ("[role.w]\nlimits = {rate = '3 MB/s'}", "[role.w] limits.rate: '3 MB/s' is not a limit", ""),
        ("[role.w]\nlimits = {sessions = '3/s'}", "limits.sessions", ""),
        ("[role.w]\nlimits = {rate = -1}", "limits.rate: -1", ""),
        ("[role.w]\nlimits = {rate = true}", "limits.rate: True", ""),
        ("[role.w]\nlimits = {bytes = '9999999T'}", "limits.bytes", ""),
        ("[role.'a b']", "[role.'a b']: a name has 1 to 64", ""),
        ("role = 3", "role: expected tables [role.NAME], and not 3", ""),
        ("[role]\nw = 3", "role.w: expected a table", ""),
        ("[principal.x]", "[principal.x]: it needs a role", ""),
        ("[role.worker]\n[principal.x]\nrole = 'woker'", "there is no [role.woker]", "mean worker?"),
        ("[role.w]\n[principal.x]\nrole = 'w'", "[principal.x]: it has no key", "fabric keys invite x --role w"),
        ("[role.w]\n[principal.x]\nrole = 'w'\nkey = 'short'", "[principal.x] key: 'short' is not a public key", ""),
        ("[role.w]\n[principal.x]\nrole = 'w'\nkey = 3", "[principal.x] key: expected a public key in quotes", ""),
        (f"[role.w]\n[principal.x]\nrole = 'w'\nkey = '{KEY}'\nkeys = []", "it has key and keys", ""),
        (f"[role.w]\n[principal.local]\nrole = 'w'\nkey = '{KEY}'", "local is the principal of connections", ""),
        (
            f"[role.w]\n[principal.x]\nrole = 'w'\nkey = '{KEY}'\n[principal.y]\nrole = 'w'\nkey = '{link_form(KEY)}'",
            f"[principal.y]: its key {KEY[:8]}… is a key of [principal.x] as well",
            "",
        ),
        ("[role.w\n", "f: it is not TOML: Expected ']' at the end of a table declaration (at line 1, column 8)", ""),
        ("a = " + "[" * 5000, "f: it", ""),
        ("a = " + "9" * 5000, "f: ", ""),
        ("[role.w]\npublish = [" + "'a'," * 257 + "]", "257 are more than the 256", ""),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, place: str, hint: str) -> None:
    with pytest.raises(FabricError) as error:
        parse_access(text.encode(), "f")
    assert place in str(error.value)
    assert hint in error.value.hint
    assert len(str(error.value)) < 400


def test_bytes_that_are_not_text_are_told_with_their_line() -> None:
    with pytest.raises(FabricError, match="f: line 2: a byte that is not UTF-8"):
        parse_access(b"[role.w]\n\xff", "f")


def test_files_are_bounded_and_not_for_all_to_change(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    path.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(FabricError, match="is larger than"):
        read_access(path)
    path.write_text(GOOD)
    path.chmod(0o666)
    with pytest.raises(FabricError, match="every user may change it") as error:
        read_access(path)
    assert error.value.hint == f"chmod o-w {path}"


WORDS = ["role", "principal", "publish", "subscribe", "groups", "deny", "admin", "limits", "rate", "key", "keys", "w"]
VALUES = st.recursive(
    st.none().map(lambda _: "1979-05-27T07:32:00Z")
    | st.integers().map(str)
    | st.floats(allow_nan=False, allow_infinity=False).map(str)
    | st.booleans().map(lambda value: str(value).lower())
    | st.sampled_from([KEY, "w", "a.*", "#", "20k/s", "x", "", "local"]).map(lambda text: f'"{text}"')
    | st.text(alphabet=string.printable, max_size=10).map(lambda text: f"'{text}'"),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda values: f"[{', '.join(values)}]")
        | st.lists(st.tuples(st.sampled_from(WORDS), inner), max_size=3, unique_by=lambda row: row[0]).map(
            lambda rows: "{" + ", ".join(f"{name} = {value}" for name, value in rows) + "}"
        )
    ),
    max_leaves=6,
)
LINES = st.lists(
    st.sampled_from(["[role.w]", "[principal.x]", "[principal.local]", "[role]", "[[role]]", "[principal.'?']"])
    | st.tuples(st.sampled_from(WORDS), VALUES).map(lambda row: f"{row[0]} = {row[1]}"),
    max_size=8,
)


@given(st.binary(max_size=80) | LINES.map(lambda lines: "\n".join(lines).encode()))
def test_any_text_is_a_file_or_a_fabric_error(text: bytes) -> None:
    for parse in (parse_access, parse_enrolled):
        with contextlib.suppress(FabricError):
            parse(text, "f")


@given(st.data())
def test_any_change_of_a_good_file_is_a_file_or_a_fabric_error(data: Any) -> None:
    text = GOOD.encode()
    at = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(at, min(at + 20, len(text))))
    with contextlib.suppress(FabricError):
        parse_access(text[:at] + data.draw(st.binary(max_size=6)) + text[end:], "f")


def test_the_enrolled_file_reads_what_it_wrote() -> None:
    enrolled = EnrolledFile(
        {"a.b": Enrolment("worker", KEY, 5), "c": Enrolment("r-1", OTHER, 1 << 50)},
        (Invitation("x", "worker", "0" * 64, 7), Invitation("y_", "r", "f" * 64, 8)),
    )
    assert parse_enrolled(text_of(enrolled).encode(), "f") == enrolled
    assert parse_enrolled(text_of(EnrolledFile()).encode(), "f") == EnrolledFile()


@pytest.mark.parametrize(
    "text",
    [
        f'[principal."a b"]\nrole = "r"\nkey = "{KEY}"\nsince_us = 1',
        f'[principal.a]\nrole = "r"\nkey = "{KEY}"',
        "".join(f'[principal.{name}]\nrole = "r"\nkey = "{KEY}"\nsince_us = 1\n' for name in "ab"),
        '[principal.a]\nrole = "r"\nkey = "x"\nsince_us = 1',
        "principal = 3",
        "invitation = 3",
        "[[invitation]]",
        '[[invitation]]\nname = "a"\nrole = "r"\ncode_hash = "x"\nexpires_us = 1',
        "other = 3",
    ],
)
def test_a_damaged_enrolled_file_is_refused(text: str) -> None:
    with pytest.raises(FabricError, match="f: "):
        parse_enrolled(text.encode(), "f")
