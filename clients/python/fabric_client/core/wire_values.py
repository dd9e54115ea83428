"""Values that can be sent. Other values are refused in the caller's own call, not in the thread that sends.

The wire has maps with text keys, lists, text, bytes, integers of 64 bits, floats, booleans and null.
"""

from collections.abc import Mapping
from typing import Final

from fabric_client.errors import BadMessage
from fabric_protocol import messages as m

DEPTH_MAX: Final = 16
INT_MIN, INT_MAX = -(1 << 63), (1 << 64) - 1
_HINT: Final = "text, bytes, numbers, booleans, None, and lists and maps of these can be sent"


def check(value: object, name: str, depth: int = 0) -> None:
    """Raise BadMessage unless the value can be sent; `name` is the name of the argument."""
    if isinstance(value, str):
        text(value, name)
    elif isinstance(value, int) and not isinstance(value, bool):
        if not INT_MIN <= value <= INT_MAX:
            raise BadMessage(f"{name} is a number of more than 64 bits: {value:.3e}", "use a smaller number, or text")
    elif value is None or isinstance(value, bool | float | bytes | bytearray):
        return
    elif depth >= DEPTH_MAX:
        raise BadMessage(f"{name} is nested more than {DEPTH_MAX} deep", "use a flatter value")
    elif isinstance(value, Mapping):
        for key, one in value.items():
            if not isinstance(key, str):
                raise BadMessage(f"{name} has the key {key!r}, which is not text", "use str as keys")
            text(key, f"a key of {name}")
            check(one, key if depth == 0 else f"{name}.{key}", depth + 1)
    elif isinstance(value, list | tuple):
        for at, one in enumerate(value):
            check(one, f"{name}[{at}]", depth + 1)
    else:
        raise BadMessage(f"{name} is {type(value).__name__} ({value!r:.60}), which cannot be sent", _HINT)


def text(value: object, name: str) -> str:
    """The value, if it is text that UTF-8 can encode."""
    if not isinstance(value, str):
        raise BadMessage(f"{name} is {type(value).__name__} ({value!r:.60}), not text", "use a str")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadMessage(
            f"{name} has characters that UTF-8 cannot encode: {value!a:.60}",
            "such text often comes from file names; encode it with errors='replace', or send bytes",
        ) from None
    return value


def message(said: m.ToHub) -> m.ToHub:
    """The message, if all its fields can be sent."""
    for name, value in zip(said._fields, said, strict=True):
        check(value, name)
    return said


def reason(given: object, chars_max: int) -> str:
    """The text of a reason, cut to size. It may come from any exception, so characters that UTF-8 cannot encode are
    replaced: a verdict must not fail because of its reason."""
    if not isinstance(given, str):
        raise BadMessage(f"reason is {type(given).__name__} ({given!r:.60}), not text", "use a str")
    return given[:chars_max].encode(errors="replace").decode()
