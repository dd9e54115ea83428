"""`fabric journal …`: shows, verifies, copies and replaces a journal.

Data goes to stdout, as a table for people and as JSON for programs; progress and errors go to stderr. The modules of
the journal are imported inside the commands, so that completion does not wait for LMDB.
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


@click.group("journal", cls=Noun, short_help="show, verify, copy and replace a journal")
def journal() -> None:
    """Show, verify, copy and replace a journal.

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
    """Show the size and the contents of a journal. The hub may run.

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
    """Verify all checksums, and that all rows fit together. The hub may run.

    Exit code 9: the journal is damaged.

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
    """Copy a journal to the new directory TARGET, and verify the copy. The hub may run.

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
@click.option("--yes", is_flag=True, help="Replace an existing journal without asking.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, and change nothing.")
@click.option("--accept-damage", is_flag=True, help="Restore the undamaged blocks of a damaged backup.")
def restore_command(
    source: Path,
    data: Path,
    as_json: bool,
    no_progress: bool,
    yes: bool,
    dry_run: bool,
    accept_damage: bool,
) -> None:
    """Replace a stopped journal by the verified backup SOURCE, in a new epoch.

    The replaced journal is kept as data.mdb.replaced.

    \b
    Examples:
      fabric journal restore /backups/monday --dry-run
      fabric journal restore /backups/monday --data /var/lib/fabric --yes
    """
    from fabric.journal.directory import has_data
    from fabric.journal.tools.backup import restore

    _require_journal(source, "SOURCE is a directory made by 'fabric journal backup'")
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
    """Make the file of a stopped journal smaller: free pages go back to the disk.

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


# Conditions and output.


def _require_journal(path: Path, hint: str = "give its directory with --data or FABRIC_DATA") -> None:
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
