"""The connection of a command to a hub: its options, the client's warnings, SIGTERM."""

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from fabric.cli.support.values import Duration

if TYPE_CHECKING:
    from fabric_client import Client

F = TypeVar("F", bound=Callable[..., Any])
_TIMEOUT: Final = "fabric.timeout"  # in the context of a command


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


def asking_options(command: F) -> F:
    """`--url`, `--connect-timeout` and `--timeout`, for commands that wait for answers. `connect` reads the timeout."""
    text = "Time for the whole command: for the hub and for its answers.  [default: 10s for each answer]"
    return _timeout_option(None, text)(hub_options(command))


def checking_options(command: F) -> F:
    """As `asking_options`, for a command that must end in time also if the hub does not answer."""
    return _timeout_option(10.0, "Time for the whole command.  [default: 10s]")(hub_options(command))


def _timeout_option(default_s: float | None, text: str) -> Callable[[F], F]:
    return click.option(
        "--timeout", type=Duration(), default=default_s, expose_value=False, callback=_keep_timeout, help=text
    )


def _keep_timeout(context: click.Context, option: click.Parameter, timeout_s: float | None) -> None:
    if timeout_s is not None and timeout_s <= 0:
        raise click.BadParameter("it must be more than 0", context, option)
    context.meta[_TIMEOUT] = timeout_s


def _client(url: str, connect_s: float) -> "Client":
    """A connected client. With `--timeout`, no call waits longer than the time that is left for the command."""
    import fabric_client

    context = click.get_current_context(silent=True)
    timeout_s = context.meta.get(_TIMEOUT) if context is not None else None
    if timeout_s is None:
        return fabric_client.connect(url, name="fabric-cli", timeout=connect_s)
    deadline = time.monotonic() + timeout_s

    class Client(fabric_client.Client):
        def _call(self, make: Any, timeout: Any, what: str) -> Any:
            return super()._call(make, max(deadline - time.monotonic(), 0.0), what)

    return Client(url, name="fabric-cli", timeout=min(connect_s, timeout_s))


@contextlib.contextmanager
def connect(url: str, timeout_s: float) -> "Iterator[Client]":
    """A client for a command. After a timeout or an interruption it is closed without waiting."""
    import fabric_client

    hear_client()
    fab = _client(url, timeout_s)
    try:
        yield fab
    except BaseException as error:
        kinds = (fabric_client.Timeout, fabric_client.ConnectionLost, fabric_client.TimedOut, KeyboardInterrupt)
        enough = isinstance(error, kinds) or isinstance(error.__cause__, kinds)
        with contextlib.suppress(fabric_client.FabricError):  # the first error is the one to report
            fab.close(timeout=0.0) if enough else fab.close()
        raise
    fab.close()


def hear_client() -> None:
    """Print the client's warnings from now on."""
    logger = logging.getLogger("fabric_client")
    if not any(isinstance(old, _Warnings) for old in logger.handlers):
        logger.addHandler(_Warnings())
        logger.propagate = False
    logger.setLevel(logging.WARNING)  # the demo, in the same process, may have raised it


def all_rows(fab: "Client", what: str, name: str, **fields: Any) -> list[dict[str, Any]]:
    """All rows of a list, from all its pages."""
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
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does, so that everything is cleaned up."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Warnings(logging.Handler):
    """Prints the client's warnings on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        why = f": {record.exc_info[1]}" if record.exc_info and record.exc_info[1] else ""
        click.echo(click.style("warning: ", fg="yellow") + record.getMessage() + why, err=True)
