"""Both clients say the same words: same methods, same arguments, same defaults."""

import inspect

import pytest

import fabric_client
from fabric_client import AsyncClient, AsyncConsumer, Client, Consumer

AWAITED = {"publish", "publish_many", "drain", "flush", "fetch", "info", "close"}
PLAIN = {"publish_nowait", "consume", "consume_batches"}


def words(client: type) -> dict[str, object]:
    return {name: value for name, value in vars(client).items() if not name.startswith("_")}


def test_both_have_the_same_words() -> None:
    assert set(words(Client)) == set(words(AsyncClient)) == AWAITED | PLAIN | {"connected", "hub"}
    assert set(words(Consumer)) == set(words(AsyncConsumer))


@pytest.mark.parametrize("name", sorted(AWAITED | PLAIN))
def test_each_word_takes_the_same_arguments(name: str) -> None:
    sync, twin = getattr(Client, name), getattr(AsyncClient, name)
    assert inspect.signature(sync).parameters == inspect.signature(twin).parameters
    assert inspect.iscoroutinefunction(twin) == (name in AWAITED)
    assert sync.__doc__
    assert twin.__doc__


def test_connecting_takes_the_same_arguments() -> None:
    for one, other in ((fabric_client.connect, fabric_client.aconnect), (Client, AsyncClient)):
        assert inspect.signature(one).parameters == inspect.signature(other).parameters


def test_what_is_exported_exists() -> None:
    for name in fabric_client.__all__:
        assert hasattr(fabric_client, name)
