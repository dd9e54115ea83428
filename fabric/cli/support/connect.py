"""What the commands that talk to a hub share: its address, the client's warnings in our words, how to be stopped."""

import contextlib
import logging
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fabric.cli.support.values import Duration

if TYPE_CHECKING:
    from fabric_client import Client

F = TypeVar("F", bound=Callable[..., Any])


def hub_options(command: F) -> F:
    """`--url` and `--connect-timeout`."""
    url = click.option(
        "--url",
        envvar="FABRIC_URL",
        default="tcp://127.0.0.1:7171",
        show_default=True,
        metavar="URL",
        help="The hub's address; also FABRIC_URL.",
    )
    wait = click.option(
        "--connect-timeout", type=Duration(), default=3.0, show_default="3s", help="How long to wait for the hub."
    )
    return url(wait(command))


@contextlib.contextmanager
def connect(url: str, timeout_s: float) -> "Iterator[Client]":
    """A client for the length of a command. A command that has waited long enough does not wait again at its end."""
    import fabric_client

    handler = _Warnings()
    logger = logging.getLogger("fabric_client")
    if not any(isinstance(old, _Warnings) for old in logger.handlers):
        logger.addHandler(handler)
        logger.propagate = False
    logger.setLevel(logging.WARNING)  # the demo, in the same process, may have turned it down
    fab = fabric_client.connect(url, name="fabric-cli", timeout=timeout_s)
    try:
        yield fab
    except BaseException as error:
        kinds = (fabric_client.Timeout, fabric_client.ConnectionLost, fabric_client.TimedOut, KeyboardInterrupt)
        enough = isinstance(error, kinds) or isinstance(error.__cause__, kinds)
        with contextlib.suppress(fabric_client.FabricError):  # the first error is the one to hear about
            fab.close(timeout=0.0) if enough else fab.close()
        raise
    fab.close()


def all_rows(fab: "Client", what: str, name: str, **fields: Any) -> list[dict[str, Any]]:
    """All rows of a list that the hub gives in pages."""
    rows: list[dict[str, Any]] = []
    after: dict[str, Any] = {}
    while True:
        page = fab.info(what, **fields, **after)
        rows += page[name]
        if not page.get("more") or page.get("next") is None:
            return rows
        after = {"after": page["next"]}


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """SIGTERM ends what is going on as Ctrl-C does: with everything cleaned up."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Warnings(logging.Handler):
    """What the client has to say goes to standard error, as everything that is not data does."""

    def emit(self, record: logging.LogRecord) -> None:
        why = f": {record.exc_info[1]}" if record.exc_info and record.exc_info[1] else ""
        click.echo(click.style("warning: ", fg="yellow") + record.getMessage() + why, err=True)
