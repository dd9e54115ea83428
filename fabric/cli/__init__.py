"""The command `fabric`: the list of its commands, and the exit code and text of each error.

Commands are in `fabric.cli.commands` and are imported when they are used, so that `fabric --help` and completion are
quick: the list below has the one-line help of each command.

Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 no hub or no answer in time, 4 not found, 5 not allowed, 6 conflict,
7 nothing received before --timeout, 8 partly failed, 9 journal or snapshot damaged, 70 the running hub's journal
failed, 130 interrupted.
"""

import errno
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import click

from fabric import __version__
from fabric.cli.support.variables import assign, options, unknown, variable
from fabric.errors import JournalDamaged, SnapshotDamaged
from fabric_protocol.errors import Code, FabricError, ProtocolError

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NO_HUB: Final = 3
EXIT_NOT_FOUND: Final = 4
EXIT_NOT_ALLOWED: Final = 5
EXIT_CONFLICT: Final = 6
EXIT_NOTHING: Final = 7
EXIT_PARTLY: Final = 8
EXIT_DAMAGED: Final = 9
EXIT_INTERRUPTED: Final = 130


COMPLETION: Final = "_FABRIC_COMPLETE"  # set by the shell when it asks for completions


class Command(NamedTuple):
    module: str
    name: str
    help: str


# In the order in which a new user needs them.
COMMANDS: Final = {
    "demo": Command("demo", "demo", "Watch a hub survive kill -9: producers, consumers, nothing lost."),
    "hub": Command("hub", "hub", "Run a hub over a journal directory."),
    "config": Command("config", "config", "Configuration of a hub: show, check, init."),
    "pub": Command("pub", "pub", "Publish messages."),
    "sub": Command("sub", "sub", "Receive messages."),
    "get": Command("get", "get", "Read stored messages, without a group."),
    "trace": Command("trace", "trace", "Show what happened to one message."),
    "request": Command("request", "request", "Send a request and print the replies."),
    "respond": Command("request", "respond", "Answer requests."),
    "group": Command("group", "group", "Groups: list, create, update, seek, pause, delete."),
    "topic": Command("topic", "topic", "Topics: list, create, update, purge, delete."),
    "queue": Command("queue", "queue", "Work queues: list, create, purge, delete."),
    "dlq": Command("dlq", "dlq", "Dead letters: list, peek, redrive, discard."),
    "schedule": Command("schedule", "schedule", "Schedules of delayed publishes: list, cancel."),
    "session": Command("session", "session", "Sessions of clients: list, kick."),
    "producer": Command("producer", "producer", "Producers and numbered sources: delete."),
    "setting": Command("setting", "setting", "Settings of the hub: list, set."),
    "keys": Command("keys", "keys", "Keys for other machines: invite, create, list, revoke, rotate."),
    "join": Command("join", "join", "Join a hub on another machine, with a line of 'fabric keys invite'."),
    "ctx": Command("ctx", "ctx", "Contexts, saved hubs with their keys: add, use, list, show, rm."),
    "info": Command("info", "info", "Show the state of the hub as JSON or as a table."),
    "top": Command("top", "top", "Watch a hub: rates, backlogs, dead letters, topics, sessions."),
    "check": Command("check", "check", "Check the hub for a monitoring system: OK, WARNING or CRITICAL."),
    "journal": Command("journal", "journal", "Journals: stats, verify, backup, restore, compact."),
    "snapshot": Command("snapshot", "snapshot", "Snapshots of a journal: create, list, verify, push, rm."),
    "spark": Command("spark", "spark", "Jobs on snapshots: statistics, latency, lag, Parquet, replay."),
    "bench": Command("bench", "bench", "Measure this machine: throughput, latency, growth."),
    "completion": Command("completion", "completion", "Print the script that completes commands in a shell."),
}
AS_OPTIONS: Final = {"help": "use 'fabric --help', or 'fabric COMMAND --help'", "version": "use 'fabric --version'"}
PLURALS: Final = {
    f"{name}s": name for name in ("group", "topic", "queue", "schedule", "session", "producer", "setting", "snapshot")
} | {"key": "keys", "context": "ctx", "contexts": "ctx"}
# The client's hints name methods of Python; these hints name commands and options.
HINTS: Final = {
    Code.BAD_OPTION: "the value of an option is wrong; --help shows the allowed values",
    Code.NOT_FOUND: "'fabric group list', 'fabric topic list' and similar commands show the existing names",
    Code.GROUP_MISMATCH: "omit the setting to join the group as it is, or change it with 'fabric group update'",
    Code.CONFLICT: "show the present state with 'fabric info', then change or delete it",
    Code.TOPIC_FULL: "consume or purge its messages, or raise its limits with 'fabric topic update'",
    Code.FORBIDDEN: "'fabric keys show' shows your role and rights; the hub's access.toml gives them",
    Code.NO_RESPONDERS: "start a responder with 'fabric respond'",
    Code.TIMED_OUT: "give a longer --timeout, or check the responders",
}
OS_HINTS: Final = {
    errno.ENOENT: "check the path; the folder must exist",
    errno.EACCES: "check the owner and the mode of the file and of its folder",
    errno.EPERM: "check the owner and the mode of the file and of its folder",
    errno.EROFS: "choose a folder that can be written",
    errno.ENOSPC: "free some space on the disk, or choose another folder",
    errno.EDQUOT: "free some space, or ask for a larger quota",
}
UNCONFIRMED: Final = "the message may be stored or not; published again with the same --id, it is stored once"
EXAMPLES: Final = """\b
Examples:
  fabric demo                                  watch a hub survive kill -9
  fabric hub                                   a hub with its journal in ./fabric-data
  fabric pub orders.created '{"id": 102}'
  fabric sub 'orders.#' --group billing
  fabric group list                            how many messages wait for each group
"""


class Overview(click.Group):
    """A command with subcommands. Without one it prints its help, and ends with exit code 0."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()
        return super().parse_args(ctx, args)


class Fabric(Overview):
    """Imports a command when it is used, suggests the nearest command, and turns errors into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = PLURALS.get(cmd_name, cmd_name)
        entry = COMMANDS.get(name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(f"fabric.cli.commands.{entry.module}"), entry.name)
        assert isinstance(command, click.Command)
        return assign(command, (name,))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and args[0] not in PLURALS and not args[0].startswith("-"):
            import difflib  # late: only an error needs it

            near = difflib.get_close_matches(args[0], COMMANDS, n=1, cutoff=0.5)
            hint = f"did you mean 'fabric {near[0]}'?" if near else "'fabric --help' lists the commands"
            hint = AS_OPTIONS.get(args[0], hint)
            raise _WrongUsage(f"there is no command {args[0]!r}", hint)
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        def plain() -> Any:
            if COMPLETION not in os.environ:
                _warn_of_unknown_variables(self)
            return super(Fabric, self).main(args, prog_name, complete_var or COMPLETION, standalone_mode=False, **extra)

        return sys.exit(run(plain)) if standalone_mode else plain()


class _WrongUsage(click.UsageError):
    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def variables(group: Fabric) -> dict[str, tuple[str, click.Option]]:
    """The variable of each option of each command, with the command and the option."""
    return {
        variable(path, option): (" ".join(("fabric", *path)), option)
        for path, command in _walk(group)
        for option in options(command)
    }


def _walk(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from _walk(command, (*path, name))


def _warn_of_unknown_variables(group: Fabric) -> None:
    if not unknown(os.environ, ()):  # then no command needs to be imported
        return
    for name, meant in unknown(os.environ, variables(group)).items():
        hint = f"did you mean {meant}?" if meant else "docs/cli.md lists the variables"
        click.echo(click.style("warning: ", fg="yellow") + f"{name} is set, and no option reads it; {hint}", err=True)


def run(command: Callable[[], object]) -> int:
    """Run a command; returns its exit code. Prints the error that the command raises."""
    try:
        code = command()
        sys.stdout.flush()
    except click.ClickException as error:
        return _tell(error.format_message(), _usage_hint(error), error.exit_code)
    except FabricError as error:
        return _tell(str(error), hint_of(error), exit_code_of(error))
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        return _tell(f"{error.strerror or error}{place}", OS_HINTS.get(error.errno or 0, ""), EXIT_FAILED)
    return code if isinstance(code, int) else 0


def hint_of(error: FabricError) -> str:
    """The hint of an error, with names of commands and options."""
    from fabric_client import errors as client  # late: only an error needs it

    if isinstance(error, client.Unconfirmed):
        return UNCONFIRMED
    if names_commands(error) or "belongs to the hub" in str(error):  # no right can change the latter
        return error.hint
    if "join first" in str(error):  # a key that is not known, while an invitation is open
        return client.KEY_UNKNOWN_HINT
    return HINTS.get(getattr(error, "code", Code.INTERNAL), error.hint)


def names_commands(error: FabricError) -> bool:
    """Whether the hint of an error names commands and not methods of Python."""
    return "'fabric " in error.hint


def exit_code_of(error: FabricError) -> int:
    """The documented exit code of an error."""
    if isinstance(error, JournalDamaged | SnapshotDamaged):
        return EXIT_DAMAGED
    from fabric_client import errors as client  # late: only an error needs it

    for kinds, code in (
        ((client.ConnectionLost, client.Timeout, client.TimedOut), EXIT_NO_HUB),
        ((client.BadMessage, client.BadPattern), EXIT_USAGE),
        ((client.NotFound, client.NoResponders), EXIT_NOT_FOUND),
        ((client.Forbidden, client.AuthFailed), EXIT_NOT_ALLOWED),
        ((client.GroupMismatch, client.Fenced, client.Conflict), EXIT_CONFLICT),
    ):
        if isinstance(error, kinds):
            return code
    code = error.code if isinstance(error, client.HubError | ProtocolError) else 0
    if code in (Code.FORBIDDEN, Code.AUTH_FAILED):  # of messages that were refused
        return EXIT_NOT_ALLOWED
    return EXIT_USAGE if code in (Code.BAD_OPTION, Code.BAD_TOPIC, Code.BAD_PATTERN) else EXIT_FAILED


def _tell(message: str, hint: str, code: int) -> int:
    if os.environ.get("FABRIC_DEBUG", "") not in ("", "0"):
        import traceback  # late: only an error needs it

        traceback.print_exc()
    click.echo(click.style("error: ", fg="red", bold=True) + message, err=True)
    if hint:
        click.echo(click.style("hint: ", fg="cyan") + hint, err=True)
    return code


def _usage_hint(error: click.ClickException) -> str:
    if isinstance(error, _WrongUsage):
        return error.hint
    context = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        return f"see '{context.command_path} --help'" if context else ""
    if isinstance(error, click.NoSuchOption) and context is not None and context.command is main:
        return f"options come after the command: 'fabric COMMAND {error.option_name} …'"
    return f"see '{context.command_path} --help'" if context else ""


@click.group(
    cls=Fabric,
    help=f"Durable messaging: a hub over a journal on disk, and the tools to talk to it.\n\n{EXAMPLES}",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="fabric", message="%(prog)s %(version)s")
def main() -> None:
    """The entry point; its help is in the decorator."""
