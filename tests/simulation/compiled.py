"""The simulator in machine code, for long runs: router and observer are translated by mypyc, which comes with mypy.

The build is a copy of the sources in a folder of its own, named for a hash of them, and it is used only when its lives
are those of the interpreter, line by line. Planted bugs and all tests run in the interpreter.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.simulation import world
from tests.simulation.sizes import SMALL

ROOT: Final = Path(__file__).parents[2]
BUILDS: Final = ROOT / ".simulation"
# What is copied: folder that imports start from, pattern within it.
SOURCES: Final = (
    (ROOT, "fabric/*.py"),
    (ROOT, "fabric/router/**/*.py"),
    (ROOT / "clients/python", "fabric_protocol/*.py"),
    (ROOT, "tests/simulation/[!t]*.py"),
    (ROOT, "tests/router/plain_patterns.py"),
)
# What is translated: all else takes little time, or is replaced in a life.
TRANSLATED: Final = (
    "fabric_protocol/(block|block_parts|columns|errors|messages|names|runs)",
    "fabric/records",
    "fabric/router/(?!admin/|advisories|change|paging|read/info|schedules/(cron|options)|searches).*",
    "tests/simulation/(.*acts|administration|asking|blocks|counting|disk|ending|facts|finish|judge|ledgers|limits|numbering|observer|order"
    "|pacing|people|publisher|reads|refreshing|stored|viewing|world)",
)
OPEN: Final = "from mypy_extensions import mypyc_attr\n\n\n@mypyc_attr(allow_interpreted_subclasses=True)\n"
WORTH_LIVES: Final = 100_000  # a run of so many lives is longer than the build
COMPARED: Final = 200  # lives that the build and the interpreter must live alike

BUILD: Final = """
import sys
from mypyc.build import mypycify
from setuptools import setup
options = ["--config-file=", "--explicit-package-bases", "--ignore-missing-imports"]
files, sys.argv = sys.argv[1:], ["setup.py", "--quiet", "build_ext", "--inplace"]
modules = mypycify([*options, *files], opt_level="1", debug_level="0", multi_file=True)
setup(name="simulation", packages=[], ext_modules=modules)
"""
LIVE: Final = r"""
import re
import sys
from tests.simulation.plan import draw
from tests.simulation.run import play
for seed in range(int(sys.argv[1])):
    trace = []
    life = play(draw(seed), trace)
    lines = [re.sub(r"<\w+[.]\w+: (\d+)>", r"\1", line) for line in trace]  # a name may have become its number
    print(*lines, life.steps, sorted(life.counts.items()), sep="\n")
"""


def is_compiled() -> bool:
    return not str(world.__file__).endswith(".py")


def enter(lives: int) -> None:
    """Go on in the build, if there is one or so many lives are worth it; return when there is none."""
    if is_compiled():
        return
    folder = BUILDS / _key()
    if not folder.exists() and (lives < WORTH_LIVES or not _build(folder)):
        return
    os.chdir(folder)
    os.execve(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]], _environment(folder))


def _key() -> str:
    found = hashlib.sha256(sys.version.encode())
    for name, source in sources():
        found.update(f"{name}\n{source}\n".encode())
    return found.hexdigest()[:16]


def sources() -> Iterator[tuple[str, str]]:
    for root, pattern in SOURCES:
        for path in sorted(root.glob(pattern)):
            yield path.relative_to(root).as_posix(), _translatable(path.read_text())


def _translatable(source: str) -> str:
    """A source as mypyc needs it: sizes that a life makes small are variables, an object is made by its class, and a
    part of the router may be interpreted."""
    names = "|".join({name: None for sizes in SMALL.values() for name in sizes})
    source = re.sub(rf"^({names}): Final\b(\[\w+\])? =", r"\1 =", source, flags=re.MULTILINE)
    source = source.replace("block = object.__new__(Block)", "block = Block(self.raw)")
    return re.sub(r"^class Part\b", f"{OPEN}class Part", source, flags=re.MULTILINE)


def _build(folder: Path) -> bool:
    """Make the build; False, with the reason on the screen, when it cannot be made."""
    print("translating the simulator into machine code; this takes some minutes ...", file=sys.stderr)
    draft = BUILDS / f"draft-{os.getpid()}"
    try:
        names = []
        for name, source in sources():
            names.append(name)
            path = draft / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        wanted = re.compile(f"({'|'.join(TRANSLATED)})[.]py")
        translated = [name for name in names if wanted.fullmatch(name) and not name.endswith("__init__.py")]
        _run(draft, BUILD, *translated)
        if _run(draft, LIVE, str(COMPARED)) != _run(ROOT, LIVE, str(COMPARED)):
            raise ValueError(f"one of the lives 0..{COMPARED - 1} differs from that of the interpreter")
        shutil.rmtree(draft / "build")
        draft.rename(folder)
    except (OSError, ValueError) as error:
        print(f"the simulator stays in the interpreter: {error}", file=sys.stderr)
        return False
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return True


def _run(folder: Path, program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=folder, env=_environment(folder), capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stdout.splitlines() if ": error: " in line]
        raise ValueError(done.stderr[-2_000:] or "\n".join(errors) or f"exit code {done.returncode}")
    return done.stdout


def _environment(folder: Path) -> dict[str, str]:
    """Modules are looked for in this folder before any other."""
    return {**os.environ, "PYTHONPATH": str(folder)}
