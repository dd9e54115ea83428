"""`fabric hub`: runs a hub in this process until a signal drains it."""

import logging
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fabric import __version__
from fabric.cli.support.config import Configured, config_options, configuration
from fabric.cli.support.config_file import ConfigError
from fabric.cli.support.reach import Advertised
from fabric.cli.support.values import Duration, Size, Text, shown_bytes, shown_seconds

if TYPE_CHECKING:
    from fabric.hub import Hub, HubOptions
    from fabric.hub.hub_access import HubAccess

DATA = Path("fabric-data")
MESSAGES_MAX = 2**63 - 1  # a sequence number has 63 bits
LEVELS = ("debug", "info", "warning", "error")


@click.command(cls=Configured)
@config_options
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=DATA,
    show_default=True,
    envvar="FABRIC_DATA",
    help="Directory of the journal; created if it does not exist.",
)
@click.option(
    "--bind",
    "binds",
    type=Text(),
    multiple=True,
    metavar="URL",
    default=["tcp://127.0.0.1:7171"],
    show_default=True,
    help="Address to listen at: tcp://127.0.0.1:PORT (* for any free port), tcp://0.0.0.0:PORT for networks "
    "(with keys) or ipc://PATH; repeatable.",
)
@click.option(
    "--access",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with roles and principals; it must exist.  [default: access.toml in the data directory]",
)
@click.option(
    "--advertise",
    type=Advertised(),
    metavar="URL",
    default="",
    help="Address that invitations name, such as tcp://hub-1.example.org:7171.  "
    "[default: the one by which 'fabric keys' reaches the hub]",
)
@click.option("--max-age", type=Duration(), default=0.0, help="Remove messages older than this.  [default: keep]")
@click.option(
    "--max-bytes", type=Size(), default=0, help="Remove the oldest messages above this size.  [default: keep]"
)
@click.option(
    "--max-messages",
    type=click.IntRange(min=0, max=MESSAGES_MAX),
    default=0,
    help="Remove the oldest messages above this number.  [default: keep]",
)
@click.option(
    "--degraded-oldest",
    type=Duration(),
    default=0.0,
    help="The hub is DEGRADED if a group has an unsettled message of this age.  [default: any age]",
)
@click.option(
    "--unhealthy-oldest",
    type=Duration(),
    default=0.0,
    help="The hub is UNHEALTHY if a group has an unsettled message of this age.  [default: any age]",
)
@click.option(
    "--max-events-bytes",
    type=Size(),
    help="Remove the oldest delivery events above this size; 0: keep.  [default: 1GiB]",
)
@click.option("--quota", type=Size(), default=0, help="Refuse publishes above this size.  [default: the disk's]")
@click.option(
    "--drain", type=Duration(), default=5.0, show_default="5s", help="When stopping, how long to wait for acks."
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"], case_sensitive=False),
    default="text",
    show_default=True,
    help="Format of the lines on stderr.",
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    default=None,
    help="Write lines of this level and above.  [default: info; warning when on a terminal]",
)
@click.option("--allow-network-fs", is_flag=True, help="Accept a journal on a network file system. Can damage it.")
def hub(data: Path, log_format: str, log_level: str | None, **given: Any) -> int:
    """Run a hub over a journal directory.

    \b
    Examples:
      fabric hub
      fabric hub --data /var/lib/fabric --bind tcp://127.0.0.1:7171 --bind ipc:///run/fabric.sock
      fabric hub --bind tcp://0.0.0.0:7171
      fabric hub --max-age 7d --max-bytes 50GB
      fabric hub --log-format json 2>> hub.log

    Without keys the hub listens on loopback and Unix sockets only. With an address of a network it makes its keys and a
    file access.toml at the first start; then every TCP connection is encrypted and needs a key that the hub knows.

    SIGTERM, SIGHUP and Ctrl-C drain the hub: it refuses publishes, waits for outstanding acks, then ends with exit code
    0. A second signal ends it without waiting. If the journal cannot be written, the hub ends with exit code 70;
    everything that was confirmed is on disk.

    All options can be in a file, fabric.toml: 'fabric config init' prints one, 'fabric config show' tells what counts.
    """
    from fabric.hub import Hub
    from fabric.hub import log as hub_log
    from fabric.hub.router_socket import raise_descriptor_limit
    from fabric.hub.serve import serve

    hub_log.set_up(log_format, log_level or ("warning" if sys.stderr.isatty() else "info"))
    _log_configuration()
    _check_binds(given["binds"])
    raise_descriptor_limit()
    begun = time.monotonic()
    running = Hub(data, _options(**given)._replace(has_socket=True))
    if log_format == "text":
        _banner(running, data, time.monotonic() - begun)
    return serve(running)


def _options(
    *,
    binds: tuple[str, ...],
    access: Path | None,
    advertise: str,
    max_age: float,
    max_bytes: int,
    max_messages: int,
    degraded_oldest: float,
    unhealthy_oldest: float,
    max_events_bytes: int | None,
    quota: int,
    drain: float,
    allow_network_fs: bool,
) -> "HubOptions":
    from fabric.hub import HubOptions
    from fabric.journal.journal import Limits

    limits = Limits(quota_bytes=quota, max_age_s=max_age, max_bytes=max_bytes, max_messages=max_messages)
    if max_events_bytes is not None:
        limits = limits._replace(events_bytes=max_events_bytes)
    options = HubOptions(binds=binds, limits=limits, drain_s=drain, allow_network_fs=allow_network_fs)
    thresholds = options.thresholds._replace(oldest_s=(degraded_oldest, unhealthy_oldest))
    return options._replace(thresholds=thresholds, access=access, advertise=advertise)


def _log_configuration() -> None:
    from fabric.hub import log as hub_log

    read = configuration(click.get_current_context())
    for warning in read.warnings:
        hub_log.event(logging.WARNING, "configuration warning", warning=warning)
    files = ", ".join(str(path.absolute()) for path in read.files)
    hub_log.event(logging.INFO, "configuration read", files=files or "none")
    for note in read.notes:
        hub_log.event(logging.INFO, "configuration note", note=note)


def _check_binds(binds: tuple[str, ...]) -> None:
    """A wrong address is wrong usage, so that a service manager does not start the hub again and again."""
    from fabric.hub.addresses import mistakes

    origin = configuration(click.get_current_context()).origins.get("binds", "--bind")
    for error in mistakes(binds):
        raise ConfigError([f"{origin}: {error}"], error.hint)


def _banner(running: "Hub", data: Path, recovery_s: float) -> None:
    stats = running.journal.stats()
    place = f"{data} (LMDB, {shown_bytes(stats.data_bytes)}, seq {stats.last_seq:,})"
    click.echo(f" fabric {__version__}   journal {place}   opened in {shown_seconds(recovery_s)}", err=True)
    access = running.access
    for url in running.binds:
        shown = f"{url} (CURVE)" if access is not None and url.startswith("tcp://") else url
        click.echo(f"   zmq      {shown}", err=True)
    for path in configuration(click.get_current_context()).files:
        click.echo(f"   config   {path.absolute()}", err=True)
    if access is None:
        click.echo("   access   programs of this machine, without keys", err=True)
    else:
        _access_banner(access, data)
    click.echo(" ready. Ctrl-C to stop.", err=True)


def _access_banner(access: "HubAccess", data: Path) -> None:
    book = access.book
    if access.admin_bind:
        click.echo(f"   admin    {access.admin_bind}", err=True)
    count = len(book.roles())
    click.echo(f"   access   {book.path}: {count} principal{'' if count == 1 else 's'}", err=True)
    click.echo(f"   key      {book.hub_key}{' (new)' if book.is_new else ''}", err=True)
    if book.problem:
        click.echo(f"   problem  {book.problem}", err=True)
    if not count:
        place = "" if data == DATA else f" --data {shlex.quote(str(data))}"
        click.echo(f"   next     let a client join: fabric keys invite NAME --role client{place}", err=True)
