"""The connection of a command to a hub: its options, the client's warnings, SIGTERM."""

import contextlib
import functools
import logging
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from fabric.cli.support.completion import contexts
from fabric.cli.support.destination import chosen, credentials_of, of_owner
from fabric.cli.support.values import Duration
from fabric_protocol.errors import FabricError

if TYPE_CHECKING:
    from fabric_client import Client
    from fabric_client.destination import Destination

F = TypeVar("F", bound=Callable[..., Any])
ASKING: Final = "Time for the whole command: for the hub and for its answers.  [default: 10s for each answer]"
_TIMEOUT: Final = "fabric.timeout"  # in the context of a command
_DESTINATION: Final = "fabric.destination"  # the same


def hub_options(command: F) -> F:
    """`--url`, `--context`, `--credentials` and `--connect-timeout`. The command gets the address as `url`, and
    `connect` reads the keys for it."""
    return _address(_wait(_addressed(command, chosen)))


def address_options(command: F) -> F:
    """As `hub_options`, for commands that use the address and the key, and talk to no hub."""
    return _address(_addressed(command, chosen))


def owner_options(command: F) -> F:
    """As `asking_options`, and `--data`: the owner of a data folder talks to its hub without a key."""
    data = click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="FABRIC_DATA",
        show_default="fabric-data",
        help="Talk to the hub over this directory, on this machine; needs no key.",
    )
    return data(_timeout_option(None, ASKING)(_address(_wait(_addressed(command, of_owner, "data")))))


def _addressed(command: F, choose: Callable[[click.Context], "Destination"], *unseen: str) -> F:
    """The command with the address that `choose` finds by its options, of which the command does not see the rest."""
    unseen = ("context_name", "credentials", *unseen)

    @functools.wraps(command)
    def wrapped(*args: Any, **given: Any) -> Any:
        context = click.get_current_context()
        to = context.meta[_DESTINATION] = choose(context)
        rest = {name: value for name, value in given.items() if name not in unseen}
        return command(*args, **{**rest, "url": to.url})

    return wrapped  # type: ignore[return-value]


def _address(command: F) -> F:
    url = click.option(
        "--url",
        envvar="FABRIC_URL",
        metavar="URL",
        help="The hub's address; also FABRIC_URL.  [default: the current context, or tcp://127.0.0.1:7171]",
    )
    context = click.option(
        "--context",
        "context_name",
        envvar="FABRIC_CONTEXT",
        metavar="NAME",
        shell_complete=contexts,
        help="A saved address with its key; also FABRIC_CONTEXT.",
    )
    credentials = click.option(
        "--credentials",
        envvar="FABRIC_CREDENTIALS",
        type=click.Path(dir_okay=False, path_type=Path),
        help="A file with an address and a key; also FABRIC_CREDENTIALS.",
    )
    return url(context(credentials(command)))


def _wait(command: F) -> F:
    return click.option(
        "--connect-timeout", type=Duration(), default=3.0, show_default="3s", help="How long to wait for the hub."
    )(command)


def asking_options(command: F) -> F:
    """As `hub_options`, and `--timeout`, for commands that wait for answers. `connect` reads the timeout."""
    return _timeout_option(None, ASKING)(hub_options(command))


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


def present(url: str) -> "Destination":
    """The destination that the options of the present command have chosen, if `url` is its address."""
    from fabric_client.destination import Destination

    context = click.get_current_context(silent=True)
    to: Destination | None = context.meta.get(_DESTINATION) if context is not None else None
    return to if to is not None and to.url == url else Destination((url,))


@contextlib.contextmanager
def told_origin(to: "Destination") -> Iterator[None]:
    """Add to errors of the connection where its address is from: a wrong hub is often a forgotten variable."""
    try:
        yield
    except FabricError as error:
        if to.origin and to.origin not in str(error):
            error.args = (f"{error} ({to.origin})", *error.args[1:])
        raise


def _client(url: str, connect_s: float) -> "Client":
    """A connected client. With `--timeout`, no call waits longer than the time that is left for the command."""
    import fabric_client

    context = click.get_current_context(silent=True)
    timeout_s = context.meta.get(_TIMEOUT) if context is not None else None
    to = present(url)
    connect_s *= len(to.urls)  # a host that is off takes all of the time for one address
    with told_origin(to):
        if timeout_s is None:
            return fabric_client.connect(url, credentials=credentials_of(to), name="fabric-cli", timeout=connect_s)
        deadline = time.monotonic() + timeout_s

        class Client(fabric_client.Client):
            def _call(self, make: Any, timeout: Any, what: str) -> Any:
                return super()._call(make, max(deadline - time.monotonic(), 0.0), what)

        wait_s = min(connect_s, timeout_s)
        return Client(url, credentials=credentials_of(to), name="fabric-cli", timeout=wait_s)


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


@contextlib.contextmanager
def client_is_silent() -> Iterator[None]:
    """The client's warnings are not printed: the caller expects them."""
    logger = logging.getLogger("fabric_client")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


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
