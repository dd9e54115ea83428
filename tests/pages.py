"""Runs the commands and the Python of a page, in order, in a folder of their own.

Commands are lines `    $ fabric …` (the lines after them are their output), lines `    fabric …`, and the lines of
fences for the shell. Paths and addresses of other machines become those of the test. Commands that would wait for ever
get an end. What needs other machines is left out.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.patience import PATIENCE_S

ELSEWHERE: Final = re.compile(
    r"s3://|sftp://|spark-submit|spark-class|\bpip\b|venv|docker|^--conf|^fabric (hub|demo|bench)\b"
)
EXIT: Final = re.compile(r"\(exit code (\d+)\)")
ENDLESS: Final = re.compile(r"(fab\.consume\((?:(?!timeout=)[^()])*)\)")
_NUMBER: Final = re.compile(r"\d[\d,.:TZdhms]*")  # or a time, a duration
_MARKS: Final = {"\0": r"[\d,.:TZdhms]+", "\1": ".*", "\2": r"(?:now|\S+ ago)"}
_UNIT: Final = re.compile(r"(?:[KMG]i)?B")
# As a terminal shows it, which is what a page shows.
OUTPUTS: Final = {f"FABRIC_{name}_OUTPUT": "text" for name in ("PUB", "SUB", "GET", "DLQ_PEEK")} | {
    f"FABRIC_{name}_OUTPUT": "table"
    for name in ("QUEUE_CREATE", "TOPIC_CREATE", "SNAPSHOT_CREATE", "SNAPSHOT_LIST", "DLQ_LIST", "DLQ_REDRIVE")
}


class Step(NamedTuple):
    kind: str  # python or shell
    text: str
    shown: tuple[str, ...] = ()


def steps(page: Path) -> list[Step]:
    found: list[Step] = []
    fence: list[str] | None = None
    kind = ""
    shows = False  # whether indented lines belong to the command before them
    for line in page.read_text(encoding="utf-8").partition("\n## Reference\n")[0].splitlines():
        if fence is not None:
            if line == "```":
                found += _of_fence(kind, fence)
                fence = None
            else:
                fence.append(line)
        elif line.startswith("```"):
            fence, kind, shows = [], line[3:], False
        elif line.startswith("    $ "):
            found.append(Step("shell", line[6:]))
            shows = True
        elif line.startswith("    fabric ") and not shows:
            found.append(Step("shell", line[4:]))
        elif line.startswith("    ") and shows:
            found[-1] = found[-1]._replace(shown=(*found[-1].shown, line[4:]))
        else:
            shows = False
    return found


def _of_fence(kind: str, lines: list[str]) -> list[Step]:
    if kind == "python":
        return [Step("python", "\n".join(lines) + "\n")]
    whole = "\n".join(lines).replace("\\\n", " ").splitlines() if kind == "sh" else []
    return [Step("shell", line) for line in whole if line.strip()]


class Place:
    """Where a page is tried: a folder with the journal of a running hub in `fabric-data`."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self._behind: list[subprocess.Popen[bytes]] = []
        command = folder / "bin" / "fabric"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m fabric "$@"\n')
        command.chmod(0o755)
        (folder / "send-mail").write_text("#!/bin/sh\ncat > /dev/null\n")
        (folder / "send-mail").chmod(0o755)
        self.environment = {
            **os.environ,
            **OUTPUTS,
            "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH", "")])),
            "FABRIC_URL": url,
            "FABRIC_DATA": str(folder / "fabric-data"),
        }

    def here(self, text: str) -> str:
        """A command, a script or what they show, with the paths and addresses of the test."""
        text = text.replace("/snapshots/monday", "/snapshots")
        for there, mine in (
            ("/var/lib/fabric-snapshots", "snapshots"),
            ("/var/lib/fabric", "fabric-data"),
            *((f"/{name}", name) for name in ("snapshots", "lake", "reports", "mnt/backup")),
        ):
            text = re.sub(rf"(?<![\w/.]){there}\b", str(self.folder / mine), text)
        return text.replace("tcp://hub:7171", self.url).replace("tcp://127.0.0.1:7171", self.url)

    def run(self, step: Step) -> None:
        """Raises AssertionError when it does something else than the page says."""
        oldest = rf"$(ls -d {self.folder}/snapshots/2* | head -1)"
        command = self.here(re.sub(r"/snapshots/\d{8}T\S+", oldest, re.sub(r"\s{2,}#.*", "", step.text)))
        if ELSEWHERE.search(command):
            return
        if command.endswith("&"):
            self._start(command[:-1])
            return
        if re.match(r"fabric sub\b(?!.*--(count|timeout))", command):
            command += " --timeout 2s"
        code = next((int(found[1]) for line in step.shown if (found := EXIT.fullmatch(line))), 0)
        lines = [self.here(line) for line in step.shown if not EXIT.fullmatch(line)]
        end = time.monotonic() + PATIENCE_S
        while True:
            done = self._shell(command)
            if done.returncode == code:
                break
            # A responder in the background needs a moment until it is there.
            assert command.startswith("fabric request "), f"{step.text}\n{done.stdout}{done.stderr}"
            assert time.monotonic() < end, f"{step.text}\n{done.stdout}{done.stderr}"
        if lines:
            assert expression(lines).fullmatch(done.stdout.rstrip("\n") + "\n"), f"{step.text}\n{done.stdout}"

    def _shell(self, command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def _start(self, command: str) -> None:
        quiet = subprocess.DEVNULL
        self._behind.append(
            subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=self.folder, env=self.environment, stderr=quiet)
        )

    def close(self) -> None:
        for process in self._behind:
            process.kill()
            process.wait(PATIENCE_S)


def expression(lines: list[str]) -> "re.Pattern[str]":
    """What the lines of a page stand for: `…` is anything, a number any number, white space any white space."""
    return re.compile("".join(_expressions(lines)))


def _expressions(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if line.strip() == "…":
            yield r"(?:.*\n)*"
            continue
        parts = []
        for word in re.sub(r"\b\S+ ago\b", "\2", line).split():
            if _UNIT.fullmatch(word):
                parts.append(_UNIT.pattern)
                continue
            marked = _NUMBER.sub("\0", word).replace("…", "\1")
            parts.append(re.sub("[\0\1\2]", lambda mark: _MARKS[mark[0]], re.escape(marked)))
        yield r"[ ]*" + r"[ ]+".join(parts) + r"[ ]*\n"
