"""The states of a session; `session` draws the transitions."""

from enum import Enum


class State(Enum):
    OPENING = "a socket is open and HELLO was sent"
    LIVE = "the hub has answered with WELCOME"
    LOST = "no connection; a new socket is due at `reopen_at`"
    FAILED = "the hub refused the client for good"
    CLOSED = "the client was closed"
