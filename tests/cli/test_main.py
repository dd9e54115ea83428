"""The command as a whole: help, wrong usage, and errors with one line, a hint and an exit code."""

import errno
import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete

from docs.reference import commands
from fabric import __version__
from fabric.cli import COMMANDS, exit_code_of, main, run
from fabric.errors import JournalDamaged, JournalError
from fabric_client import errors as client
from fabric_protocol.errors import Code, FabricError
from tests.cli.conftest import Fabric
from tests.patience import PATIENCE_S

SLOW_TO_IMPORT = ("zmq", "lmdb", "msgpack", "rich", "fabric_client", "fabric.hub", "fabric.journal")


def test_help_lists_every_command_and_shows_examples_first(fabric: Fabric) -> None:
    result = fabric("--help")
    assert result.exit_code == 0
    assert all(f"\n  {name} " in result.stdout for name in COMMANDS)
    assert result.stdout.index("Examples:") < result.stdout.index("Options:")


GROUPS = [c.command_path for c in commands(main, "fabric") if isinstance(c.command, click.Group)]


@pytest.mark.parametrize("path", GROUPS)
def test_a_command_of_commands_alone_shows_its_help(fabric: Fabric, path: str) -> None:
    alone, asked = fabric(*path.split()[1:]), fabric(*path.split()[1:], "--help")
    assert (alone.exit_code, alone.stdout, alone.stderr) == (0, asked.stdout, "")


def test_help_imports_nothing_slow() -> None:
    """What keeps it quick, without a clock in the test."""
    code = (
        "import sys; from click.testing import CliRunner; from fabric.cli import main\n"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0\n"
        f"print([name for name in {SLOW_TO_IMPORT!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", [context.command_path for context in commands(main, "fabric")])
def test_every_command_has_help_with_examples(fabric: Fabric, path: str) -> None:
    result = fabric(*path.split()[1:], "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert f" {path}" in result.stdout.partition("Examples:")[2]


@pytest.mark.parametrize(
    ("said", "meant"), [("groups", "group"), ("topics", "topic"), ("queues", "queue"), ("schedules", "schedule")]
)
def test_plurals_are_understood(fabric: Fabric, said: str, meant: str) -> None:
    result = fabric(said, "ls", "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: fabric ")
    assert "list" in fabric(meant, "--help").stdout


def completions(words: str) -> list[str]:
    """What the shell offers for the last of these words."""
    return [
        item.value
        for item in ShellComplete(main, {}, "fabric", "_X").get_completions(words.split()[1:-1], words.split()[-1])
    ]


def test_names_are_completed(talk: Fabric) -> None:
    for name in ("billing", "bills", "audit"):
        talk("group", "create", name, "a")
    assert completions("fabric group show bil") == ["billing", "bills"]
    assert completions("fabric sub --group a") == ["audit"]
    assert completions("fabric group create bil") == []
    assert completions("fabric dlq list b") == []
    assert completions("fabric pub orders.c") == []
    talk("pub", "orders.created", "x")
    for words in ("pub", "get", "sub", "group create g", "topic show", "sub --group g"):
        assert completions(f"fabric {words} orders.c") == ["orders.created"]
    assert completions("fabric check --group bil") == ["billing", "bills"]


def test_files_are_completed() -> None:
    """The shell itself offers them."""
    (found,) = ShellComplete(main, {}, "fabric", "_X").get_completions(["hub", "--config"], "fab")
    assert (found.value, found.type) == ("fab", "file")


def test_completion_without_a_hub_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FABRIC_URL", "tcp://127.0.0.1:9")
    assert completions("fabric group show bil") == []


def test_version(fabric: Fabric) -> None:
    assert fabric("--version").stdout == f"fabric {__version__}\n"


def test_a_misspelt_command_is_recognised(fabric: Fabric) -> None:
    result = fabric("hbu")
    assert result.exit_code == 2
    assert result.stderr == "error: there is no command 'hbu'\nhint: did you mean 'fabric hub'?\n"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["help"], "use 'fabric --help', or 'fabric COMMAND --help'"),
        (["version"], "use 'fabric --version'"),
        (["--url", "x", "pub", "a", "b"], "options come after the command: 'fabric COMMAND --url …'"),
        (["group", "--yes"], "see 'fabric group --help'"),
        (["--verison"], "see 'fabric --help'"),
    ],
)
def test_what_a_newcomer_types_gets_a_hint(fabric: Fabric, arguments: list[str], hint: str) -> None:
    result = fabric(*arguments)
    assert result.exit_code == 2
    assert result.stderr.endswith(f"\nhint: {hint}\n")


def test_a_prefix_is_not_a_command(fabric: Fabric) -> None:
    assert fabric("jour", "stats").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["xyzzy"], "no command 'xyzzy'"),
        (["--nonsense"], "No such option"),
        (["hub", "--max-age", "7x"], "'7x' is not a duration"),
        (["hub", "--max-bytes", "10G"], "'10G' is not a size"),
        (["hub", "--max-messages", "-1"], "-1"),
        (["hub", "--log-format", "xml"], "xml"),
        (["pub"], "TOPIC"),
        (["pub", "a", "b", "-H", "nope"], "'nope' is not a header"),
        (["pub", "a", "b", "--count", "0"], "0"),
        (["pub", "a", "b", "--level", "maybe"], "maybe"),
        (["pub", "a", "b", "--lines"], "--lines reads"),
        (["pub", "a", "--lines", "-o", "seq"], "--lines reads"),
        (["pub", "a", "b", "--delay", "1s", "--at", "2h"], "--delay and --at exclude each other"),
        (["pub", "a", "b", "--every", "1m", "--cron", "* * * * *"], "--every and --cron exclude each other"),
        (["pub", "a", "b", "--every", "1ms"], "--every is 100ms or more"),
        (["pub", "a", "b", "--delay", "-1s"], "'-1s' is not a duration"),
        (["pub", "a", "b", "--at", "noon"], "'noon' is not a time"),
        (["pub", "a", "b", "--name", "n"], "--name is the name of a schedule"),
        (["pub", "a", "b", "--cron", "* * * * *", "--count", "2"], "are for a single message"),
        (["pub", "a", "b", "--delay", "1s", "-o", "seq"], "no seq yet"),
        (["pub", "a", "b", "--priority", "10"], "10"),
        (["pub", "a", "--lines", "--id", "x"], "--lines reads"),
        (["sub"], "PATTERNS"),
        (["sub", "a", "--lease", "1s"], "--lease is a setting of a group"),
        (["sub", "a", "--backoff-base", "1s"], "--backoff-base is a setting of a group"),
        (["sub", "a", "--group", "g", "--attempts", "-1"], "-1"),
        (["sub", "a", "--group", "g", "--order", "random"], "random"),
        (["sub", "a", "--group", "g", "--on-error", "ack"], "need --exec"),
        (["sub", "a", "--group", "g", "--exec", "cat", "-o", "raw"], "cannot be used with --exec"),
        (["get", "a", "--from", "1", "--last"], "exclude each other"),
        (["get", "a", "--last", "--by-key"], "exclude each other"),
        (["get", "a", "-n", "0"], "0"),
        (["get", "a", "-n", "1", "--all"], "exclude each other"),
        (["get", "a", "--last", "-n", "1001"], "at most 1000 messages"),
        (["get", "a", "--from", "-1"], "'-1' is not a seq"),
        (["get", "a", "--time", "then"], "'then' is not a time"),
        (["get", "a", "-f", "%v", "--json"], "cannot be used with"),
        (["request", "a", "x", "--timeout", "0"], "--timeout must be more than 0"),
        (["request", "a", "x", "--replies", "0"], "0"),
        (["respond", "a"], "give one of --exec"),
        (["respond", "a", "--echo", "--reply", "x"], "give one of --exec"),
        (["group", "update", "g"], "nothing to change"),
        (["group", "create", "g"], "PATTERNS"),
        (["group", "lst"], "did you mean 'fabric group list'?"),
        (["group", "seek", "g", "soon"], "'soon' is not a position"),
        (["group", "seek", "g", "999999"], "write seq:999999 (a seq) or 999999s"),
        (["group", "create", "g", "a", "--start", "5"], "'5' is not a position"),
        (["group", "refresh", "g", "--from", "5"], "'5' is not a position"),
        (["sub", "a", "--start", "7.5"], "'7.5' is not a position"),
        (["get", "a", "--time", "5"], "'5' is not a time; write 5s"),
        (["dlq", "list", "g", "--before", "5"], "'5' is not a time"),
        (["pub", "a", "b", "--at", "5"], "'5' is not a time; write 5s for seconds, 1h (in an hour)"),
        (["topic", "update", "t"], "nothing to change"),
        (["topic", "create", "t", "--max-age", "-1"], "'-1' is not a duration"),
        (["queue", "create", "q", "--keep", "limits"], "No such option"),
        (["dlq", "redrive", "g"], "choose dead letters by"),
        (["dlq", "redrive", "g", "1", "--all"], "choose dead letters by"),
        (["dlq", "discard", "g", "1", "--max", "3"], "cannot be used with SEQS"),
        (["dlq", "list", "--reason", "x"], "need a GROUP"),
        (["dlq", "list", "g", "--topic", "a..b"], "pattern 'a..b'"),
        (["dlq", "peek", "g", "x"], "'x' is not a seq"),
        (["schedule", "cancel"], "ID_OR_NAME"),
        (["info", "group"], "needs the name of a group"),
        (["info", "hub", "x"], "takes no name"),
        (["info", "weather"], "weather"),
        (["sub", "a", "--start", "yesterday"], "'yesterday' is not a position"),
        (["sub", "a", "-f", "%x"], "has no field '%x'"),
        (["sub", "a", "-f", "50%"], "has no field '%'"),
        (["sub", "a", "-f", "%v", "-o", "raw"], "cannot be used with"),
        (["sub", "a", "--no-ack"], "--no-ack needs --group"),
        (["sub", "a", "--timeout", "soon"], "'soon' is not a duration"),
        (["demo", "--rate", "0"], "0"),
        (["bench", "nothing"], "nothing"),
        (["bench", "--size", "big"], "'big' is not a size"),
    ],
)
def test_wrong_usage_is_told_in_one_line(fabric: Fabric, arguments: list[str], says: str) -> None:
    result = fabric(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    error = result.stderr.splitlines()[0]
    assert error.startswith("error: ")
    assert says in error
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FabricError("x"), 1),
        (JournalError("x"), 1),
        (client.BadMessage("x"), 2),
        (client.BadPattern("x"), 2),
        (client.ConnectionLost("x"), 3),
        (client.Timeout("x"), 3),
        (client.NotFound("x"), 4),
        (client.Forbidden("x"), 5),
        (client.AuthFailed("x"), 5),
        (client.GroupMismatch("x"), 6),
        (client.Conflict("x"), 6),
        (client.TimedOut("x"), 3),
        (client.NoResponders("x"), 4),
        (client.RemoteError("x"), 1),
        (client.HubError("x", code=Code.BAD_OPTION), 2),
        (client.HubError("x", code=Code.BUSY), 1),
        (client.Fenced("x"), 6),
        (JournalDamaged("x"), 9),
    ],
)
def test_exit_codes_are_stable(error: FabricError, code: int) -> None:
    assert exit_code_of(error) == code


def _raise(error: BaseException) -> None:
    raise error


def test_an_error_is_a_line_and_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda: _raise(FabricError("no room", "make some"))) == 1
    assert capsys.readouterr() == ("", "error: no room\nhint: make some\n")


def test_an_operating_system_error_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda: _raise(PermissionError(13, "Permission denied", "/x"))) == 1
    hint = "hint: check the owner and the mode of the file and of its folder\n"
    assert capsys.readouterr().err == f"error: Permission denied: /x\n{hint}"
    assert run(lambda: _raise(OSError(errno.ENOSPC, "No space left on device"))) == 1
    assert "hint: free some space" in capsys.readouterr().err
    assert run(lambda: _raise(OSError("odd"))) == 1
    assert capsys.readouterr().err == "error: odd\n"


def test_an_interrupt_is_130() -> None:
    assert run(lambda: _raise(KeyboardInterrupt())) == 130


def test_our_own_mistakes_are_not_hidden() -> None:
    with pytest.raises(AssertionError, match="impossible"):
        run(lambda: _raise(AssertionError("impossible")))


@pytest.mark.parametrize(("value", "shown"), [("1", True), ("0", False), ("", False)])
def test_a_traceback_is_shown_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str, shown: bool
) -> None:
    monkeypatch.setenv("FABRIC_DEBUG", value)
    run(lambda: _raise(FabricError("x")))
    assert ("Traceback" in capsys.readouterr().err) is shown


def test_without_a_hub_pub_and_sub_say_so(fabric: Fabric, tmp_path: object) -> None:
    for arguments in (["pub", "a", "b"], ["sub", "a"]):
        result = fabric(*arguments, "--url", f"ipc://{tmp_path}/nobody", "--connect-timeout", "50ms")
        assert result.exit_code == 3
        assert "error: no hub at ipc://" in result.stderr
        assert "hint: start one with 'fabric hub'" in result.stderr
