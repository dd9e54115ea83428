"""Joining a hub with a link, and changing the key of a client.

The key pair is made here, and the secret key never leaves this machine: the hub gets the public key from the handshake,
and the one-time code of the link says for which name it is. Joining and rotation write the new secret key to a file
before the hub learns of it, so no crash and no full disk loses a key that the hub knows, or uses a code up.
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from fabric_client.core.source_names import ENROLLING
from fabric_client.core.verdict_exceptions import Seconds
from fabric_client.credentials import Credentials
from fabric_client.errors import AuthFailed, Conflict, ConnectionLost, Forbidden, HubError, NotFound, Timeout
from fabric_client.keys import new_pair, public_of
from fabric_client.links import Link, parse_link
from fabric_client.options import ANSWER_S
from fabric_client.sync.client import Client
from fabric_protocol.errors import FabricError

log = logging.getLogger("fabric_client")

GUEST: Final = "?"  # the name of a client whose key is not enrolled yet
_NEW_LINK: Final = "ask for a new link: 'fabric keys invite NAME' on the hub prints one"
_NEW_ADDRESS: Final = (
    "check that this machine reaches it; 'fabric keys invite NAME --role ROLE --address HOST:PORT' on the hub prints a "
    "link with another address"
)
_NO_CODE: Final = "it is the address of a hub; 'fabric keys invite NAME' on the hub prints a link to join"


def join(link: str | Link, *, draft: Path | None = None, timeout: Seconds = ANSWER_S) -> Credentials:
    """Make a key pair, enrol it at the hub of a link, and check that the hub knows it. Returns the credentials. Raises
    AuthFailed if the hub is not the one of the link, or takes no guests; Forbidden, NotFound or Conflict if the code
    was used, is too old or is of another hub.

    `draft` is a file for the key before the code is used, one for each link; remove it when the credentials are saved.
    If it exists, an earlier call was interrupted, and this one goes on with its key."""
    link = parse_link(link) if isinstance(link, str) else link
    if not link.code:
        raise FabricError("this link has no code to join with", _NO_CODE)
    if draft is None:
        return _joined(_new(link), link, timeout)
    is_second = draft.exists()
    credentials = Credentials.load(draft).replace(url=link.url, hub_key=link.hub_key) if is_second else _new(link)
    if not is_second:
        credentials.save(draft)
    try:
        if is_second and (done := _done(credentials, timeout)) is not None:
            return done
        return _joined(credentials, link, timeout)
    except (AuthFailed, Forbidden, NotFound) as error:
        if error.fields.get("handshake", "key_refused") == "key_refused":  # by this hub, and not by another program
            draft.unlink(missing_ok=True)
        raise


def _new(link: Link) -> Credentials:
    pair = new_pair()
    return Credentials(link.url, link.hub_key, pair.public, pair.secret)


def _done(credentials: Credentials, timeout: Seconds) -> Credentials | None:
    """The credentials with their name if the hub knows the key already."""
    try:
        return _enrolled(credentials, timeout)
    except AuthFailed:
        return None


def _joined(credentials: Credentials, link: Link, timeout: Seconds) -> Credentials:
    with _told(link):
        guest = Client(credentials=credentials, name="join", producer=ENROLLING, timeout=timeout)
    try:
        with _told(link), guest:
            guest.admin.ask("keys.enrol", code=link.code)
    except (ConnectionLost, Timeout, Conflict) as error:
        # The hub may have enrolled the key, and its answer was lost.
        try:
            return _enrolled(credentials, timeout)
        except FabricError:
            raise error from None
    return _enrolled(credentials, timeout)


@contextlib.contextmanager
def _told(link: Link) -> Iterator[None]:
    """Errors say what is wrong with the link."""
    try:
        yield
    except ConnectionLost as error:
        if not str(error).startswith("no hub at"):
            raise
        raise ConnectionLost(str(error), _NEW_ADDRESS) from None
    except (AuthFailed, Forbidden, NotFound, Conflict) as error:
        match error.fields.get("handshake"):
            case "key_refused":
                why = "it takes no new keys: the link was used, its time is over, or it was revoked"
                raise AuthFailed(f"cannot join the hub at {link.url}: {why}", _NEW_LINK, fields=error.fields) from None
            case str():  # another hub, or no encryption
                raise
        raise type(error)(f"cannot join the hub at {link.url}: {error}", _NEW_LINK, code=error.code) from None


def _enrolled(credentials: Credentials, timeout: Seconds) -> Credentials:
    """Connect with the new key, and take the name that the hub says."""
    me = identity(credentials, timeout)
    principal = str(me.get("principal", ""))
    if principal in ("", GUEST):
        raise AuthFailed(f"the hub at {credentials.url} has not enrolled this key", _NEW_LINK)
    return credentials.replace(principal=principal)


def identity(credentials: Credentials, timeout: Seconds = ANSWER_S) -> dict[str, Any]:
    """What the hub says of these credentials: principal, role, key, rights and limits."""
    with Client(credentials=credentials, name="identity", timeout=timeout) as fab:
        return fab.info("me", timeout=timeout)


def rotate(path: str | Path, *, timeout: Seconds = ANSWER_S) -> Credentials:
    """Replace the key pair of a file of credentials. It can be called again after a crash at any point. Running clients
    that were made with the path, or with its context, read the file again when the hub refuses the old key."""
    path = Path(path).resolve()  # a symbolic link stays one
    found = Credentials.load(path)
    if found.keys is None:
        raise FabricError(f"{path} has no keys", "it is an address without encryption; join the hub to get keys")
    if found.pending and (done := _finished(found, path, timeout)) is not None:
        return done
    pending = found.pending or new_pair().secret
    found = found.replace(pending=pending)
    found.save(path, keep_owner=True)  # before the hub can forget the old key
    try:
        with Client(credentials=found, name="rotate", timeout=timeout) as fab:
            fab.admin.ask("keys.rotate", key=public_of(pending))
    except (ConnectionLost, Timeout, AuthFailed) as error:  # it may be done, and the answer was lost
        log.info("no answer to the rotation: %s", error)
        if (done := _finished(found, path, timeout)) is None:
            raise
        return done
    except HubError:
        found.replace(pending="").save(path, keep_owner=True)  # refused: the old key is still the right one
        raise
    done = _finished(found, path, timeout)
    if done is None:
        raise AuthFailed(
            f"the hub at {found.url} does not accept the new key; {path} has both keys",
            "run the rotation again; 'fabric keys list' on the hub shows the keys",
        )
    return done


def _finished(found: Credentials, path: str | Path, timeout: Seconds) -> Credentials | None:
    """Save the pending key as the key if the hub knows it; None if the hub does not."""
    rotated = found.replace(secret=found.pending, pending="")
    try:
        me = identity(rotated, timeout)
    except AuthFailed:
        return None
    if me.get("principal") in ("", GUEST):
        return None
    rotated.save(path, keep_owner=True)
    return rotated
