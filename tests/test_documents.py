"""Documents can be followed: their Python runs against a running hub, their commands and options exist."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest

import fabric_client
from docs import reference
from fabric.cli import main
from tests.hub.hostile import HubProcess
from tests.patience import PATIENCE_S
from tests.test_house import DOCUMENTS, FENCE, ROOT

# Pages about Spark need Spark, and a snapshot: tests/spark/test_pages.py sees to them.
PAGES: Final = [path for path in sorted((ROOT / "docs").glob("*.md")) if not path.name.startswith("spark")]
EXAMPLES: Final = [
    pytest.param(code, id=f"{name}-{i}")
    for name in ("README.md", *(str(path.relative_to(ROOT)) for path in PAGES))
    for i, code in enumerate(FENCE.findall((ROOT / name).read_text(encoding="utf-8")), 1)
]
# Loops without an end get one here, so that the page can show them without.
ENDLESS: Final = re.compile(r"(fab\.consume\((?:(?!timeout=)[^()])*)\)")


LETTERS: Final = re.compile(r"\b1207, 1210\b")  # seqs that a page speaks of, as if they were there


def dead_letters(url: str) -> list[int]:
    """Two of the group that the pages speak of."""
    with fabric_client.connect(url) as fab:
        fab.admin.groups.create("billing", "orders.*")
        fab.publish_many("orders.paid", [{"id": 1}, {"id": 2}])
        for message in fab.consume(group="billing", count=2):
            message.reject("it is only an example")
        fab.flush()
        letters = fab.admin.dead_letters("billing")
        end = time.monotonic() + PATIENCE_S
        while letters.list()["count"] < 2:  # a verdict is answered before its commit
            assert time.monotonic() < end
        return [row["seq"] for row in letters.list()["letters"]]


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
    if "dead_letters" in code:
        code = LETTERS.sub(", ".join(map(str, dead_letters(hub.url)[-2:])), code)
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


SPAN: Final = re.compile(r"`fabric\s+([a-z][^`]*)`")
SPOKEN_OF: Final = sorted(
    {
        " ".join(span.split())
        for path in DOCUMENTS
        for span in SPAN.findall(re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.S | re.M))
    }
)


@pytest.mark.parametrize("span", SPOKEN_OF)
def test_a_command_in_a_sentence_exists(span: str) -> None:
    """Commands and options that a page names without showing them: they exist."""
    command: click.Command = main
    context = click.Context(main, info_name="fabric")
    for word in re.split(r"[ =]", span):
        if isinstance(command, click.Group) and not word.startswith("-"):
            found = command.get_command(context, word)
            assert found is not None, f"fabric {span}: there is no {word}"
            command, context = found, click.Context(found, parent=context, info_name=word)
        elif word.startswith("-"):
            known = {name for parameter in command.get_params(context) for name in parameter.opts}
            assert word in known, f"fabric {span}: there is no option {word}"
