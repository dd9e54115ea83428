"""The closed family of errors, each with its wire code.

There are three kinds. An error of the peer is a `ProtocolError` with a stable code, which is sent back on the wire; the
hub continues. An error of the environment (disk full, port taken) is a `FabricError` that says what was tried and, in
`.hint`, what to do next. An error of this program is an assertion, which is not here.
"""

from enum import IntEnum
from typing import Any


class Code(IntEnum):
    """Stable error codes. A client that does not know a code treats it by its first digit."""

    # 1xx: the frame is malformed
    BAD_FRAME = 101
    BAD_META = 102
    UNKNOWN_VERB = 103
    UNSUPPORTED_VERSION = 104
    BAD_BLOCK = 105
    TOO_LARGE = 106
    # 2xx: the session
    NO_SESSION = 201
    SESSION_EXISTS = 202
    AUTH_FAILED = 203
    FORBIDDEN = 204
    TAKEN_OVER = 205
    # 3xx: publishing
    BAD_TOPIC = 301
    TOPIC_FULL = 303
    DISK_FULL = 304
    OVERRUN = 305
    SEQUENCE_GAP = 306
    FENCED = 307
    PSEQ_TAKEN = 308
    BAD_OPTION = 310
    # 4xx: consuming
    BAD_PATTERN = 401
    GROUP_MISMATCH = 402
    BAD_ORDINAL = 403
    NOT_FOUND = 404
    STALE = 405
    NO_RESPONDERS = 406
    TIMED_OUT = 407
    CONFLICT = 409
    # 5xx: the hub
    INTERNAL = 501
    SHUTTING_DOWN = 502
    BUSY = 503


class FabricError(Exception):
    """A failure; `str(error)` says what failed, `.hint` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")  # tracebacks show notes


class ProtocolError(FabricError):
    """A message of the peer cannot be accepted. Has the code that is sent back on the wire, and details.

    If `retry_ms` is above zero, the peer may send the same request again after that time.
    """

    def __init__(self, code: Code, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.code = code
        self.fields = fields


class BlockError(ProtocolError):
    """The bytes are not a well-formed block."""

    def __init__(self, message: str, code: Code = Code.BAD_BLOCK) -> None:
        super().__init__(code, message)
