"""docs/glossary.md holds each word once, in order and in one sentence."""

import re
from typing import Final

import pytest

from tests.test_house import LINK, ROOT

PAGE: Final = ROOT / "docs/glossary.md"
PARTS: Final = dict(
    re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
)
OURS: Final = "The words of Fabric"
FIELD: Final = "The words of the field"
LIFECYCLE: Final = {"ready", "leased", "retrying", "suspect", "settled", "dead"}
SENTENCE_END: Final = re.compile(r"[.!?](?=\s|$)")


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
    assert set(entries(OURS)) >= LIFECYCLE


def test_a_word_of_the_field_leads_to_one_of_ours() -> None:
    anchors = {word.replace(" ", "-") for word in entries(OURS)}
    for word, text in entries(FIELD).items():
        links = [link.removeprefix("#") for link in LINK.findall(text)]
        assert links, word
        assert set(links) <= anchors, word
