"""`python -m fabric_spark.jobs JOB --snapshot PATH …`: for spark-submit, and wherever there is no command `fabric`."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from fabric_protocol.errors import FabricError
from fabric_spark.errors import SourceError
from fabric_spark.jobs import answer as answers
from fabric_spark.jobs.base import Job, settings_for
from fabric_spark.jobs.registry import MODULES, find, jobs
from fabric_spark.jobs.report import page
from fabric_spark.session import session

EXIT_FAILED = 1
EXIT_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    if given["job"] is None:
        for job in jobs():
            print(f"{job.name:14}  {job.about}")
        return 0
    try:
        job = find(given["job"])
        return run(job, settings_for(job, parameters_of(job, given)), given)
    except FabricError as error:
        what = error.args[0] if isinstance(error, SourceError) else error
        print(f"error: {what}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return EXIT_FAILED


def run(job: Job, settings: dict[str, Any], given: dict[str, Any]) -> int:
    """Run a job and show its answer in the ways that the options name."""
    spark = session(f"fabric {job.name}", given.get("master"))
    spark.sparkContext.setLogLevel("ERROR")
    out = "" if job.name == "lake" else given.get("out") or ""
    answer = answers.ask(spark, job, settings, out, given.get("format") or "parquet")
    if given.get("html"):
        answers.write_file(given["html"], page(answer))
    print(
        answers.write_json(answer) if given.get("json") else answers.text(answer),
        end="" if not given.get("json") else "\n",
    )
    return EXIT_FAILED if is_bad(answer) else 0


def is_bad(answer: answers.Answer) -> bool:
    """True if the answer has findings; only `verify` has any."""
    return answer.job.name == "verify" and bool(answer.tables["findings"].rows)


def parameters_of(job: Job, given: dict[str, Any]) -> dict[str, Any]:
    """Parameters as -p NAME=VALUE has them, and the two that have an option of their own."""
    values: dict[str, Any] = {}
    for pair in given.get("param") or ():
        name, mark, value = pair.partition("=")
        if not mark:
            raise SourceError(f"-p {pair!r} has no '='", "write -p name=value")
        values[name.strip().replace("-", "_")] = value
    if given.get("snapshot"):
        values["snapshot"] = given["snapshot"]
    if job.name == "lake" and given.get("out"):
        values["out"] = given["out"]
    return values


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fabric_spark.jobs", description="Jobs on journals, by Spark.")
    parser.add_argument("job", nargs="?", choices=list(MODULES), help="without a job: the list of jobs")
    parser.add_argument("--snapshot", help="a snapshot or a journal directory; several separated by commas")
    parser.add_argument("--out", help="write the tables into this folder; for lake, the lake")
    parser.add_argument("--format", choices=("parquet", "json", "csv"), help="of --out; parquet unless told")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--html", help="write a report into this file")
    parser.add_argument("-p", "--param", action="append", metavar="NAME=VALUE", help="a parameter of the job")
    parser.add_argument("--master", help="of Spark; that of spark-submit, or all cores of this machine")
    return parser


if __name__ == "__main__":
    sys.exit(main())
