"""The grammar of topics and patterns, for hub and clients.

A topic is words joined by dots. In a pattern `*` stands for one word, `#` for zero or more, and `>` as the last word
for one or more.
"""

import re
from typing import Final

from fabric_protocol.block import TOPIC_BYTES_MAX
from fabric_protocol.errors import Code, ProtocolError

WORDS_MAX: Final = 16
DEAD: Final = "$dlq."  # + group: the topic of its dead letters
DEAD_ALIAS: Final = ".DLQ"  # group + this: another way to write that topic
REDRIVE: Final = "$redrive."  # + group: the topic of its redriven messages, which only this group gets
_WORD: Final = re.compile(r"[^.*#>\s\x00-\x1f\x7f-\x9f]+")
_TOPIC: Final = re.compile(rf"{_WORD.pattern}(?:\.{_WORD.pattern}){{0,{WORDS_MAX - 1}}}")


def check_topic(topic: str) -> None:
    """Raise unless `topic` is a literal topic name."""
    if topic.isascii() and len(topic) <= TOPIC_BYTES_MAX and _TOPIC.fullmatch(topic):
        return  # most are so, and a block can have thousands
    words = _words(topic, "topic", Code.BAD_TOPIC)
    for word in words:
        if not _WORD.fullmatch(word):
            raise ProtocolError(
                Code.BAD_TOPIC,
                f"topic {_shown(topic)} has a bad word {_shown(word)}; words are non-empty, without . * # > or spaces",
            )


def canonical(pattern: str) -> str:
    """The pattern in its stored form: `>` becomes `*.#`, and in a run with `#` the `*` come first."""
    words = _words(pattern, "pattern", Code.BAD_PATTERN)
    if words[-1] == ">":
        words[-1:] = ["*", "#"]
    out: list[str] = []
    stars, hash_seen = 0, False
    for word in [*words, None]:
        if word == "*":
            stars += 1
        elif word == "#":
            hash_seen = True
        else:
            out += ["*"] * stars + (["#"] if hash_seen else [])
            stars, hash_seen = 0, False
            if word is not None:
                if not _WORD.fullmatch(word):
                    raise ProtocolError(Code.BAD_PATTERN, f"pattern {_shown(pattern)} has a bad word {_shown(word)}")
                out.append(word)
    return ".".join(out)


def unaliased(name: str) -> str:
    """A topic or pattern as it is stored: `<group>.DLQ` is another way to write `$dlq.<group>`.

    The alias is for requests only. As a topic of its own, it would match `orders.#`, and the group would get its own
    dead letters again.
    """
    if name.endswith(DEAD_ALIAS) and len(name) > len(DEAD_ALIAS) and not name.startswith("$"):
        return DEAD + name.removesuffix(DEAD_ALIAS)
    return name


def dead_letter_group(name: str) -> str:
    """The group of dead letters that are named by the group, by `<group>.DLQ` or by `$dlq.<group>`."""
    return unaliased(name).removeprefix(DEAD)


def _words(name: str, what: str, code: Code) -> list[str]:
    """The words of a name that is not too long."""
    words = name.split(".")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ProtocolError(code, f"{what} {_shown(name)} is not text that UTF-8 can hold") from None
    if len(words) > WORDS_MAX or size > TOPIC_BYTES_MAX:
        raise ProtocolError(code, f"{what} {_shown(name)} is over {WORDS_MAX} words or {TOPIC_BYTES_MAX} bytes")
    return words


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
