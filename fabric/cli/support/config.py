"""The configuration of a program that serves, such as `fabric hub`: one loader, which also knows the origin of a value.

From the lowest to the highest: defaults, a configuration file, `.env` in the working directory, the environment, the
command line. All of them set the options of the command, so that an option that is new is known here at once. Names of
other brokers (aliases) come after all names of our own, from wherever they are: a setting that is given by its own name
is not changed by an alias.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click

from fabric.cli import Fabric
from fabric.cli import variables as of_all_commands
from fabric.cli.support import config_aliases as known
from fabric.cli.support.config_file import ConfigError, Entry, read, read_dotenv, shown, tidy
from fabric.cli.support.config_values import allowed, converted, from_variable, key
from fabric.cli.support.variables import options, unknown

F = TypeVar("F", bound=Callable[..., Any])
SECTIONS: Final = ["hub"]  # tables of the file; each is the name of a command of class Configured
PLACES: Final = [Path("fabric.toml"), Path("/etc/fabric/fabric.toml")]  # the first that exists is read
DOTENV: Final = Path(".env")
NO_FILE: Final = "none"  # the value of --config that reads no file at all
CONFIG: Final = "config"
ALIASES: Final = "aliases"
_META: Final = "fabric.configuration"  # in the context of the command


class Origin(NamedTuple):
    """Where a value comes from. `kind` is default, file, .env, environment or flag."""

    kind: str
    place: str = ""
    alias: str = ""

    def __str__(self) -> str:
        return self.place or self.kind


class Found(NamedTuple):
    """An alias that is set."""

    alias: known.Alias
    value: str
    origin: Origin


class Given(NamedTuple):
    value: Any  # converted
    origin: Origin


class Configuration(NamedTuple):
    """What was read for one command, by the names of its parameters. Flags and defaults are not among `values`."""

    values: dict[str, Any]
    origins: dict[str, Origin]
    files: tuple[Path, ...]
    found: tuple[Found, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def config_options(command: F) -> F:
    """`--config` and `--aliases`. The loader reads them; the command gets no parameters for them."""
    file = click.option(
        "--config",
        metavar="FILE",
        envvar="FABRIC_CONFIG",
        shell_complete=click.Path().shell_complete,
        help="Read options from this file (TOML; .json and .yml also); none: read no file.  "
        "[default: ./fabric.toml, then /etc/fabric/fabric.toml, if they exist]",
    )
    names = click.option(
        "--aliases",
        is_flag=True,
        envvar="FABRIC_ALIASES",
        help="Also read variables of other brokers, such as DATA_DIR and RETENTION_HOURS.",
    )
    return file(names(command))


class Configured(click.Command):
    """A command whose options are also read from files. The name of the command is its table in the file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        typed, _, _ = self.make_parser(ctx).parse_args(list(args))
        asks_only = any(param.is_eager and param.name in typed for param in self.get_params(ctx))  # such as --help
        if not ctx.resilient_parsing and not asks_only:
            loaded = Loader(self, ctx, typed, os.environ).load()
            ctx.default_map = loaded.values
            ctx.meta[_META] = loaded
        rest = super().parse_args(ctx, args)
        for name in (CONFIG, ALIASES):
            ctx.params.pop(name, None)
        return rest


def configuration(context: click.Context) -> Configuration:
    """What was read for the command of this context."""
    loaded = context.meta[_META]
    assert isinstance(loaded, Configuration)
    return loaded


def settings(command: click.Command) -> Iterator[click.Option]:
    """The options of a command that a file may set."""
    return (option for option in options(command) if option.name != CONFIG)


def normal(name: str) -> str:
    return name.lower().replace("-", "_")


def nearest(name: str, names: Iterator[str] | list[str]) -> str:
    import difflib  # late: only a mistake needs it

    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


class Contents(NamedTuple):
    """A file whose names are all known: the values of one section by option, and of aliases by name."""

    own: dict[str, Given]
    aliases: dict[str, Entry]
    brokers: frozenset[str]


def contents(path: Path, command: click.Command, context: click.Context, environment: Mapping[str, str]) -> Contents:
    """Read a file for one command, and check all names and values. Raises ConfigError with all mistakes."""
    section = str(command.name)
    by_key = {normal(key(option)): option for option in settings(command)}
    own: dict[str, Given] = {}
    aliases: dict[str, Entry] = {}
    problems = []
    for entry in read(path, environment):
        root, _, rest = entry.name.partition(".")
        name = normal(entry.name)
        option = by_key.get(normal(rest))
        if root in SECTIONS and root != section:
            continue  # the command of that section checks it
        if not rest and root in (*SECTIONS, *known.ROOTS):
            if entry.value:  # an empty table has no names
                problems.append(f"{entry.place}: {tidy(root)} must be a table, not {shown(entry.value)}")
        elif name in known.NAMES and root != section:
            if name in aliases:
                problems.append(f"{entry.place}: {tidy(entry.name)} is there twice")
            aliases[name] = entry
        elif root != section or option is None:
            problems.append(_unknown(entry, section, [key(option) for option in settings(command)]))
        elif option.name in own:
            problems.append(f"{entry.place}: {tidy(rest)} is there twice")
        else:
            try:
                value = converted(option, entry.value, context)
                own[str(option.name)] = Given(value, Origin("file", entry.place))
            except ValueError as error:
                problems.append(f"{entry.place}: {tidy(rest)}: {error}")
    if problems:
        raise ConfigError(problems)
    return Contents(own, aliases, frozenset(known.NAMES[name].broker for name in aliases))


def _unknown(entry: Entry, section: str, keys: list[str]) -> str:
    root, _, rest = entry.name.partition(".")
    if root == section:
        return f"{entry.place}: there is no option {rest!r} in [{section}]{nearest(rest, keys)}"
    if root in known.ROOTS:
        return f"{entry.place}: the name {entry.name!r} is not known{nearest(normal(entry.name), [*known.NAMES])}"
    if not rest and normal(root) in map(normal, keys):
        return f"{entry.place}: {root!r} stands above all tables; write it below a line [{section}]"
    tables = ", ".join(f"[{name}]" for name in SECTIONS)
    return f"{entry.place}: there is no table [{tidy(root)}]; allowed is {tables}{nearest(root, SECTIONS)}"


class Loader:
    """Reads the configuration of one command. `typed` are the options of the command line by parameter."""

    def __init__(
        self, command: click.Command, context: click.Context, typed: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        self._command = command
        self._context = context
        self._typed = typed
        self._options = {str(option.name): option for option in options(command)}
        self._environment = {name: Entry(name, text, name) for name, text in environment.items() if text}
        self._dotenv: dict[str, Entry] = {}
        self._file = Contents({}, {}, frozenset())
        self._warnings: list[str] = []
        self._problems: list[str] = []
        self._asked = False

    def load(self) -> Configuration:
        """Read all. Raises ConfigError with all mistakes."""
        path = self._read_files()
        self._asked = bool(self._typed.get(ALIASES) or self._own_value(ALIASES))
        uses_dotenv = any(name in self._dotenv for name in self._readable())
        files = (path, DOTENV if uses_dotenv else None)
        return self._resolved(tuple(file for file in files if file is not None))

    def load_only(self, path: Path, variables: Mapping[str, str]) -> Configuration:
        """Read one file alone. Raises ConfigError with all mistakes."""
        self._file = contents(path, self._command, self._context, variables)
        return self._resolved((path,))

    def _resolved(self, files: tuple[Path, ...]) -> Configuration:
        found = [] if self._is_bare() else list(self._aliases_set())
        self._problems += (
            f"--{key(option)} is empty; allowed is {allowed(option)}"  # such as --data "$DIR" without DIR
            for name, option in self._options.items()
            if self._typed.get(name) == "" and isinstance(option.type, click.Path)
        )
        given = {name: value for name in self._options if (value := self._chosen(name, found)) is not None}
        if self._problems:
            raise ConfigError(dict.fromkeys(self._problems))
        typed = {name: Origin("flag", self._options[name].opts[0]) for name in self._typed if name in self._options}
        missing = [_note(each) for each in found if each.alias.reader in (known.GATEWAY, known.WORKER)]
        return Configuration(
            {name: value.value for name, value in given.items() if name != CONFIG},
            {name: value.origin for name, value in given.items()} | typed,
            files,
            tuple(found),
            (*self._warnings, *missing),
            tuple(_note(each) for each in found if each.alias.reader == known.NONE),
        )

    # Where names are looked for.

    def _is_bare(self) -> bool:
        return self._named_file() == NO_FILE

    def _named_file(self) -> str | None:
        """What --config or its variables say."""
        if CONFIG in self._typed:
            return str(self._typed[CONFIG])
        entry, _ = self._variable(CONFIG)
        return None if entry is None else str(entry.value)

    def _read_files(self) -> Path | None:
        """Read `.env` and the configuration file; returns the latter."""
        if self._is_bare():
            return None
        self._dotenv, problem = read_dotenv(DOTENV)
        if problem:
            self._warnings.append(f"{problem}; it is not used")
        self._warn_of_unknown_variables()
        if self._is_bare():
            return None
        named = self._named_file()
        if named == "":  # such as --config "$FILE" without FILE: another file must not take its place
            raise ConfigError([f"--config is empty; name a file, or {NO_FILE}"])
        path = Path(named) if named else next(filter(_is_there, PLACES), None)
        if path is not None:
            entries = (*self._dotenv.values(), *self._environment.values())
            variables = {entry.name: str(entry.value) for entry in entries}
            self._file = contents(path, self._command, self._context, variables)
        return path

    def _readable(self) -> set[str]:
        """Variables of the options, and of the aliases that are read."""
        own = {name for option in self._options.values() for name in _variables(option)}
        return own | {alias.variable for alias in known.ALIASES if alias.variable and self._is_on(alias)}

    def _warn_of_unknown_variables(self) -> None:
        """Of the environment, the command line itself warns."""
        own = [name for option in self._options.values() for name in _variables(option)]
        if not unknown(self._dotenv, own):  # then no other command needs to be imported
            return
        root = self._context.find_root().command
        names = [*own, *(of_all_commands(root) if isinstance(root, Fabric) else ())]
        for name, meant in unknown(self._dotenv, names).items():
            hint = f"; did you mean {meant}?" if meant else ""
            self._warnings.append(f"{self._dotenv[name].place}: no option reads it{hint}")

    def _variable(self, parameter: str) -> tuple[Entry | None, str]:
        """The variable that sets an option, and where it was found."""
        for layer, kind in ((self._environment, "environment"), (self._dotenv, ".env")):
            for name in _variables(self._options[parameter]):
                if name in layer and layer[name].value:
                    return layer[name], kind
        return None, ""

    # Values of our own names.

    def _own(self, parameter: str) -> Given | None:
        entry, kind = self._variable(parameter)
        if entry is None:
            return self._file.own.get(parameter)
        origin = Origin(kind, entry.place)
        try:
            return Given(from_variable(self._options[parameter], str(entry.value), self._context), origin)
        except ValueError as error:
            self._problems.append(f"{entry.place}: {error}")
            return None

    def _own_value(self, parameter: str) -> Any:
        given = self._own(parameter) if parameter in self._options else None
        return None if given is None else given.value

    def _chosen(self, parameter: str, found: list[Found]) -> Given | None:
        """The value that is not on the command line and not a default."""
        if parameter in self._typed:
            return None
        aliases = self._of_aliases(parameter, found)
        own = self._own(parameter)
        chosen = own or next(iter(aliases), None)
        for other in aliases:
            overrides = own is None and other.origin.kind != aliases[0].origin.kind
            if chosen is not None and other.value != chosen.value and not overrides:
                option = self._options[parameter]
                self._warnings.append(
                    f"{other.origin} has no effect: --{key(option)} is {_text(chosen.value)}, from {chosen.origin}"
                )
        return chosen

    # Values of other names.

    def _is_on(self, alias: known.Alias) -> bool:
        """Whether the variable of an alias is read."""
        return self._asked or alias.variable.startswith(known.ALWAYS) or alias.broker in self._file.brokers

    def _aliases_set(self) -> Iterator[Found]:
        """All aliases that are set and allowed, the highest first."""
        for layer, kind in ((self._environment, "environment"), (self._dotenv, ".env")):
            for alias in known.ALIASES:
                entry = layer.get(alias.variable)
                if entry is not None and entry.value and self._is_on(alias):
                    yield from self._checked(alias, entry, kind)
        for name, entry in self._file.aliases.items():
            yield from self._checked(known.NAMES[name], entry, "file")

    def _checked(self, alias: known.Alias, entry: Entry, kind: str) -> Iterator[Found]:
        try:
            yield Found(alias, alias.check(known.text(entry.value)), Origin(kind, entry.place, alias.shown))
        except ValueError as error:
            name = f": {alias.name}" if kind == "file" and not entry.place.endswith(alias.name) else ""
            self._problems.append(f"{entry.place}{name}: {error}")

    def _of_aliases(self, parameter: str, found: list[Found]) -> list[Given]:
        option = self._options[parameter]
        texts = [(each.value, each.origin) for each in found if each.alias.target == key(option)]
        if key(option) == "bind":
            texts = list(_addresses(found))
        given = []
        for text, origin in texts:
            try:
                given.append(Given(from_variable(option, text, self._context), origin))
            except ValueError as error:
                self._problems.append(f"{origin}: {error}")
        return given


def _addresses(found: list[Found]) -> Iterator[tuple[str, Origin]]:
    """Addresses to listen at: each port with the host of the same broker. A host alone has the broker's usual port."""
    hosts = [each for each in found if each.alias.target == known.HOST]
    ports = [each for each in found if each.alias.target == known.PORT]
    for each in ports:
        host = next((one.value for one in hosts if one.alias.broker == each.alias.broker), known.DEFAULT_HOST)
        yield f"tcp://{host}:{each.value}", each.origin
    for each in hosts:
        if all(one.alias.broker != each.alias.broker for one in ports):
            yield f"tcp://{each.value}:{known.DEFAULT_PORTS[each.alias.broker]}", each.origin


def _is_there(path: Path) -> bool:
    """Also true for a file that cannot be read: the error is better than a hub without its configuration."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def _variables(option: click.Option) -> list[str]:
    return [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or [])


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _note(found: Found) -> str:
    return f"{found.origin} has {found.alias.effect()}"
