"""The kind of a command, as the second byte of its first frame tells it before the frames are decoded."""

from typing import Final

from fabric_protocol.wire import Verb

Frames = list[bytes]

_PUBLISHES: Final = (Verb.PUB, Verb.TXN)
_QUESTIONS: Final = (Verb.PING, Verb.GET, Verb.INFO)


def is_publish(frames: Frames) -> bool:
    """Whether a command is confirmed by a commit."""
    return len(frames) == 2 and len(frames[0]) > 1 and frames[0][1] in _PUBLISHES


def is_question(frames: Frames) -> bool:
    """Whether a command changes nothing, so that only its answer matters."""
    return bool(frames) and len(frames[0]) > 1 and frames[0][1] in _QUESTIONS
