"""A shell command for each message or request: the body on its standard input, the rest in its environment.

Exit code 0 means done. What the command writes is passed on when it has ended, so that commands that run at the same
time do not mix their lines.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click

from fabric.cli_shape import text_headers

if TYPE_CHECKING:
    from fabric_client import Message

# By a signal itself, or as the shell tells it: somebody wants to leave, and that is no failure of the message.
INTERRUPTED: Final = frozenset({-signal.SIGINT, -signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGTERM})
REASON_CHARS_MAX: Final = 300


class CommandFailed(Exception):
    """The command ended with another exit code than 0."""


class Command:
    def __init__(self, text: str) -> None:
        self._text = text
        self._writing = threading.Lock()

    def run(self, message: "Message") -> bytes:
        """What the command wrote to its standard output. Raises CommandFailed, or Release when it was interrupted."""
        from fabric_client import Release

        done = subprocess.run(
            self._text,
            shell=True,  # the command is the user's own
            input=message.body,
            capture_output=True,
            env={**os.environ, **environment(message)},
            check=False,
        )
        if done.stderr:
            self.write(done.stderr, err=True)
        if done.returncode in INTERRUPTED:
            raise Release
        if done.returncode:
            last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise CommandFailed(f"exit code {done.returncode}{': ' if last else ''}{last}"[:REASON_CHARS_MAX])
        return done.stdout

    def write(self, text: bytes, *, err: bool = False) -> None:
        with self._writing:
            click.echo(text, nl=False, err=err)
            (sys.stderr if err else sys.stdout).flush()


def environment(message: "Message") -> Mapping[str, str]:
    return {
        "FABRIC_TOPIC": message.topic,
        "FABRIC_SEQ": str(message.seq),
        "FABRIC_KEY": (message.key or "").replace("\0", ""),
        "FABRIC_ATTEMPT": str(message.attempt),
        "FABRIC_GROUP": message.group or "",
        "FABRIC_HEADERS": json.dumps(text_headers(message)),
    }
