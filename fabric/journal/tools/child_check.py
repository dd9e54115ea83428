"""Runs a check in a child process: a damaged file can make LMDB abort the process that reads it.

A check is a function of a module: `check(tell, *arguments)`. Its arguments and all that it tells are values of JSON.
The child imports the module of the check and nothing else.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

Tell = Callable[..., None]
Check = Callable[..., None]

ROOT: Final = Path(__file__).parents[3]
_PROGRAM: Final = (
    "import sys; from {check.__module__} import {check.__name__} as check; "
    "from fabric.journal.tools.child_check import run; run(check, sys.argv[1])"
)


class ChildEnded(Exception):
    """The child has ended before its check had: `code` is its exit code, below 0 the signal that killed it."""

    def __init__(self, code: int) -> None:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        super().__init__(f"the process of the check {how}")
        self.code = code


def in_child(check: Check, *arguments: Any) -> Iterator[list[Any]]:
    """Run a check in a child; yields the values of each call of `tell`. Raises ChildEnded after the last of them."""
    import subprocess  # the child does not need it

    command = [sys.executable, "-P", "-S", "-c", _PROGRAM.format(check=check), json.dumps(arguments)]
    roots = [str(ROOT), *filter(None, sys.path)]  # what this process can import, the child can
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(roots))
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            yield json.loads(line)
    if child.returncode:
        raise ChildEnded(child.returncode)


def run(check: Check, arguments: str) -> None:
    """The child's side."""
    check(lambda *values: print(json.dumps(values), flush=True), *json.loads(arguments))
