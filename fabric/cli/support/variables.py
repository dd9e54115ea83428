"""Environment variables: every option of every command has one, named by one rule.

The variable of an option is `FABRIC_`, the command and the option's long name, in capitals and with underscores:
`fabric hub --max-age` is `FABRIC_HUB_MAX_AGE`, `fabric group list --json` is `FABRIC_GROUP_LIST_JSON`. Some options
also have a shorter variable, the same for all commands: `FABRIC_URL`, `FABRIC_DATA`. The command line counts first,
then the longer variable, then the shorter.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import click
from click.core import ParameterSource

PREFIX = "FABRIC"
_LINK = re.compile(r"(.+?)_(?:SERVICE_HOST|SERVICE_PORT(?:_.+)?|PORT(?:_[0-9]+_.+)?)")
# Variables without an option: read by the client, Spark, tests and benchmarks, or set for the command of --exec.
OTHERS = {
    "FABRIC_URL": "the hub's address",
    "FABRIC_SECRET_KEY": "the secret key for a link in FABRIC_URL",
    "FABRIC_CREDENTIALS": "a file with the hub's address and a key",
    "FABRIC_CONTEXT": "the name of a context",
    "FABRIC_HOME": "the folder of the contexts, in place of ~/.config/fabric",
    "FABRIC_DATA": "the journal's directory",
    "FABRIC_CONFIG": "the configuration file of a hub",
    "FABRIC_ALIASES": "1: a hub also reads variables of other brokers",
    "FABRIC_SNAPSHOT": "the snapshot for Spark's jobs",
    "FABRIC_DEBUG": "1: show the traceback of an error",
    "FABRIC_SPARK_CACHE": "where Spark keeps parts of remote snapshots",
    "FABRIC_SEED": "the seed of tests with random choices",
    "FABRIC_CLUSTER": "1: test Spark with a cluster",
    "FABRIC_SYSTEMD": "1: test the systemd unit with a systemd in namespaces",
    "FABRIC_POWER_IMAGES": "how many images of a disk the power-cut tests make",
    "FABRIC_BENCH_LEVEL": "the level of the peer that other brokers are compared with",
    "FABRIC_BENCH_TOPIC": "its topic",
    **{
        f"FABRIC_{name}": "set for the command of --exec"
        for name in ("TOPIC", "SEQ", "KEY", "ATTEMPT", "GROUP", "HEADERS")
    },
}


def variable(path: Iterable[str], option: click.Option) -> str:
    """The variable of an option of the command that is typed as `path`, without `fabric`."""
    name = max(option.opts, key=len).lstrip("-")  # the long name; -n has none
    return "_".join((PREFIX, *path, name)).upper().replace("-", "_")


def assign(command: click.Command, path: tuple[str, ...]) -> click.Command:
    """Let all options of a command, and of the commands below it, read their variables."""
    for option in options(command):
        own, given = variable(path, option), option.envvar or []
        also = [given] if isinstance(given, str) else [name for name in given if name != own]
        option.envvar = [own, *also]
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            assign(inner, (*path, name))
    return command


def options(command: click.Command) -> Iterator[click.Option]:
    """The options with a value: not --help and --version."""
    return (param for param in command.params if isinstance(param, click.Option) and param.expose_value)


def prevailing(**values: Any) -> dict[str, Any]:
    """Of options that exclude each other, by their parameters, the values that count: those of the command line, or
    else those of variables. The other values are None."""
    source = click.get_current_context().get_parameter_source
    typed = any(source(name) is ParameterSource.COMMANDLINE for name in values)
    return {
        name: None if typed and source(name) is ParameterSource.ENVIRONMENT else value for name, value in values.items()
    }


def _is_link(name: str, given: set[str]) -> bool:
    """True if Kubernetes sets a variable, because the name of a service begins with fabric."""
    match = _LINK.fullmatch(name)
    return match is not None and f"{match[1]}_SERVICE_HOST" in given


def unknown(environment: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """Variables that begin with FABRIC_ and are unknown, each with the nearest known name, or empty."""
    names, given = {*known, *OTHERS}, {*environment}
    strangers = sorted(name for name in given - names if name.startswith(f"{PREFIX}_") and not _is_link(name, given))
    if not strangers:
        return {}
    import difflib  # late: only a wrong name needs it

    near = {name: difflib.get_close_matches(name, names, n=1, cutoff=0.8) for name in strangers}
    return {name: found[0] if found else "" for name, found in near.items()}
