"""What the documents show can be done: their Python is run against a live hub, their commands and options exist."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from docs import reference
from fabric.cli import main
from tests.hub.hostile import HubProcess
from tests.test_house import FENCE, ROOT

EXAMPLES: Final = [
    pytest.param(code, id=f"{name}-{i}")
    for name in ("README.md", "docs/python.md", "docs/delays.md", "docs/ids.md")
    for i, code in enumerate(FENCE.findall((ROOT / name).read_text(encoding="utf-8")), 1)
]
# Loops without an end get one here, so that the page can show them without.
ENDLESS: Final = re.compile(r"(fab\.consume\((?:(?!timeout=)[^()])*)\)")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    process = HubProcess(tmp_path_factory.mktemp("documents"))
    yield process
    process.stop()


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_runs(code: str, hub: HubProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FABRIC_URL", hub.url)
    monkeypatch.chdir(tmp_path)
    code = ENDLESS.sub(r"\1, timeout=0.2)", code).replace("tcp://127.0.0.1:7171", hub.url)
    exec(compile(code, "<example>", "exec"), {"__name__": "__main__"})


def squeezed(text: str) -> str:
    """Without white space: where lines are wrapped differs from one version of click to another."""
    return re.sub(r"\s", "", text)


def test_every_command_and_option_is_in_the_reference() -> None:
    page = reference.PAGE.read_text(encoding="utf-8")
    shown = {slot[1]: squeezed(slot[2]) for slot in reference.SLOT.finditer(page)}
    contexts = {context.command_path: context.command for context in reference.commands(main, "fabric")}
    assert set(shown) == set(contexts), "run python docs/reference.py"
    for path, command in contexts.items():
        for parameter in command.params:
            wanted = (
                [*parameter.opts, getattr(parameter, "help", None) or ""]
                if parameter.param_type_name == "option"
                else []
            )
            assert all(squeezed(text) in shown[path] for text in wanted), f"{path}: run python docs/reference.py"
