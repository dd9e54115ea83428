"""The list of jobs. The module of a job is imported when the job is used."""

import difflib
import importlib
from typing import Final

from fabric_spark.errors import SourceError
from fabric_spark.jobs.base import Job

# In the order in which a new user would try them.
MODULES: Final = {
    "topic-stats": "topic_stats",
    "latency": "latency",
    "lag-history": "lag_history",
    "redelivery": "redelivery",
    "dead-letters": "dead_letters",
    "lake": "lake",
    "verify": "verify",
    "replay": "replay",
    "dedupe-audit": "dedupe_audit",
    "sessions": "sessions",
}


def find(name: str) -> Job:
    """The job of a name."""
    if name not in MODULES:
        near = difflib.get_close_matches(name, MODULES, 1)
        raise SourceError(
            f"there is no job {name!r}", f"did you mean {near[0]}" if near else f"there are {', '.join(MODULES)}"
        )
    job = importlib.import_module(f"fabric_spark.jobs.{MODULES[name]}").JOB
    assert isinstance(job, Job)
    return job


def jobs() -> list[Job]:
    return [find(name) for name in MODULES]
