"""Helpers for tests with a real hub in this process."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import fabric_client
from fabric.hub import Hub
from fabric_client import Client, Message

PATIENCE_S = 30.0


def another(hub: Hub, name: str = "another") -> Client:
    return fabric_client.connect("inproc://hub", context=hub.context, name=name)


@contextmanager
def running(work: Callable[[], object]) -> Iterator[None]:
    """Something that goes on meanwhile in a thread; its exception is raised at the end."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def acked(fab: Client, *patterns: str, **how: Any) -> list[Message]:
    found = []
    for message in fab.consume(*patterns, **how):
        with message:
            found.append(message)
    return found
