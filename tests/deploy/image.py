"""Reads a Containerfile and does its steps in a folder, without a container engine.

Absolute paths of the image become paths in the folder. Commands that need root, such as useradd, are replaced by ones
that do nothing. A stage starts with the image's Python: a new environment in `usr/local`.
"""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from tests.patience import PATIENCE_S

AS_ROOT: Final = ("groupadd", "useradd", "chown")
KNOWN: Final = frozenset(
    ["FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "CMD"]
)


class Instruction(NamedTuple):
    name: str
    text: str


def instructions(path: Path) -> list[Instruction]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found = [Instruction(*line.split(None, 1)) for line in whole.splitlines() if line.strip()]
    assert {one.name for one in found} <= KNOWN
    return found


def ignored(path: str, patterns: Path) -> bool:
    """Whether a path of the build context is left out; the last pattern that matches decides."""
    result = False
    for line in patterns.read_text(encoding="utf-8").splitlines():
        pattern = line.lstrip("!")
        if not pattern or pattern.startswith("#"):
            continue
        parts = path.split("/")
        prefixes = ["/".join(parts[: i + 1]) for i in range(len(parts))]
        anywhere = pattern.startswith("**/")
        tried = parts if anywhere else prefixes
        if any(fnmatch.fnmatchcase(one, pattern.removeprefix("**/")) for one in tried):
            result = not line.startswith("!")
    return result


class Image:
    def __init__(self, path: Path, context: Path, folder: Path) -> None:
        self._context = context
        self._folder = folder
        self._steps = instructions(path)
        self._roots = {"": folder / "image"}
        self._root = folder
        self._work = folder
        self._prefix = ""  # before absolute paths
        self.variables: dict[str, str] = {}
        self.command: list[str] = []
        self.health: list[str] = []
        self.stop_signal = ""
        self.user = ""
        self.volumes: list[str] = []

    def build(self) -> None:
        for step in self._steps:
            getattr(self, f"_{step.name.lower()}", lambda text: None)(step.text)

    def read(self) -> None:
        """As `build`, without the steps that make files; paths stay those of the image."""
        self._prefix = ""
        for step in self._steps:
            if step.name not in ("FROM", "COPY", "RUN", "WORKDIR"):
                getattr(self, f"_{step.name.lower()}", lambda text: None)(step.text)

    def here(self, text: str) -> str:
        """A text of the image with the paths of the folder."""
        return re.sub(r"(?<!\w)(/(?:opt/fabric|var/lib|src|usr/local)\b)", rf"{self._prefix}\1", text)

    def environment(self, **more: str) -> dict[str, str]:
        own = {name: self.here(value) for name, value in self.variables.items()}
        own["PATH"] = f"{self._folder}/as-root:{own.get('PATH', f'{self._root}/usr/local/bin:/usr/bin:/bin')}"
        proxies = {name: os.environ[name] for name in os.environ if re.search("proxy|^PIP_|^SSL_|_CA_", name, re.I)}
        return {**proxies, "HOME": str(self._folder), **own, **more}

    def run(self, *command: str, **more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command, cwd=self._work, env=self.environment(**more), capture_output=True, text=True, timeout=PATIENCE_S
        )

    # The instructions.

    def _from(self, text: str) -> None:
        name = text.rpartition(" AS ")[2] if " AS " in text else ""
        self._root = self._work = self._folder / (name or "image")
        self._prefix = str(self._root)
        self._roots[name] = self._root
        self.variables, self.command = {}, []
        (self._root / "usr").mkdir(parents=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self._root / "usr/local"], check=True)
        tools = self._folder / "as-root"
        tools.mkdir(exist_ok=True)
        for tool in AS_ROOT:
            (tools / tool).write_text(f'#!/bin/sh\necho {tool} "$@" >> {self._folder}/as-root.log\n')
            (tools / tool).chmod(0o755)

    def _workdir(self, text: str) -> None:
        self._work = Path(self.here(text))
        self._work.mkdir(parents=True, exist_ok=True)

    def _copy(self, text: str) -> None:
        words = text.split()
        stage = next((word.partition("=")[2] for word in words if word.startswith("--from=")), None)
        *sources, target = [word for word in words if not word.startswith("--")]
        for source in sources:
            if stage is not None:
                assert source == target
                place = Path(self.here(target))
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copytree(f"{self._roots[stage]}{source}", place, symlinks=True)
                self._move(place, self._roots[stage])
                continue
            origin = self._context / source
            if origin.is_file():
                assert not ignored(source, self._context / ".containerignore"), source
                shutil.copy(origin, self._work / target)
                continue
            for path in sorted(origin.rglob("*")):
                name = str(path.relative_to(self._context))
                if path.is_file() and not ignored(name, self._context / ".containerignore"):
                    place = self._work / target / path.relative_to(origin)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, place)

    def _move(self, place: Path, stage: Path) -> None:
        """An environment has its own path in its scripts, which is the same in both stages of an image."""
        for script in (place / "bin").iterdir():
            if script.is_symlink():
                if str(script.readlink()).startswith(str(stage)):
                    moved = str(script.readlink()).replace(str(stage), str(self._root), 1)
                    script.unlink()
                    script.symlink_to(moved)
            elif (content := script.read_bytes()).startswith(b"#!"):
                script.write_bytes(content.replace(str(stage).encode(), str(self._root).encode()))

    def _run(self, text: str) -> None:
        done = self.run("sh", "-ec", self.here(text))
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"

    def _env(self, text: str) -> None:
        self.variables |= dict(pair.split("=", 1) for pair in text.split())

    def _user(self, text: str) -> None:
        self.user = text

    def _volume(self, text: str) -> None:
        self.volumes.append(text)

    def _stopsignal(self, text: str) -> None:
        self.stop_signal = text

    def _healthcheck(self, text: str) -> None:
        self.health = [self.here(word) for word in json.loads(text.partition("CMD ")[2])]

    def _cmd(self, text: str) -> None:
        self.command = [self.here(word) for word in json.loads(text)]
