"""`fabric snapshot …`: copies of a journal for analysis, as immutable files that later snapshots share.

Data goes to stdout, as a table for people and as JSON for programs; progress and errors go to stderr. The modules of
snapshots are imported inside the commands, so that completion does not wait for LMDB.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from fabric.cli import EXIT_CONFLICT, EXIT_NOT_FOUND
from fabric.cli.support.noun import Noun
from fabric.cli.support.progress import no_progress_option, shown
from fabric.cli.support.tables import (
    Column,
    Failed,
    ago,
    confirm,
    output_options,
    plural,
    print_table,
    say,
    show_fields,
    show_rows,
    usage,
    yes_option,
)
from fabric.cli.support.values import Duration, Size, shown_bytes
from fabric.errors import SnapshotDamaged
from fabric_protocol.errors import FabricError

if TYPE_CHECKING:
    from fabric.snapshot import Made, Manifest, Report

_FINDINGS_SHOWN: Final = 20

_FOLDER: Final = click.Path(file_okay=False, path_type=Path)


@click.group("snapshot", cls=Noun, short_help="copies of a journal for analysis")
def snapshot() -> None:
    """Create, list, verify, push and remove snapshots of a journal.

    \b
    Examples:
      fabric snapshot create /snapshots --data /var/lib/fabric --keep 7
      fabric snapshot list /snapshots
      fabric snapshot verify /snapshots
      fabric snapshot push /snapshots s3://bucket/snapshots
    """


@snapshot.command("create")
@click.argument("folder", type=_FOLDER)
@click.option(
    "--data",
    type=_FOLDER,
    envvar="FABRIC_DATA",
    show_default="fabric-data",
    help="Directory of the journal; the hub may run.",
)
@click.option("--url", metavar="URL", help="Use the journal of the hub at this address, on this machine.")
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Then remove all snapshots but the N newest.")
@click.option("--full", is_flag=True, help="Copy all messages, and share no files with earlier snapshots.")
@click.option(
    "--rate",
    type=Size(),
    default="150MB",  # a busy hub on the same disk then keeps most of its speed
    show_default=True,
    help="Most bytes to read per second; 0: no limit.",
)
@click.option("--shard-size", type=Size(), default="128MiB", show_default=True, help="Size of a shard.")
@click.option(
    "--connect-timeout", type=Duration(), default=3.0, show_default="3s", help="How long to wait for the hub of --url."
)
@no_progress_option
@output_options
def create_command(
    folder: Path,
    data: Path | None,
    url: str | None,
    keep: int | None,
    full: bool,
    rate: int,
    shard_size: int,
    connect_timeout: float,
    no_progress: bool,
    as_json: bool,
) -> None:
    """Add a snapshot of a journal to FOLDER. The hub may run.

    Files of earlier snapshots in FOLDER are linked, not copied. So only messages since the last snapshot are copied.

    \b
    Examples:
      fabric snapshot create /snapshots
      fabric snapshot create /snapshots --data /var/lib/fabric --keep 7
      fabric snapshot create /snapshots --url tcp://127.0.0.1:7171 --rate 50MB
    """
    from fabric.snapshot import Pace, create_in
    from fabric.snapshot.folder import claim, remove, superseded

    journal = _journal_of(data, url, connect_timeout)
    begun_s = time.monotonic()
    with _expected(), shown("copying", "messages", no_progress) as progress:
        made = create_in(journal, folder, pace=Pace(shard_size, rate), full=full, progress=progress)
        removed: list[str] = []
        if keep is not None:
            with claim(folder):
                for path in superseded(folder, keep, made.manifest.journal):
                    remove(path)
                    removed.append(path.name)
    _tell_made(made, time.monotonic() - begun_s, removed, as_json)
    lost = sum(last - first + 1 for shard in made.manifest.shards for first, last in shard.lost)
    if lost:
        raise SnapshotDamaged(
            f"the journal in {journal} is damaged, and so is the snapshot: {plural(lost, 'message')} lost",
            f"see them with 'fabric snapshot verify {made.path}'",
        )


@snapshot.command("list")
@click.argument("folder", type=_FOLDER)
@output_options
def list_command(folder: Path, as_json: bool) -> None:
    """List the snapshots in FOLDER, the oldest first.

    \b
    Examples:
      fabric snapshot list /snapshots
      fabric snapshot list /snapshots --json | jq -r '.snapshots[-1].path'
    """
    from fabric.snapshot import load
    from fabric.snapshot.folder import scan

    if not folder.is_dir():
        raise Failed(f"there is no folder {folder}", "check the path", EXIT_NOT_FOUND)
    rows: list[dict[str, Any]] = []
    for path in scan(folder):
        try:
            rows.append({"name": path.name, **_figures(path, load(path)), "problem": ""})
        except FabricError as error:
            rows.append({"name": path.name, "path": str(path), "problem": str(error)})
    rows.sort(key=lambda row: (row.get("created_us", 0), row["name"]))
    show_rows("fabric.snapshot.list.v1", "snapshots", rows, _LISTED, as_json, f"there are no snapshots in {folder}")


@snapshot.command("verify")
@click.argument("path", type=_FOLDER)
@click.option("--quick", is_flag=True, help="Check the heads of blocks only, not payloads and sha256.")
@click.option("--all", "every", is_flag=True, help="Verify all snapshots in the folder PATH, not only the newest.")
@no_progress_option
@output_options
def verify_command(path: Path, quick: bool, every: bool, no_progress: bool, as_json: bool) -> None:
    """Verify a snapshot, or the newest snapshot in a folder: manifest, checksums, gaps, order.

    Exit code 9: the snapshot is damaged.

    \b
    Examples:
      fabric snapshot verify /snapshots
      fabric snapshot verify /snapshots/20261116T020000.000Z-1234 --quick
      fabric snapshot verify /snapshots --all --json
    """
    from fabric.snapshot import verify
    from fabric.snapshot.folder import scan

    paths = (scan(path) or [path]) if every else [path]
    failed: list[str] = []
    for one in paths:
        begun_s = time.monotonic()
        with _expected(), shown("checking", "messages", no_progress) as progress:
            report = verify(one, progress, quick=quick)
        _tell_report(report, time.monotonic() - begun_s, as_json)
        if report.findings:
            failed.append(f"{report.path} ({plural(len(report.findings), 'finding')})")
    if failed:
        raise SnapshotDamaged(
            f"damaged: {', '.join(failed)}",
            "use another snapshot; take a new snapshot with 'fabric snapshot create --full'",
        )


@snapshot.command("rm")
@click.argument("paths", nargs=-1, required=True, type=_FOLDER)
@yes_option
@output_options
def rm_command(paths: tuple[Path, ...], yes: bool, as_json: bool) -> None:
    """Remove snapshots. Other snapshots keep the files that they share. A folder that is no snapshot is refused.

    \b
    Examples:
      fabric snapshot rm /snapshots/20261116T020000.000Z-1234
      fabric snapshot rm /snapshots/202610* --yes
    """
    from fabric.snapshot.folder import claim, remove, require_removable

    with _expected():
        for path in paths:
            require_removable(path)
        confirm(f"remove {plural(len(paths), 'snapshot')}", yes)
        for path in paths:
            with claim(path.absolute().parent):
                remove(path)
    said = "\n".join(f"{path}: removed" for path in paths)
    say("fabric.snapshot.rm.v1", {"removed": [str(path) for path in paths]}, said, as_json)


@snapshot.command("push")
@click.argument("path", type=_FOLDER)
@click.argument("destination")
@no_progress_option
@output_options
def push_command(path: Path, destination: str, no_progress: bool, as_json: bool) -> None:
    """Copy a snapshot, or the newest snapshot in a folder, to another folder or URL. Present files are not sent again.

    URLs other than file:// need fsspec, and the package for the kind of URL, such as s3fs or gcsfs.

    \b
    Examples:
      fabric snapshot push /snapshots /mnt/other/snapshots
      fabric snapshot push /snapshots s3://bucket/snapshots
      fabric snapshot push /snapshots/20261116T020000.000Z-1234 sftp://host/snapshots
    """
    from fabric.snapshot import push

    with _expected(), shown("sending", "bytes", no_progress) as progress:
        done = push(path, destination, progress)
    sentence = (
        f"{done.target}: {plural(done.files, 'shard')}, {done.sent} sent ({shown_bytes(done.sent_bytes)}), "
        f"{done.copied} copied from snapshots there, {done.skipped} already there"
    )
    say("fabric.snapshot.push.v1", done._asdict(), sentence, as_json)


# Conditions and output.

_LISTED: Final = [
    Column("SNAPSHOT", "name", folds=True),
    Column("CREATED", "created_us", ago),
    Column("FIRST SEQ", "first_seq"),
    Column("LAST SEQ", "last_seq"),
    Column("MESSAGES", "messages", rank=1),
    Column("SIZE", "bytes", shown_bytes),
    Column("SHARDS", "shards"),
    Column("PROBLEM", "problem", folds=True, usual="", rank=1),
]
_MADE: Final = [
    Column("snapshot", "path"),
    Column("seqs", "seqs"),
    Column("messages", "messages"),
    Column("size", "bytes", shown_bytes),
    Column("written", "written_bytes", shown_bytes),
    Column("shards", "shards"),
    Column("of them reused", "reused"),
    Column("events", "events"),
    Column("groups", "groups"),
    Column("lost messages", "lost"),
    Column("removed", "removed"),
    Column("seconds", "seconds"),
]
_VERIFIED: Final = [
    Column("snapshot", "path"),
    Column("seqs", "seqs"),
    Column("messages", "messages"),
    Column("size", "bytes", shown_bytes),
    Column("shards", "shards"),
    Column("events", "events"),
    Column("findings", "count"),
    Column("seconds", "seconds"),
]
_FOUND: Final = [
    Column("FILE", "file", folds=True),
    Column("FIRST SEQ", "first_seq"),
    Column("LAST SEQ", "last_seq"),
    Column("WHY", "why", folds=True, rank=0),
]


def _journal_of(data: Path | None, url: str | None, timeout_s: float) -> Path:
    """The directory that --data names, or that the hub of --url tells."""
    from fabric.journal.directory import has_data

    source = click.get_current_context().get_parameter_source
    if source("data") is ParameterSource.COMMANDLINE and url is not None:
        if source("url") is ParameterSource.COMMANDLINE:
            usage("give --data or --url, not both")
        url = None  # it is from the environment, and the command line goes first
    journal = (data or Path("fabric-data")) if url is None else _ask_hub(url, timeout_s)
    if not has_data(journal):
        raise Failed(
            f"there is no journal in {journal}", "give its directory with --data or FABRIC_DATA", EXIT_NOT_FOUND
        )
    return journal


def _ask_hub(url: str, timeout_s: float) -> Path:
    """The directory of the journal of a running hub on this machine."""
    from contextlib import closing

    from fabric.cli.support.connect import connect
    from fabric.journal.directory import has_data
    from fabric.snapshot.journal_view import Source

    with connect(url, timeout_s) as fab:
        about = fab.info("hub")
    if not about.get("path"):
        usage(f"the hub at {url} does not tell the directory of its journal; give it with --data")
    path = Path(about["path"])
    if has_data(path):
        with closing(Source(path)) as source:
            if source.meta().uuid.hex() == about["journal"]:
                return path
    raise Failed(
        f"the journal of the hub at {url} is in {path}, and that is not on this machine",
        "take the snapshot on the machine of the hub",
        EXIT_NOT_FOUND,
    )


def _figures(path: Path, manifest: "Manifest") -> dict[str, Any]:
    return {
        "path": str(path),
        "journal": manifest.journal,
        "epoch": manifest.epoch,
        "created_us": manifest.created_us,
        "first_seq": manifest.first_seq,
        "last_seq": manifest.last_seq,
        "messages": manifest.messages,
        "bytes": manifest.bytes,
        "shards": len(manifest.shards),
        "events": sum(shard.rows for shard in manifest.events),
        "groups": len(manifest.groups),
        "lost": sum(last - first + 1 for shard in manifest.shards for first, last in shard.lost),
    }


def _tell_made(made: "Made", took_s: float, removed: Sequence[str], as_json: bool) -> None:
    fields = {
        **_figures(made.path, made.manifest),
        "reused": made.reused,
        "written_bytes": made.written_bytes,
        "removed": list(removed),
        "seconds": round(took_s, 3),
    }
    if not as_json:
        fields["seqs"] = f"{made.manifest.first_seq}..{made.manifest.last_seq}"
    show_fields("fabric.snapshot.create.v1", fields, _MADE, as_json)


def _tell_report(report: "Report", took_s: float, as_json: bool) -> None:
    findings = [finding._asdict() for finding in report.findings]
    fields = {**report._asdict(), "findings": findings, "seconds": round(took_s, 3)}
    if as_json:
        show_fields("fabric.snapshot.verify.v1", fields, _VERIFIED, as_json)
        return
    seqs = f"{report.first_seq}..{report.last_seq}"
    show_fields("", {**fields, "seqs": seqs, "count": len(findings)}, _VERIFIED, as_json)
    if findings:
        print_table(findings[:_FINDINGS_SHOWN], _FOUND)
    if len(findings) > _FINDINGS_SHOWN:
        click.echo(f"and {len(findings) - _FINDINGS_SHOWN} more; see all with --json")


@contextmanager
def _expected() -> Iterator[None]:
    """Turn errors of snapshots into errors with exit codes."""
    from fabric.snapshot import Busy, NotASnapshot

    try:
        yield
    except NotASnapshot as error:
        raise Failed(str(error), error.hint, EXIT_NOT_FOUND) from error
    except Busy as error:
        raise Failed(str(error), error.hint, EXIT_CONFLICT) from error
