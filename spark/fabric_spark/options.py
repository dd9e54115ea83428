"""The options of `format("fabric")`, read from text and checked before anything is opened.

A misspelt option is refused: otherwise a query would read all messages without notice.
"""

import difflib
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from fabric_spark.errors import SourceError
from fabric_spark.topics import Wanted, parse_patterns

STREAMS: Final = ("journal", "events", "groups")
EARLIEST: Final = 0
LATEST: Final = -1
SEQ_END: Final = (1 << 63) - 1  # what Spark's long holds
ROWS_PER_PARTITION: Final = 250_000
PIN_HOURS: Final = 24.0
READING: Final = (
    *("path", "paths", "stream", "topics", "startSeq", "endSeq", "startTime", "endTime", "columns", "headers"),
    *("rowsPerPartition", "pushdown", "verify", "failOnDataLoss", "maxRecordsPerTrigger", "pin", "pinHours", "cache"),
)
_TRUTHS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Options(NamedTuple):
    paths: tuple[tuple[str, str], ...]  # name of the hub, or nothing; where its data is
    stream: str = "journal"
    wanted: Wanted = Wanted()
    start_seq: int = EARLIEST  # LATEST: what comes from now on, for streams
    end_seq: int = SEQ_END
    low: int = 0  # as start_seq, but from a filter, which may name removed messages
    start_us: int | None = None
    end_us: int | None = None
    columns: tuple[str, ...] | None = None
    headers: str = "map"
    rows_per_partition: int = ROWS_PER_PARTITION
    pushdown: bool = True
    verify: bool = True
    fail_on_data_loss: bool = True
    max_records: int | None = None
    pin: str = ""
    pin_hours: float = PIN_HOURS
    cache: str = ""

    @property
    def is_several(self) -> bool:
        return len(self.paths) > 1


def parse(options: Mapping[str, str]) -> Options:
    """The options of a read. Names are taken in any case, as Spark does."""
    given = {name.lower(): str(value) for name, value in options.items()}
    _refuse_unknown(given)
    stream = given.get("stream", "journal").lower()
    if stream not in STREAMS:
        raise SourceError(f"option stream is {stream!r}", f"choose one of {', '.join(STREAMS)}")
    parsed = Options(
        paths=_paths(given),
        stream=stream,
        wanted=Wanted(parse_patterns(given.get("topics", ""))),
        start_seq=_start_seq(given),
        end_seq=_number(given, "endSeq", SEQ_END, 0),
        start_us=_time(given, "startTime"),
        end_us=_time(given, "endTime"),
        columns=tuple(c.strip() for c in given["columns"].split(",") if c.strip()) if "columns" in given else None,
        headers=given.get("headers", "map").lower(),
        rows_per_partition=_number(given, "rowsPerPartition", ROWS_PER_PARTITION, 1),
        pushdown=_truth(given, "pushdown", True),
        verify=_truth(given, "verify", True),
        fail_on_data_loss=_truth(given, "failOnDataLoss", True),
        max_records=_number(given, "maxRecordsPerTrigger", 0, 1) or None,
        pin=given.get("pin", ""),
        pin_hours=_hours(given),
        cache=given.get("cache", ""),
    )
    _check(parsed)
    return parsed


def _check(options: Options) -> None:
    """What only several options together can have wrong."""
    if options.headers not in ("map", "raw"):
        raise SourceError(f"option headers is {options.headers!r}", "choose map or raw")
    if options.start_seq > options.end_seq:
        raise SourceError(
            f"startSeq {options.start_seq} is after endSeq {options.end_seq}",
            "endSeq is exclusive: the first seq that is not read",
        )
    if options.start_us is not None and options.end_us is not None and options.start_us > options.end_us:
        raise SourceError("startTime is after endTime", "endTime is exclusive: the first moment that is not read")
    if options.stream != "journal" and not options.wanted.is_everything:
        raise SourceError(f"option topics has no meaning for stream {options.stream}", "leave it out")
    if options.columns is not None and not options.columns:
        raise SourceError("option columns is empty", "name the columns, separated by commas, or leave the option out")
    if options.pin and not all(c.isalnum() or c in "-_" for c in options.pin):
        raise SourceError(f"option pin is {options.pin!r}", "a pin's name has letters, digits, '-' and '_'")


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in READING}
    for name in given:
        if name not in known and not name.startswith("__"):
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {known[near[0]]}?" if near else f"the options are {', '.join(READING)}"
            raise SourceError(f"unknown option {name!r}", hint.rstrip("?"))


def _paths(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """A path; several paths, separated by commas or as a JSON list; or a JSON map of hub names to paths."""
    text = given.get("path") or given.get("paths", "")
    if not text.strip():
        raise SourceError("there is no path", "name a snapshot or a journal directory: .load('/path/of/snapshot')")
    if text.lstrip()[:1] not in ("[", "{"):
        return tuple(("", path.strip()) for path in text.split(",") if path.strip())
    try:
        value = json.loads(text)
        pairs = value.items() if isinstance(value, dict) else [("", path) for path in value]
        paths = tuple((name, path) for name, path in pairs if isinstance(path, str) and path)
    except (ValueError, TypeError):
        paths = ()
    if not paths:
        raise SourceError(f"option path is {text[:80]!r}", "give a path, a JSON list of paths or a JSON map by hub")
    return paths


def _start_seq(given: Mapping[str, str]) -> int:
    match given.get("startseq", "earliest").lower():
        case "earliest":
            return EARLIEST
        case "latest":
            return LATEST
        case _:
            return _number(given, "startSeq", EARLIEST, 0)


def _number(given: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number <= SEQ_END:
        raise SourceError(f"option {name} is {text!r}", f"give a whole number, at least {least}")
    return number


def _truth(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.lower() not in _TRUTHS:
        raise SourceError(f"option {name} is {text!r}", "give true or false")
    return _TRUTHS[text.lower()]


def _hours(given: Mapping[str, str]) -> float:
    text = given.get("pinhours", str(PIN_HOURS))
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours <= 24 * 366:
        raise SourceError(f"option pinHours is {text!r}", "give hours, more than 0 and at most a year")
    return hours


def _time(given: Mapping[str, str], name: str) -> int | None:
    """Microseconds since 1970, or a time as in ISO 8601; without a zone it is UTC."""
    text = given.get(name.lower())
    if text is None:
        return None
    if text.strip().isdigit():
        return int(text)
    try:
        return time_us(datetime.fromisoformat(text.strip()))
    except ValueError:
        now = datetime.fromtimestamp(int(time.time()), UTC).isoformat()
        raise SourceError(
            f"option {name} is {text!r}", f"write the time like {now}, or as microseconds since 1970"
        ) from None


def time_us(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
