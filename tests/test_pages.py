"""README and the pages in docs are run from top to bottom: their commands and their Python, each page on a hub.

docs/admin.md has a test of its own, which compares every word; so has docs/production.md, in tests/deploy, which stops
and starts the hub. Pages about Spark are run in tests/spark.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest

from docs.reference import helps
from fabric.cli import main
from fabric.cli.support.hub_process import HubProcess
from tests import pages
from tests.test_house import ROOT

PAGES: Final = [ROOT / "README.md"] + [
    path
    for path in sorted((ROOT / "docs").glob("*.md"))
    if not path.name.startswith(("spark", "admin", "production"))
    and any(step.kind == "shell" for step in pages.steps(path))
]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[pages.Place]:
    with HubProcess(tmp_path / "fabric-data") as hub:
        trying = pages.Place(tmp_path, hub.url)
        yield trying
        trying.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_page_can_be_followed(page: Path, place: pages.Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FABRIC_URL", place.url)
    monkeypatch.chdir(place.folder)
    for step in pages.steps(page):
        if step.kind == "shell":
            place.run(step)
        elif page.name == "README.md":  # tests/test_documents.py runs those of other pages, each by itself
            code = pages.ENDLESS.sub(r"\1, timeout=0.2)", place.here(step.text))
            exec(compile(code, page.name, "exec"), {"__name__": "__main__"})


def test_commands_are_found_in_pages() -> None:
    assert {"README.md", "cli.md", "retention.md", "snapshots.md", "ids.md"} <= {path.name for path in PAGES}
    steps = pages.steps(ROOT / "docs/cli.md")
    assert pages.Step("shell", "fabric request text.upper 'hello'", ("HELLO",)) in steps


HELP_EXAMPLES: Final = [
    pytest.param(line.strip(), id=line.strip())
    for text in helps().values()
    for line in text.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    if re.search(r"\bfabric ", line)
]


@pytest.mark.parametrize("line", HELP_EXAMPLES)
def test_an_example_of_a_help_text_is_understood(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not run, but read as the command reads it: commands and options exist, values are right."""
    (shell,) = re.findall(r"(?:^|\| )fabric (.*)$", line.replace("$(date +%F)", "today"))
    words: list[str] = []
    for word in shlex.split(re.split(r"\s{3,}", shell)[0]):
        if word in ("|", ">", "<", "&&", "2>>"):
            break
        words.append(word)
    context = main.make_context("fabric", list(words))
    group: click.Command = main
    while isinstance(group, click.Group):
        name, command, words = group.resolve_command(context, words)
        assert command is not None
        context = command.make_context(name, list(words), parent=context)
        group = command
