"""Keys of CURVE: pairs of a public and a secret key of 32 bytes each.

A key is written in Z85 (40 characters) in files and on the wire, and in base64url (43 characters) in links, because Z85
has characters that a shell or an address takes for its own. `key` reads both and gives Z85. No error shows a key.
"""

import base64
import binascii
import struct
from typing import Final, NamedTuple

import zmq
from zmq.utils import z85

from fabric_protocol.errors import FabricError

KEY_BYTES: Final = 32
Z85_CHARS: Final = 40
LINK_CHARS: Final = 43  # base64url without padding
_FORMS: Final = f"a key has {Z85_CHARS} characters (Z85) or {LINK_CHARS} (base64url); copy the whole key"


class KeyPair(NamedTuple):
    """A public key and its secret key, in Z85."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r}, secret=…)"


class CurveKeys(NamedTuple):
    """What a socket needs for CURVE: the key that the hub must prove, and the pair of this client."""

    hub_key: str
    public: str
    secret: str

    def __repr__(self) -> str:
        return f"CurveKeys(hub_key={self.hub_key!r}, public={self.public!r}, secret=…)"


def new_pair() -> KeyPair:
    """A new pair of random keys."""
    try:
        public, secret = zmq.curve_keypair()
    except zmq.ZMQError:
        raise _no_curve() from None
    return KeyPair(public.decode("ascii"), secret.decode("ascii"))


def public_of(secret: str) -> str:
    """The public key of a secret key."""
    try:
        return zmq.curve_public(secret.encode("ascii")).decode("ascii")
    except zmq.ZMQError:
        raise _no_curve() from None


def key(text: object, what: str) -> str:
    """A key in Z85 from either form; `what` names it in the error, which never shows the text."""
    if not isinstance(text, str):
        raise FabricError(f"{what} is not a text", _FORMS)
    text = text.strip()
    if len(text) == Z85_CHARS:
        try:
            raw = z85.decode(text)
        except (ValueError, KeyError, struct.error):
            raise FabricError(f"{what} is not a key: it has characters that Z85 does not have", _FORMS) from None
        if z85.encode(raw).decode("ascii") == text:
            return text
    elif len(text) == LINK_CHARS:
        try:
            raw = base64.b64decode(text + "=", altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise FabricError(f"{what} is not a key: it has characters that base64url does not have", _FORMS) from None
        if link_form(found := z85.encode(raw).decode("ascii")) == text:
            return found
    raise FabricError(f"{what} is not a key: it has {len(text)} characters, or is damaged", _FORMS)


def link_form(z85_key: str) -> str:
    """A key in base64url, for links."""
    return base64.urlsafe_b64encode(z85.decode(z85_key)).decode("ascii").rstrip("=")


def _no_curve() -> FabricError:
    return FabricError("this build of pyzmq has no CURVE", "install pyzmq from PyPI: pip install --upgrade pyzmq")
