"""Both clients have the same methods, arguments and defaults."""

import inspect

import pytest

import fabric_client
from fabric_client import AsyncClient, AsyncConsumer, Client, Consumer

AWAITED = {"publish", "publish_many", "cancel", "drain", "flush", "fetch", "work", "close", "publish_numbered"}
AWAITED |= {"info", "request", "respond"}
PLAIN = {"stop", "publish_nowait", "publish_numbered_nowait", "schedules", "consume", "consume_batches", "get", "serve"}
PROPERTIES = {"connected", "hub", "admin", "unconfirmed", "position"}


def words(client: type) -> set[str]:
    return {name for name in dir(client) if not name.startswith("_")}


def test_both_have_the_same_words() -> None:
    assert words(Client) == words(AsyncClient) == AWAITED | PLAIN | PROPERTIES
    assert words(Consumer) == words(AsyncConsumer) == {"close", "group", "ready", "stop"}


@pytest.mark.parametrize("name", sorted(AWAITED | PLAIN))
def test_each_word_takes_the_same_arguments(name: str) -> None:
    sync, twin = getattr(Client, name), getattr(AsyncClient, name)
    assert inspect.signature(sync).parameters == inspect.signature(twin).parameters
    assert inspect.iscoroutinefunction(twin) == (name in AWAITED)
    assert sync.__doc__
    assert twin.__doc__


def test_consumers_have_the_same_words() -> None:
    for name in ("close", "ready"):
        sync, twin = getattr(Consumer, name), getattr(AsyncConsumer, name)
        assert inspect.signature(sync).parameters == inspect.signature(twin).parameters
        assert inspect.iscoroutinefunction(twin)


def test_connecting_takes_the_same_arguments() -> None:
    for one, other in ((fabric_client.connect, fabric_client.aconnect), (Client, AsyncClient)):
        assert inspect.signature(one).parameters == inspect.signature(other).parameters


def test_what_is_exported_exists() -> None:
    for name in fabric_client.__all__:
        assert hasattr(fabric_client, name)
