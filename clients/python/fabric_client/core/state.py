"""What a session can be in; `session` draws the ways between them."""

from enum import Enum


class State(Enum):
    OPENING = "a socket is open, HELLO is on its way"
    LIVE = "the hub has welcomed us"
    LOST = "no connection; a new socket is due at `reopen_at`"
    FAILED = "the hub refused us for good"
    CLOSED = "we said goodbye"
