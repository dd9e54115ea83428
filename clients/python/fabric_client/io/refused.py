"""Words for a handshake that failed: what the hub and this client do not agree on, and what to do."""

from typing import Final

from fabric_client.destination import Destination
from fabric_client.errors import KEY_UNKNOWN_HINT, AuthFailed
from fabric_client.io.dealer import Ending
from fabric_client.io.greeting import Greetings

FINAL: Final = (Ending.KEY_REFUSED, Ending.MISMATCH, Ending.UNTRUSTED)
_GET_KEY: Final = (
    "join it with 'fabric join LINK'; an address alone has no key: leave it out to use a context, or give credentials"
)
_WRONG_PLACE: Final = "check the address; if the hub was set up anew, join it again with 'fabric join LINK --replace'"


class Refused:
    """The words of one client."""

    def __init__(self) -> None:
        self._greetings = Greetings()
        self._last: tuple[Ending, str] | None = None

    def error(self, ending: Ending, url: str, to: Destination) -> AuthFailed:
        """The error for a failed handshake with the hub at an address."""
        self._last = (ending, url)
        if ending is Ending.HANDSHAKE:
            ending = self._guess(url, to)
        return AuthFailed(*_words(ending, url, to), fields={"handshake": ending.name.lower()})

    def again(self, to: Destination) -> AuthFailed | None:
        """The last error; the greeting may have told more meanwhile."""
        return None if self._last is None else self.error(*self._last, to)

    def is_final(self, ending: Ending, url: str, to: Destination) -> bool:
        """Whether the same connection would be refused again. A hub that ends a handshake is perhaps being stopped, so
        its key may be right after all; but a hub that wants encryption goes on to want it."""
        return ending in FINAL or (ending is Ending.HANDSHAKE and self._guess(url, to) is Ending.MISMATCH)

    def _guess(self, url: str, to: Destination) -> Ending:
        """The peer ended the handshake and did not say why: ask for its greeting."""
        match self._greetings.mechanism(url), to.keys is not None:
            case ("CURVE", True):
                return Ending.UNTRUSTED
            case ("CURVE", False) | ("NULL", True):
                return Ending.MISMATCH
        return Ending.HANDSHAKE


def _words(ending: Ending, url: str, to: Destination) -> tuple[str, str]:
    """What is wrong, and what to do."""
    trust = f"{to.origin} trusts" if to.origin else "the credentials trust"
    says = f"{to.origin} says" if to.origin else "the credentials say"
    match ending:
        case Ending.KEY_REFUSED:
            return f"the key of this client is not known to the hub at {url}", KEY_UNKNOWN_HINT
        case Ending.UNCHECKED:
            return f"the hub at {url} cannot check keys now", "look at the log of the hub"
        case Ending.UNTRUSTED:
            return f"the hub at {url} is not the one that {trust}: it has another key", _WRONG_PLACE
        case Ending.MISMATCH if to.keys is None:
            hint = f"{_GET_KEY}; the address is from {to.origin}" if to.origin else _GET_KEY
            return f"the hub at {url} wants a key: it accepts encrypted connections only", hint
        case Ending.MISMATCH:
            return f"the hub at {url} has no encryption, and {says} that it must", _WRONG_PLACE
        case Ending.PROTOCOL:
            return f"the program at {url} is not a Fabric hub", "check the address"
    if to.keys is None:
        return f"the hub at {url} ended the handshake: it wants a key, or is not a Fabric hub", _GET_KEY
    return f"the hub at {url} ended the handshake: it has no encryption, or is not the one that {trust}", _WRONG_PLACE
