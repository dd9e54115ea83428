"""Runs a shell command for each message or request: the body is its standard input, the rest its environment.

Exit code 0 means success. The output of a command is written when the command has ended, so that commands that run at
the same time do not mix their lines. Each command is a process group of its own, so that Ctrl-C and SIGTERM end it with
all its children; its message is released.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import click

from fabric.cli.support.message_format import text_headers

if TYPE_CHECKING:
    from fabric_client import Message

# Ended by a signal, or by a shell that reports one: an interruption, not a failure of the message.
INTERRUPTED: Final = frozenset({-signal.SIGINT, -signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGTERM})
REASON_CHARS_MAX: Final = 300


class CommandFailed(Exception):
    """The command ended with another exit code than 0."""


class Command:
    def __init__(self, text: str) -> None:
        self._text = text
        self._writing = threading.Lock()
        self._changing = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(self, message: "Message") -> bytes:
        """The standard output of the command. Raises CommandFailed, or Release when it was interrupted."""
        from fabric_client import Release

        with self._changing:
            if self._stopped:
                raise Release
            process = subprocess.Popen(
                self._text,
                shell=True,  # the command is the user's own
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **environment(message)},
                process_group=0,
            )
            self._running.add(process)
        if self._stopped:  # since the check above
            _end(process)
        out, err = process.communicate(message.body)
        with self._changing:
            self._running.discard(process)
        if err:
            self.write(err, err=True)
        if process.returncode in INTERRUPTED or (self._stopped and process.returncode):
            raise Release
        if process.returncode:
            last = err.decode(errors="replace").strip().rpartition("\n")[2]
            raise CommandFailed(f"exit code {process.returncode}{': ' if last else ''}{last}"[:REASON_CHARS_MAX])
        return out

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end all commands, then raise KeyboardInterrupt."""

        def stop(number: int, frame: object) -> None:
            self._stopped = True
            for process in list(self._running):
                _end(process)
            raise KeyboardInterrupt

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def write(self, text: bytes, *, err: bool = False) -> None:
        with self._writing:
            click.echo(text, nl=False, err=err)
            (sys.stderr if err else sys.stdout).flush()


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a command with all its children."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)


def environment(message: "Message") -> Mapping[str, str]:
    return {
        "FABRIC_TOPIC": message.topic,
        "FABRIC_SEQ": str(message.seq),
        "FABRIC_KEY": (message.key or "").replace("\0", ""),
        "FABRIC_ATTEMPT": str(message.attempt),
        "FABRIC_GROUP": message.group or "",
        "FABRIC_HEADERS": json.dumps(text_headers(message)),
    }
