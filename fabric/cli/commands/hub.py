"""`fabric hub`: options become HubOptions, and the hub runs in this process until a signal drains it."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fabric import __version__
from fabric.cli.support.values import Duration, Size, Text, shown_bytes, shown_seconds

if TYPE_CHECKING:
    from fabric.hub import Hub

LEVELS = ("debug", "info", "warning", "error")


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("fabric-data"),
    show_default=True,
    envvar="FABRIC_DATA",
    help="Directory of the journal; made when it is not there.",
)
@click.option(
    "--bind",
    "binds",
    type=Text(),
    multiple=True,
    metavar="URL",
    default=["tcp://127.0.0.1:7171"],
    show_default=True,
    help="Where to listen: tcp://127.0.0.1:PORT (* for any free port), ipc://PATH. May be given several times.",
)
@click.option("--max-age", type=Duration(), default=0.0, help="Remove messages older than this.  [default: keep]")
@click.option("--max-bytes", type=Size(), default=0, help="Remove the oldest above this much data.  [default: keep]")
@click.option(
    "--max-messages", type=click.IntRange(min=0), default=0, help="Remove the oldest above this many.  [default: keep]"
)
@click.option("--quota", type=Size(), default=0, help="Refuse publishes above this much data.  [default: the disk's]")
@click.option("--drain", type=Duration(), default=5.0, show_default="5s", help="When stopping, wait so long for acks.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--log-level", type=click.Choice(LEVELS), default=None, help="[default: info; warning when on a terminal]"
)
@click.option("--allow-network-fs", is_flag=True, help="Accept a journal on a network file system. Can damage it.")
def hub(
    data: Path,
    binds: tuple[str, ...],
    max_age: float,
    max_bytes: int,
    max_messages: int,
    quota: int,
    drain: float,
    log_format: str,
    log_level: str | None,
    allow_network_fs: bool,
) -> int:
    """Run a hub over a journal directory.

    \b
    Examples:
      fabric hub
      fabric hub --data /var/lib/fabric --bind tcp://127.0.0.1:7171 --bind ipc:///run/fabric.sock
      fabric hub --max-age 7d --max-bytes 50GB
      fabric hub --log-format json 2>> hub.log

    SIGTERM and Ctrl-C drain it: no more publishes are taken, outstanding acks are waited for, then it ends with exit
    code 0. A second signal does not wait. When the journal cannot be written any more it ends with exit code 70, and
    nothing was confirmed that is not on disk.
    """
    from fabric.hub import Hub, HubOptions
    from fabric.hub import log as hub_log
    from fabric.hub.router_socket import raise_descriptor_limit
    from fabric.hub.serve import serve
    from fabric.journal.journal import Limits

    hub_log.set_up(log_format, log_level or ("warning" if sys.stderr.isatty() else "info"))
    raise_descriptor_limit()
    limits = Limits(quota_bytes=quota, max_age_s=max_age, max_bytes=max_bytes, max_messages=max_messages)
    options = HubOptions(binds=binds, limits=limits, drain_s=drain, allow_network_fs=allow_network_fs)
    begun = time.monotonic()
    running = Hub(data, options)
    if log_format == "text":
        _banner(running, data, time.monotonic() - begun)
    return serve(running)


def _banner(running: "Hub", data: Path, recovery_s: float) -> None:
    stats = running.journal.stats()
    place = f"{data} (LMDB, {shown_bytes(stats.data_bytes)}, seq {stats.last_seq:,})"
    click.echo(f" fabric {__version__}   journal {place}   opened in {shown_seconds(recovery_s)}", err=True)
    for url in running.binds:
        click.echo(f"   zmq      {url}", err=True)
    click.echo("   access   this machine only, no authentication", err=True)
    click.echo(" ready. Ctrl-C to stop.", err=True)
