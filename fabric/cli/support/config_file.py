"""Configuration files as a list of dotted names with values: TOML, JSON or YAML, by the suffix, and `.env`.

A file of any format becomes entries such as `hub.max-age`, so that one loader checks all of them. A file is text from
outside: its size, its depth and the number of its names are bounded, and each mistake in it is a `ConfigError` that
names the place.
"""

import importlib
import json
import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

FILE_BYTES_MAX: Final = 1 << 20  # a file with all options and comments has a few kilobytes
NAMES_MAX: Final = 1000  # there are about twenty options
DEPTH_MAX: Final = 8  # the deepest known name has four parts
PROBLEMS_SHOWN: Final = 20
HINT: Final = "'fabric config init' prints a file with all options; '--config none' reads no file"
_REFERENCE: Final = re.compile(r"(\$?)\$\{([^}]*\}?)")
_VARIABLE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-?([^{}]*))?\}")
_TABLE: Final = re.compile(r"\s*\[\s*([A-Za-z0-9_.\-]+)\s*\]\s*(?:#.*)?")
_KEY: Final = re.compile(r"\s*([A-Za-z0-9_.\-]+)\s*=")
_DOTENV: Final = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=(.*)")


class ConfigError(click.ClickException):
    """Mistakes in a configuration: each with its place."""

    exit_code = 2

    def __init__(self, problems: Iterable[str], hint: str = HINT) -> None:
        self.problems = tuple(problems)
        shown = list(self.problems[:PROBLEMS_SHOWN])
        if more := len(self.problems) - len(shown):
            shown.append(f"and {more} more")
        super().__init__("\nerror: ".join(shown) + f"\nhint: {hint}")


class Entry(NamedTuple):
    """A value of a file. `name` has the dots of the tables around it."""

    name: str
    value: Any
    place: str


def read(path: Path, environment: Mapping[str, str]) -> list[Entry]:
    """The entries of a file. `${NAME:default}` in a text is the variable of that name, or the default; `:-` is as `:`,
    because shells write it so."""
    text = _text(path)
    parsed = _parsed(path, text)
    lines = _lines(text) if _format(path) == "TOML" else {}
    entries, problems = [], []
    for name, value in _flat(path, parsed):
        line = lines.get(name, 0)
        place = f"{path}:{line}" if line else f"{path}: {tidy(name)}"
        try:
            entries.append(Entry(name, _expanded(value, environment), place))
        except ValueError as error:
            problems.append(f"{place}: {error}")
    if problems:
        raise ConfigError(problems)
    return entries


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError([f"{path}: cannot be read: {why or error}"]) from None
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError([f"{path}: it has more than {FILE_BYTES_MAX >> 20} MiB, so it is not a configuration"])
    try:
        return content.decode("utf-8-sig")  # editors of Windows begin a file with a mark
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError([f"{path}:{line}: it is not text in UTF-8"]) from None


def _format(path: Path) -> str:
    return {".json": "JSON", ".yml": "YAML", ".yaml": "YAML"}.get(path.suffix.lower(), "TOML")


def _parsed(path: Path, text: str) -> dict[Any, Any]:
    kind = _format(path)
    try:
        parsed = {"TOML": _toml, "JSON": _json, "YAML": _yaml}[kind](text)
    except ConfigError:
        raise
    except ModuleNotFoundError:
        problem = f"{path}: YAML is read with PyYAML, which is not installed; run 'pip install pyyaml', or use TOML"
        raise ConfigError([problem]) from None
    except RecursionError:
        raise ConfigError([f"{path}: its values are nested too deeply"]) from None
    except Exception as error:  # a parser of YAML fails in many ways, and none of them is a mistake of ours
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError([f"{path}: it is not {kind}: {tidy(reason)}"]) from None
    if parsed is None:
        return {}  # an empty file in YAML
    if not isinstance(parsed, dict):
        raise ConfigError([f"{path}: it must be an object with names and values, not {shown(parsed)}"])
    return parsed


def _toml(text: str) -> Any:
    import tomllib  # late: only a start with a file needs it

    return tomllib.loads(text.replace("\r\n", "\n"))


def _json(text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
        return found

    return json.loads(text, object_pairs_hook=once)


def _yaml(text: str) -> Any:
    """The value of a text in YAML. An error of its parser has no line of the file, which may have a secret."""
    yaml = importlib.import_module("yaml")
    try:
        _require_single(yaml, yaml.compose(text, yaml.SafeLoader))
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = f" (at line {error.problem_mark.line + 1})" if error.problem_mark else ""
        raise ValueError(f"{error.problem}{line}") from None


def _require_single(yaml: Any, root: Any) -> None:
    """Refuse a name that is there twice in a map, of which YAML's parser takes the last silently."""
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.CollectionNode) and id(node) not in seen:
            seen.add(id(node))
            pairs = node.value if isinstance(node, yaml.MappingNode) else [(None, item) for item in node.value]
            names = [name.value for name, _ in pairs if isinstance(name, yaml.ScalarNode)]
            for name, count in Counter(names).items():
                if count > 1:
                    raise ValueError(f"{name!r} is there twice")
            waiting += [value for _, value in pairs]


def _lines(text: str) -> dict[str, int]:
    """The line of each name in TOML. A name that is found twice is left out: one of the lines is part of a text."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.split("\n"), 1):
        if header := _TABLE.fullmatch(line.rstrip("\r")):
            table = f"{header[1]}."
        elif key := _KEY.match(line):
            name = table + key[1]
            found[name] = 0 if name in found else number
    return found


def _flat(path: Path, parsed: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Names with their values. Maps of YAML may share parts, so that a small file could have very many names."""
    count = 0
    waiting: list[tuple[tuple[str, ...], Any]] = [((), parsed)]
    while waiting:
        parts, value = waiting.pop()
        count += 1
        if count > NAMES_MAX or len(parts) > DEPTH_MAX:
            raise ConfigError([f"{path}: it has more than {NAMES_MAX} names, or more than {DEPTH_MAX} levels"])
        if isinstance(value, dict) and (value or not parts):
            inner = [((*parts, str(name)[:100]), below) for name, below in value.items()]
            waiting.extend(reversed(inner[: NAMES_MAX + 1]))
        else:
            yield ".".join(parts), value


def _expanded(value: Any, environment: Mapping[str, str]) -> Any:
    """A value in which each variable is replaced. Raises ValueError if a variable is not set, or its text is wrong."""

    def one(match: re.Match[str]) -> str:
        if match[1]:
            return match[0][1:]
        if not (found := _VARIABLE.fullmatch(match[2])):
            allowed = "${NAME} or ${NAME:DEFAULT}, or $${ for a plain ${"
            raise ValueError(f"{tidy(match[0])} is no variable; write {allowed}")
        name, default = found.groups()
        value = environment.get(name) or default
        if value is None and name not in environment:
            raise ValueError(f"the variable {name} is not set; set it, or write ${{{name}:DEFAULT}}")
        return value or ""

    if isinstance(value, str):
        return _REFERENCE.sub(one, value)
    if isinstance(value, list):
        return [_REFERENCE.sub(one, item) if isinstance(item, str) else item for item in value]
    return value


class _Shown(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60
        self.maxlevel = 2


def shown(value: Any) -> str:
    """A value of a file in an error: short and printable."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    try:
        return tidy(_Shown().repr(value))
    except ValueError:  # Python does not print a number of more than 4300 digits
        return "a very large number"


def tidy(text: str) -> str:
    """Printable text: control characters are escaped, so that they cannot change the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def read_dotenv(path: Path) -> tuple[dict[str, Entry], str]:
    """The variables of a file `.env`, and why it could not be read, or empty. Lines without a variable are ignored: the
    file belongs to other programs, too."""
    try:
        if not path.is_file():  # a folder of that name is often an environment of Python
            return {}, ""
        lines = _text(path).split("\n")
    except ConfigError as error:
        return {}, error.problems[0]
    except OSError as error:
        return {}, f"{path}: cannot be read: {error.strerror}"
    found = {}
    for number, line in enumerate(lines, 1):
        if match := _DOTENV.fullmatch(line.rstrip("\r")):
            found[match[1]] = Entry(match[1], _unquoted(match[2].strip()), f"{path}:{number} {match[1]}")
    return found, ""


def _unquoted(text: str) -> str:
    if text[:1] in ("'", '"') and (end := text.find(text[0], 1)) > 0:
        return text[1:end]
    return re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()
