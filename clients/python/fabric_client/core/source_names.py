"""The name of a numbered source, which tells it from the name of a producer that numbers its messages 1, 2, 3, …"""

from typing import Final

from fabric_client.errors import BadMessage

SOURCE_CHARS_MAX: Final = 300  # the hub's bound


class SourceName(str):
    """The name of a numbered source."""

    __slots__ = ()


class Enrolling(str):
    """The producer of a client that enrols its key, and publishes nothing: HELLO names none, and says `enrol`."""

    __slots__ = ()


ENROLLING: Final = Enrolling("none")


def producer_name(producer: str | None, source: str | None) -> str | None:
    """The name under which a client publishes; that of a source is a `SourceName`."""
    if source is None:
        return producer
    if producer is not None:
        raise BadMessage("producer and source exclude each other", "a numbered source is a producer: leave one out")
    if not isinstance(source, str) or not 0 < len(source) <= SOURCE_CHARS_MAX:
        raise BadMessage(
            f"source is a name of 1..{SOURCE_CHARS_MAX} characters, not {source!r:.60}",
            "name what the positions count, such as 'kafka:<cluster>:<topic>:<partition>'",
        )
    return SourceName(source)
