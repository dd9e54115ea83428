"""docs/glossary.md holds each word once, in order and in one sentence; documents and code use its nouns."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
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

# Metaphors that need the code to be understood, and stood for a plain word of the domain.
METAPHORS: Final = re.compile(
    r"\b(?:bur(?:y|ies|ied)|strikes?|struck|rings?|rung|mailed|digs?|dug|stir(?:s|red)?|hasty|"
    r"(?:gives?|gave|given) way|forsak(?:e|es|en)|vouch(?:es|ed)?|in vain|parcels?|shelf|topicbook|"
    r"(?:the|a) wall(?! clock)|reap(?:s|ed)?|reviv(?:e|es|ed)|storms?)\b",
    re.IGNORECASE,
)
CODE: Final = sorted([*(ROOT / "fabric").rglob("*.py"), *(ROOT / "clients/python").rglob("*.py")])


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


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Line numbers and lines of the comments and docstrings of a module, and of the texts of its errors."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False):
                docstring = node.body[0]
                lines = source.splitlines()[docstring.lineno - 1 : docstring.end_lineno]
                yield from enumerate(lines, docstring.lineno)
        elif isinstance(node, ast.Raise):
            texts = [part for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            yield from ((text.lineno, str(text.value)) for text in texts)


def riddles(source: str) -> list[str]:
    """The lines of a module that call a program by a pronoun, or a fact by a metaphor."""
    found = {
        f"{number}: {line.strip()}" for number, line in prose(source) if RIDDLES.search(line) or METAPHORS.search(line)
    }
    return sorted(found, key=lambda line: int(line.partition(":")[0]))


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_code_names_its_subjects(path: Path) -> None:
    assert riddles(path.read_text(encoding="utf-8")) == []


def test_a_riddle_is_noticed() -> None:
    source = '''"""Who asks."""
def f():
    """A timer.

    It rings in vain.
    """
    # nobody waits
    x = "whoever"  # a plain comment
    raise ValueError(f"{x}: somebody listens")
'''
    assert [line.partition(":")[0] for line in riddles(source)] == ["1", "5", "7", "9"]
