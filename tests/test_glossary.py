"""docs/glossary.md holds each word once, in order and in one sentence; documents use its nouns for programs."""

import re
from pathlib import Path
from typing import Final

import pytest

from fabric.router.groups.lifecycle import State
from tests.test_house import DOCUMENTS, LINK, ROOT

PAGE: Final = ROOT / "docs/glossary.md"
PARTS: Final = dict(
    re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
)
OURS: Final = "The words of Fabric"
FIELD: Final = "The words of the field"
SENTENCE_END: Final = re.compile(r"[.!?](?=\s|$)")
GENERATED: Final = ROOT / "docs/cli.md"  # its words are those of the commands
WRITTEN: Final = [
    path for path in (*DOCUMENTS, *ROOT.glob("spark/*.md"), *ROOT.glob("tests/**/*.md")) if path != GENERATED
]
# Pronouns that stand for a program or a part of one; the glossary has nouns for all of them.
RIDDLES: Final = re.compile(
    r"\b(?:who|whom|whoever|nobody|somebody|someone|everybody|everyone|anybody|anyone|no one)\b", re.IGNORECASE
)


def entries(part: str) -> dict[str, str]:
    found = re.findall(r"^### ([^\n]+)\n\n(.*?)(?=\n\n### |\s*\Z)", PARTS[part], re.DOTALL | re.MULTILINE)
    assert len(found) == PARTS[part].count("\n### ")
    return {word: " ".join(text.split()) for word, text in found}


def test_there_are_two_parts() -> None:
    assert list(PARTS) == [OURS, FIELD]


@pytest.mark.parametrize("part", [OURS, FIELD])
def test_words_are_in_order(part: str) -> None:
    words = re.findall(r"^### (.+)$", PARTS[part], re.MULTILINE)
    assert words == sorted(words, key=str.casefold)


def test_a_word_is_there_once() -> None:
    words = re.findall(r"^#+ (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len({word.casefold() for word in words}) == len(words)


@pytest.mark.parametrize("part", [OURS, FIELD])
def test_a_word_has_one_sentence(part: str) -> None:
    wrong = [word for word, text in entries(part).items() if len(SENTENCE_END.findall(text)) != 1 or text[-1] != "."]
    assert wrong == []


def test_the_words_of_the_lifecycle_are_there() -> None:
    assert set(entries(OURS)) >= set(State)


def test_a_word_of_the_field_leads_to_one_of_ours() -> None:
    anchors = {word.replace(" ", "-") for word in entries(OURS)}
    for word, text in entries(FIELD).items():
        links = [link.removeprefix("#") for link in LINK.findall(text)]
        assert links, word
        assert set(links) <= anchors, word


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name
)
def test_a_page_leads_to_the_glossary(path: Path) -> None:
    links = LINK.findall(path.read_text(encoding="utf-8"))
    assert path in (PAGE, GENERATED) or any(link.partition("#")[0].endswith("glossary.md") for link in links)


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_names_its_subjects(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [f"{number}: {line}" for number, line in enumerate(lines, 1) if RIDDLES.search(line)] == []
