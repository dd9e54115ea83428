"""`fabric pub` publishes exactly the bytes that it gets from the shell."""

import os

import pytest

from tests.cli.conftest import Fabric


@pytest.mark.parametrize(
    ("stdin", "bodies"),
    [
        (b"one\ntwo", [b"one", b"two"]),
        (b"one\r\ntwo\r\n", [b"one", b"two"]),
        (b"one\r\r\n\n\r\nx\r", [b"one\r", b"", b"", b"x"]),
        (b"\x00\xff\n \n", [b"\x00\xff", b" "]),
    ],
)
def test_a_line_loses_its_end_and_nothing_else(talk: Fabric, stdin: bytes, bodies: list[bytes]) -> None:
    assert talk("pub", "a", "--lines", stdin=stdin).exit_code == 0
    assert talk("get", "a", "-f", "%v|").stdout_bytes == b"".join(body + b"|" for body in bodies)


@pytest.mark.parametrize("body", [b"\xff\xfe", "grüße".encode(), b"-x"])
def test_an_argument_is_sent_as_the_shell_gave_it(talk: Fabric, body: bytes) -> None:
    result = talk("pub", "a", "--", os.fsdecode(body))
    assert result.exit_code == 0, result.output
    assert talk("get", "a", "-o", "raw").stdout_bytes == body
