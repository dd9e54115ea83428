"""`fabric spark …`: Spark jobs on snapshots. PySpark and Java are needed only when a job runs."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from fabric.cli import EXIT_DAMAGED, EXIT_NOT_FOUND
from fabric.cli.support.noun import Noun
from fabric.cli.support.tables import Column, Failed, output_options, show_rows
from fabric.cli.support.values import Text
from fabric_protocol.errors import FabricError

if TYPE_CHECKING:
    from fabric_spark.jobs.answer import Answer
    from fabric_spark.jobs.base import Job

_INSTALL = (
    "pip install 'fabricmq[spark]' uses the Java of this machine (17 or 21);"
    " pip install 'fabricmq[spark-java]' brings its own"
)


@click.group("spark", cls=Noun, short_help="jobs on snapshots")
def spark() -> None:
    """Spark jobs on snapshots of journals: statistics, latency, lag, Parquet, replay.

    \b
    Examples:
      fabric spark jobs
      fabric spark run topic-stats --snapshot ./snapshots/monday
      fabric spark run lag-history --snapshot ./snapshots/monday --html lag.html
    """


@spark.command("jobs")
@click.argument("name", required=False)
@output_options
def jobs_command(name: str | None, as_json: bool) -> None:
    """List the jobs, or the parameters of a job.

    \b
    Examples:
      fabric spark jobs
      fabric spark jobs latency
    """
    registry = _jobs_package().registry
    if name is None:
        rows = [{"job": job.name, "about": job.about} for job in registry.jobs()]
        columns = (Column("JOB", "job"), Column("WHAT IT TELLS", "about", folds=True, rank=0))
        show_rows("fabric.spark.jobs.v1", "jobs", rows, columns, as_json, "there are none")
        return
    job = _find(name)
    rows = [{"parameter": p.name, "default": _shown_default(p.default), "help": p.help} for p in job.parameters]
    shown = (
        Column("PARAMETER", "parameter"),
        Column("DEFAULT", "default"),
        Column("MEANING", "help", folds=True, rank=0),
    )
    show_rows("fabric.spark.job.v1", "parameters", rows, shown, as_json, "it has none", job=job.name, about=job.about)


@spark.command("run")
@click.argument("job")
@click.option(
    "--snapshot", envvar="FABRIC_SNAPSHOT", help="A snapshot, or a live journal on this machine; several with commas."
)
@click.option(
    "-p", "--param", type=Text(), multiple=True, metavar="NAME=VALUE", help="A parameter of the job; repeatable."
)
@click.option("--out", help="Write the tables into this folder. For lake: the folder of the lake.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "json", "csv"]),
    default="parquet",
    show_default=True,
    help="Format of --out.",
)
@click.option("--html", type=click.Path(dir_okay=False), help="Write a report with charts into this file.")
@click.option("--master", help="The Spark master.  [default: all cores of this machine]")
@click.option("--conf", type=Text(), multiple=True, metavar="NAME=VALUE", help="A setting of Spark; repeatable.")
@output_options
def run_command(
    job: str,
    snapshot: str | None,
    param: tuple[str, ...],
    out: str | None,
    form: str,
    html: str | None,
    master: str | None,
    conf: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run a job and print its tables. 'fabric spark jobs' lists the jobs and their parameters.

    Exit code 9: the job 'verify' has found damage.

    \b
    Examples:
      fabric spark run topic-stats --snapshot ./snap -p topics='orders.#' -p bucket=1m
      fabric spark run latency --snapshot ./snap --html latency.html --json
      fabric spark run lake --snapshot ./snap --out ./lake
      fabric spark run replay --snapshot ./snap -p where="key = 'a'" -p dry_run=true
    """
    if html and not Path(html).absolute().parent.is_dir():
        raise click.UsageError(f"there is no folder {Path(html).absolute().parent} for --html")
    package = _jobs_package()
    with _hints_apart():
        chosen = _find(job)
        settings = package.base.settings_for(chosen, _parameters(chosen, param, snapshot, out))
        answer = _answer(chosen, settings, master, _pairs("--conf", conf), "" if job == "lake" else out or "", form)
    if html:
        package.answer.write_file(html, package.report.page(answer))
        click.echo(f"report: {html}", err=True)
    click.echo(package.answer.write_json(answer) if as_json else package.answer.text(answer), nl=as_json)
    if job == "verify" and answer.tables["findings"].rows:
        raise Failed("the snapshot is damaged", "take a new snapshot with 'fabric snapshot create'", EXIT_DAMAGED)


def _answer(
    job: "Job", settings: dict[str, Any], master: str | None, conf: dict[str, str], out: str, form: str
) -> "Answer":
    from fabric_spark.jobs.answer import ask
    from fabric_spark.session import session

    with _quiet_spark():
        started = session(
            f"fabric {job.name}", master, {"spark.ui.enabled": "false", "spark.log.level": "ERROR", **conf}
        )
        try:
            return ask(started, job, settings, out, form)
        finally:
            started.stop()


@contextmanager
def _quiet_spark() -> Iterator[None]:
    """Hide the log of Java and Spark; FABRIC_DEBUG=1 shows it.

    Their processes inherit stderr, so it is a file while they start and run. Lines of our own data source are printed
    afterwards.
    """
    if os.environ.get("FABRIC_DEBUG", "") not in ("", "0"):
        yield
        return
    if sys.stderr.isatty():
        click.echo("starting Spark …", err=True)
    sys.stderr.flush()
    with tempfile.TemporaryFile() as log:
        terminal = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            log.seek(0)
            for line in log.read().decode(errors="replace").splitlines():
                if line.startswith("fabric: "):
                    click.echo(line, err=True)


def _parameters(job: "Job", param: tuple[str, ...], snapshot: str | None, out: str | None) -> dict[str, str]:
    values = {name.replace("-", "_"): value for name, value in _pairs("-p", param).items()}
    if snapshot:
        values["snapshot"] = snapshot
    if job.name == "lake" and out:
        values["out"] = out
    return values


def _pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark or not name.strip():
            raise click.UsageError(f"{option} takes NAME=VALUE, not {text!r}")
        pairs[name.strip()] = value
    return pairs


@contextmanager
def _hints_apart() -> Iterator[None]:
    """Separate the hint from the text of an error: Spark prints only the text, the command line prints both."""
    from fabric_spark.errors import SourceError

    try:
        yield
    except SourceError as error:
        raise FabricError(str(error.args[0]), error.hint) from error


def _jobs_package() -> Any:
    """The package of jobs. Without PySpark, raises an error with the command that installs it."""
    try:
        from fabric_spark import jobs
        from fabric_spark.jobs import answer, base, registry, report  # noqa: F401 - parts of it
    except ImportError as error:
        _no_spark(error)
    return jobs


def _find(name: str) -> "Job":
    from fabric_spark.errors import SourceError

    try:
        job: Job = _jobs_package().registry.find(name)
    except SourceError as error:
        raise Failed(str(error.args[0]), error.hint, EXIT_NOT_FOUND) from error
    return job


def _no_spark(error: ImportError) -> NoReturn:
    missing = error.name or str(error)
    raise Failed(
        f"this needs {missing.partition('.')[0]}, which is not installed in {sys.prefix}", _INSTALL, 1
    ) from error


def _shown_default(value: object) -> str:
    return "" if value in (None, "", 0) else str(value).lower() if isinstance(value, bool) else str(value)
