"""A job is a question about journals, with a name and parameters; its answer is a few tables.

`run(spark, settings)` gives DataFrames by name and does nothing else, so a job can be used from a notebook as well as
from the command line. How the tables are shown, drawn and written is the same for all jobs: `answer` and `report`.
"""

import difflib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from fabric.snapshot import snapshots
from fabric_spark import options as source
from fabric_spark.catalog import Place, places
from fabric_spark.errors import SourceError, explained

Settings = Mapping[str, Any]
Tables = dict[str, DataFrame]
PERCENTILES: Final = (0.5, 0.9, 0.99)
ACCURACY: Final = 1000  # of percentiles: wrong by at most a thousandth of the rows
BUCKETS_WANTED: Final = 240  # points of a line that is still readable
BUCKETS_MAX: Final = 20_000
_TRUTHS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_UNITS: Final = {"s": 1, "second": 1, "m": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86_400, "day": 86_400}
_SPAN: Final = re.compile(r"(\d+)\s*([a-z]+?)s?")
_STEPS: Final = (1, 5, 15, 60, 300, 900, 3600, 6 * 3600, 86_400)


class Parameter(NamedTuple):
    name: str
    help: str
    kind: str = "text"  # text, number, flag, span (a length of time, in seconds afterwards)
    default: Any = None
    choices: tuple[str, ...] = ()


class Chart(NamedTuple):
    """How a table is drawn: `y` against `x` (of bars, several columns with commas between), a colour for each value of
    `series` or for each of several y."""

    table: str
    kind: str  # bars, lines
    title: str
    x: str
    y: tuple[str, ...]
    series: str = ""
    unit: str = ""


class Job(NamedTuple):
    name: str
    title: str
    about: str
    run: Callable[[SparkSession, Settings], Tables]
    parameters: tuple[Parameter, ...] = ()
    charts: tuple[Chart, ...] = ()
    units: Mapping[str, str] = {}  # of columns, for the reader


SNAPSHOT: Final = Parameter("snapshot", "A snapshot or journal directory; several separated by commas.")
RANGE: Final = (
    Parameter("start_seq", "The first seq.", "number"),
    Parameter("end_seq", "The first seq that is not read.", "number"),
    Parameter("start_time", "Messages from this time on, as 2026-11-16T10:00:00Z."),
    Parameter("end_time", "Messages before this time."),
)
LOSS: Final = Parameter("fail_on_data_loss", "Stop at damaged or missing seqs; false leaves them out.", "flag", True)
TOPICS: Final = Parameter("topics", "Patterns of topics, separated by commas; '*' is a word, '#' is any number.")
BUCKET: Final = Parameter("bucket", "Length of a step of time, as '1 minute'; found by itself.", "span", 0)
COMMON: Final = (SNAPSHOT, *RANGE, LOSS)
_OPTIONS: Final = {
    "topics": "topics",
    "start_seq": "startSeq",
    "end_seq": "endSeq",
    "start_time": "startTime",
    "end_time": "endTime",
    "fail_on_data_loss": "failOnDataLoss",
}


# Parameters.


def settings_for(job: Job, given: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters of a job, from what was given as text and from their defaults."""
    known = {parameter.name: parameter for parameter in job.parameters}
    for name in given:
        if name.replace("-", "_") not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}" if near else f"it has {', '.join(known)}"
            raise SourceError(f"job {job.name} has no parameter {name!r}", hint)
    values = {name.replace("-", "_"): value for name, value in given.items() if value is not None}
    settings = {name: _value(p, values.get(name, p.default)) for name, p in known.items()}
    if "snapshot" in known and not settings["snapshot"]:
        raise SourceError(f"job {job.name} needs a snapshot", "name its folder, or the directory of a live journal")
    if "snapshot" in known:
        settings["snapshot"] = newest_of(str(settings["snapshot"]))
    return settings


def newest_of(text: str) -> str:
    """Paths as they were given, but for a folder of snapshots its newest, under the folder's name.

    A job may read more than once, and must read the same each time, also when another snapshot is taken meanwhile.
    """
    if text.lstrip()[:1] in ("[", "{"):
        return text
    paths: dict[str, str] = {}
    for path in filter(None, map(str.strip, text.split(","))):
        found = [] if "://" in path else snapshots(Path(path), check_files=False)
        if not found:
            return text
        paths[Path(path).resolve().name] = str(found[-1].path)
    return json.dumps(paths) if len(paths) == len(text.split(",")) else text


def _value(parameter: Parameter, value: Any) -> Any:
    if value is None:
        return None
    text = str(value).strip()
    if parameter.choices and text not in parameter.choices:
        raise SourceError(f"{parameter.name} is {text!r}", f"choose one of {', '.join(parameter.choices)}")
    match parameter.kind:
        case "number":
            if not text.isdigit():
                raise SourceError(f"{parameter.name} is {text!r}", "give a whole number")
            return int(text)
        case "flag":
            if text.lower() not in _TRUTHS:
                raise SourceError(f"{parameter.name} is {text!r}", "give true or false")
            return _TRUTHS[text.lower()]
        case "span":
            return span_seconds(parameter.name, text)
    return value


def span_seconds(name: str, text: str) -> int:
    """Seconds from a text such as '90', '15 minutes' or '6h'."""
    if text.isdigit():
        return int(text)
    found = _SPAN.fullmatch(text.lower())
    if found is None or found[2] not in _UNITS or not int(found[1]):
        raise SourceError(f"{name} is {text!r}", "write it like '30 seconds', '5m' or '1 hour'")
    return int(found[1]) * _UNITS[found[2]]


# Reading.


def read(spark: SparkSession, settings: Settings, stream: str, columns: str, **more: object) -> DataFrame:
    """A stream with only the columns that the job needs: other columns are not decoded."""
    reader = spark.read.format("fabric").option("stream", stream).option("columns", columns)
    for name, option in _OPTIONS.items():
        value = settings.get(name)
        if value is None or (stream != "journal" and name in ("topics", "start_seq", "end_seq")):
            continue
        reader = reader.option(option, str(value).lower() if isinstance(value, bool) else str(value))
    for option, value in more.items():
        reader = reader.option(option, str(value))
    return reader.load(settings["snapshot"])


def places_of(settings: Settings) -> list[Place]:
    """What the manifests of the snapshots say, without Spark."""
    with explained():
        return places(source.parse({"path": settings["snapshot"]}))


def hub_keys(settings: Settings) -> list[str]:
    """The column `hub`, when there are several."""
    return ["hub"] if source.parse({"path": settings["snapshot"]}).is_several else []


# Time.


def bucket_seconds(settings: Settings) -> int:
    """Seconds of a step: as given, or chosen for a readable number of steps."""
    if settings.get("bucket"):
        return int(settings["bucket"])
    found = places_of(settings)
    first = [shard.first_ts_us for place in found for shard in place.shards[:1]]
    last = [shard.last_ts_us for place in found for shard in place.shards[-1:]]
    seconds = (max(last) - min(first)) / 1e6 if first and last else 3600.0
    return next((step for step in _STEPS if seconds / step <= BUCKETS_WANTED), 7 * 86_400)


def bucket_of(ts: Column, seconds: int) -> Column:
    """The start of the step in which a time lies."""
    micros = seconds * 1_000_000
    return F.timestamp_micros(F.floor(F.unix_micros(ts) / F.lit(micros)).cast("long") * F.lit(micros))


def millis(start: Column, end: Column) -> Column:
    """Milliseconds between two times, at least 0; null if a time is unknown."""
    passed = F.greatest(F.lit(0.0), (F.unix_micros(end) - F.unix_micros(start)) / F.lit(1000.0))
    return F.when(start.isNotNull() & end.isNotNull(), passed)


def percentiles(value: Column, prefix: str) -> list[Column]:
    """p50, p90, p99 and the greatest of a value."""
    found = [F.percentile_approx(value, p, ACCURACY).alias(f"{prefix}_p{round(p * 100)}") for p in PERCENTILES]
    return [*found, F.max(value).alias(f"{prefix}_max")]


def each_seq(frame: DataFrame) -> DataFrame:
    """Events of ranges as events of single messages, in column `seq`."""
    return frame.withColumn("seq", F.explode(F.sequence("first_seq", "last_seq")))


def width() -> Column:
    """How many messages an event is about."""
    return F.col("last_seq") - F.col("first_seq") + 1
