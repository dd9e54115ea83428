"""`fabric journal …`: look at a journal, check it, copy it, replace it.

Data goes to stdout, as a table for people and as JSON for programs; progress and errors go to stderr. The journal's
modules are imported inside the commands, so that `fabric --help` does not wait for LMDB.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fabric.cli import EXIT_CONFLICT, EXIT_NOT_FOUND
from fabric.cli.support.noun import Noun
from fabric.cli.support.progress import no_progress_option, shown
from fabric.cli.support.tables import Column, Failed, output_options, show_fields
from fabric.errors import JournalDamaged

if TYPE_CHECKING:
    from fabric.journal.tools.verify import Report

_FINDINGS_SHOWN: Final = 20


_data = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("fabric-data"),
    show_default=True,
    envvar="FABRIC_DATA",
    help="Directory of the journal.",
)


@click.group("journal", cls=Noun, short_help="look at, check, copy and replace a journal")
def journal() -> None:
    """Look at a journal, check it, copy it, replace it.

    \b
    Examples:
      fabric journal stats
      fabric journal verify --json
      fabric journal backup /backups/monday
      fabric journal restore /backups/monday --yes
    """


@journal.command("stats")
@_data
@output_options
def stats_command(data: Path, as_json: bool) -> None:
    """Show what a journal holds. Works while the hub runs.

    \b
    Examples:
      fabric journal stats
      fabric journal stats --data /var/lib/fabric --json | jq .messages
    """
    from contextlib import closing

    from fabric.journal.environment import lmdb_errors, open_environment, open_tables
    from fabric.journal.tools.stats import collect

    _require_journal(data)
    with closing(open_environment(data, readonly=True)) as environment, lmdb_errors(f"cannot read {data}"):
        figures = collect(data, environment, open_tables(environment))
    _show("fabric.journal.stats.v1", figures._asdict(), as_json)


@journal.command("verify")
@_data
@output_options
@no_progress_option
def verify_command(data: Path, as_json: bool, no_progress: bool) -> None:
    """Check every checksum and whether all rows fit together. Works while the hub runs.

    Exit code 9 when something is damaged.

    \b
    Examples:
      fabric journal verify
      fabric journal verify --data /backups/monday --json
    """
    from fabric.journal.tools.verify import verify_in_child

    _require_journal(data)
    with shown("checking", "messages", no_progress) as progress:
        report = verify_in_child(data, progress=progress)
    _show("fabric.journal.verify.v1", _report_fields(report), as_json)
    _require_no_findings(report, f"the journal in {data} is damaged")


@journal.command("backup")
@click.argument("target", type=click.Path(path_type=Path))
@_data
@output_options
@no_progress_option
def backup_command(target: Path, data: Path, as_json: bool, no_progress: bool) -> None:
    """Copy a journal to the new directory TARGET and check the copy. Works while the hub runs.

    \b
    Examples:
      fabric journal backup /backups/$(date +%F)
      fabric journal backup ./copy --data /var/lib/fabric
    """
    from fabric.journal.tools.backup import backup

    _require_journal(data)
    _require_absent(target, "choose a new directory for each backup")
    with shown("copying", "messages", no_progress) as progress:
        report = backup(data, target, progress)
    _show("fabric.journal.backup.v1", {"target": str(target), **_report_fields(report)}, as_json)
    _require_no_findings(report, f"the journal in {data} is damaged, and so is its backup")


@journal.command("restore")
@click.argument("source", type=click.Path(path_type=Path))
@_data
@output_options
@no_progress_option
@click.option("--yes", is_flag=True, help="Replace the journal that is there, without asking.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--accept-damage", is_flag=True, help="Restore a backup with damaged blocks: the good ones are kept.")
def restore_command(
    source: Path,
    data: Path,
    as_json: bool,
    no_progress: bool,
    yes: bool,
    dry_run: bool,
    accept_damage: bool,
) -> None:
    """Put the backup SOURCE in place of a stopped journal, checked, and in a new epoch.

    The journal that was there is kept beside it as data.mdb.replaced.

    \b
    Examples:
      fabric journal restore /backups/monday --dry-run
      fabric journal restore /backups/monday --data /var/lib/fabric --yes
    """
    from fabric.journal.directory import has_data
    from fabric.journal.tools.backup import restore

    _require_journal(source, "SOURCE is a directory that 'fabric journal backup' has made")
    plan = f"restore {source} to {data}" + (", replacing the journal there" if has_data(data) else "")
    if dry_run:
        click.echo(f"would {plan}")
        return
    if has_data(data) and not yes:
        if not sys.stdin.isatty():
            raise Failed(f"there is a journal in {data} already", "confirm with --yes", EXIT_CONFLICT)
        click.confirm(f"{plan}?", abort=True, err=True)
    with shown("checking", "messages", no_progress) as progress:
        done = restore(source, data, replace=True, accept_damage=accept_damage, progress=progress)
    fields = {"epoch": done.epoch, "replaced": str(done.replaced) if done.replaced else None}
    _show("fabric.journal.restore.v1", {**fields, **_report_fields(done.report)}, as_json)


@journal.command("compact")
@_data
@output_options
@no_progress_option
def compact_command(data: Path, as_json: bool, no_progress: bool) -> None:
    """Give the free space in a stopped journal's file back to the disk.

    \b
    Examples:
      fabric journal compact
      fabric journal compact --data /var/lib/fabric
    """
    from fabric.journal.tools.backup import compact

    _require_journal(data)
    with shown("checking", "messages", no_progress) as progress:
        done = compact(data, progress)
    fields = {"before_bytes": done.before_bytes, "after_bytes": done.after_bytes}
    _show("fabric.journal.compact.v1", {**fields, **_report_fields(done.report)}, as_json)


# Asking and telling.


def _require_journal(path: Path, hint: str = "name its directory, as --data or FABRIC_DATA") -> None:
    from fabric.journal.directory import has_data

    if not has_data(path):
        raise Failed(f"there is no journal in {path}", hint, EXIT_NOT_FOUND)


def _require_absent(path: Path, hint: str) -> None:
    from fabric.journal.directory import has_data

    if has_data(path):
        raise Failed(f"there is a journal in {path} already", hint, EXIT_CONFLICT)


def _require_no_findings(report: "Report", text: str) -> None:
    if report.findings:
        lost = sum(f.last_seq - f.first_seq + 1 for f in report.findings if f.table == "blocks")
        raise JournalDamaged(
            f"{text}: {len(report.findings)} findings, {lost} messages lost",
            "restore a backup with 'fabric journal restore', or go on without the damaged messages",
        )


def _report_fields(report: "Report") -> dict[str, Any]:
    return {**report._asdict(), "findings": [finding._asdict() for finding in report.findings]}


def _show(schema: str, fields: Mapping[str, Any], as_json: bool) -> None:
    figures = {name: value for name, value in fields.items() if not isinstance(value, list)}
    show_fields(schema, fields if as_json else figures, [Column(name, name) for name in figures], as_json)
    findings = fields.get("findings", [])
    if as_json or not findings:
        return
    for finding in findings[:_FINDINGS_SHOWN]:
        place = f" {finding['first_seq']}..{finding['last_seq']}" if finding["last_seq"] else ""
        click.echo(f"{finding['table']}{place}: {finding['why']}")
    if len(findings) > _FINDINGS_SHOWN:
        click.echo(f"and {len(findings) - _FINDINGS_SHOWN} more; see all with --json")
