"""Destination: to which hub a client connects, with which keys, and where that was said.

In this order: the arguments of `connect`; FABRIC_URL and FABRIC_CREDENTIALS; FABRIC_CONTEXT; the current context; the
hub on this machine. FABRIC_SECRET_KEY (or FABRIC_KEY) is the secret key for a link or a file that has the key of the
hub alone. Without it, a link takes the secret key of the file or the context that trusts the same hub. An address that
is no link is not encrypted.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from fabric_client import contexts
from fabric_client.credentials import Credentials
from fabric_client.errors import NotFound
from fabric_client.keys import CurveKeys
from fabric_client.links import DEFAULT_PORT, is_link, parse_link, split_urls
from fabric_protocol.errors import FabricError

DEFAULT_URL: Final = f"tcp://127.0.0.1:{DEFAULT_PORT}"


class Destination(NamedTuple):
    """The addresses of a hub and the keys for it. `origin` says in words where they come from."""

    urls: tuple[str, ...]
    keys: CurveKeys | None = None
    origin: str = ""  # such as "FABRIC_URL", "the context shop-eu", or empty for an argument and for the default
    path: Path | None = None  # the file that the keys come from

    @property
    def url(self) -> str:
        """All addresses, for texts."""
        return ",".join(self.urls)

    @property
    def credentials(self) -> Credentials:
        """The addresses and the keys alone, for a client on another machine, or in another process."""
        return Credentials(self.url, *self.keys) if self.keys is not None else Credentials(self.url)

    def reloaded(self) -> "Destination":
        """With the keys that its file has now, which a rotation may have changed. If a rotation was interrupted, the
        file has two keys, of which the hub knows one: it gives the other one."""
        if self.path is None:
            return self
        found = Credentials.load(self.path)
        if not (found.secret and found.hub_key):
            return self
        if found.pending and found.keys == self.keys:
            found = found.replace(secret=found.pending)
        return self._replace(keys=found.keys)


def destination(
    url: str | None = None,
    credentials: str | Path | Credentials | None = None,
    environ: Mapping[str, str] | None = None,
) -> Destination:
    """The destination of `connect(url, credentials=credentials)`."""
    environ = os.environ if environ is None else environ
    if credentials is not None:
        return _with_credentials(credentials, url, "", environ)
    if url:
        return _address(url, "", environ)
    given = environ.get("FABRIC_URL", "")
    if path := environ.get("FABRIC_CREDENTIALS", ""):
        origin = f"FABRIC_CREDENTIALS ({path})"
        return _with_credentials(path, given, f"FABRIC_URL and {origin}" if given else origin, environ)
    if given:
        return _address(given, "FABRIC_URL", environ)
    if name := environ.get("FABRIC_CONTEXT", ""):
        return _context(name, f"the context {name} (FABRIC_CONTEXT)", environ)
    if name := contexts.current():
        return _context(name, f"the context {name}", environ)
    if _secret(environ):
        raise FabricError("a secret key is set, and no address has the key of a hub", _KEY_HINT)
    return Destination((DEFAULT_URL,))


_KEY_HINT: Final = (
    "set FABRIC_URL to a link 'fabric+curve://HOST:PORT/#k=KEY', or unset FABRIC_SECRET_KEY and FABRIC_KEY"
)


def _secret(environ: Mapping[str, str]) -> str:
    """The secret key of the environment. For a command of --exec, FABRIC_KEY is the key of a message."""
    return environ.get("FABRIC_SECRET_KEY", "") or ("" if "FABRIC_TOPIC" in environ else environ.get("FABRIC_KEY", ""))


def _address(url: str, origin: str, environ: Mapping[str, str]) -> Destination:
    if not isinstance(url, str):
        raise FabricError(f"{url!r} is not an address", "it looks like tcp://HOST:PORT or ipc://PATH")
    secret = _secret(environ)
    if not is_link(url):
        if secret and origin:
            raise FabricError(f"a secret key is set, and {origin} has no key of the hub", _KEY_HINT)
        return Destination(split_urls(url), None, origin)
    link = parse_link(url)
    if secret:
        found = _own_key(Credentials(link.url, link.hub_key), environ)
        return Destination(split_urls(link.url), found.keys, origin)
    for path in _files(environ):
        if (saved := Credentials.load(path)).hub_key == link.hub_key and saved.secret:  # joined before
            return Destination(split_urls(link.url), saved.keys, f"{path}", path)
    return Destination(split_urls(link.url), Credentials(link.url, link.hub_key).keys, origin)


def _files(environ: Mapping[str, str]) -> list[Path]:
    """Files that may have the key of this client."""
    found = [Path(environ["FABRIC_CREDENTIALS"])] if environ.get("FABRIC_CREDENTIALS") else []
    names = (environ.get("FABRIC_CONTEXT", ""), contexts.current())
    return found + [path for name in names if name and os.path.exists(path := contexts.path_of(name))]


def _with_credentials(
    credentials: str | Path | Credentials, url: str | None, origin: str, environ: Mapping[str, str]
) -> Destination:
    path = None if isinstance(credentials, Credentials) else Path(credentials)
    found = credentials if isinstance(credentials, Credentials) else Credentials.load(credentials)
    if url and is_link(url):
        link = parse_link(url)
        if found.hub_key and found.hub_key != link.hub_key:
            raise FabricError(
                f"the credentials trust another hub than the link to {link.url} names",
                "leave the address out, or join that hub with 'fabric join LINK'",
            )
        found = found.replace(url=link.url, hub_key=link.hub_key)
    elif url:
        found = found.replace(url=url)
    return _checked(_own_key(found, environ), origin or (f"{path}" if path else ""), path)


def _context(name: str, origin: str, environ: Mapping[str, str]) -> Destination:
    try:
        found = _own_key(contexts.load(name), environ)
    except NotFound as error:
        place = "FABRIC_CONTEXT names it" if "FABRIC_CONTEXT" in origin else "it is the current one"
        raise NotFound(
            f"{error}, and {place}", f"'fabric ctx use NAME' chooses one; {error.hint}", code=error.code
        ) from None
    return _checked(found, origin, contexts.path_of(name))


def _checked(found: Credentials, origin: str, path: Path | None) -> Destination:
    """The destination of credentials. The error of a missing key says where they are from."""
    try:
        return Destination(split_urls(found.url), found.keys, origin, path)
    except FabricError as error:
        raise FabricError(f"{error} ({origin})" if origin else str(error), error.hint) from None


def _own_key(found: Credentials, environ: Mapping[str, str]) -> Credentials:
    """Take the secret key of the environment where a file or a link has the hub's key alone."""
    secret = _secret(environ)
    if not secret or found.secret or not found.hub_key:
        return found
    try:
        return found.replace(secret=secret)
    except FabricError as error:
        raise FabricError(f"FABRIC_SECRET_KEY or FABRIC_KEY: {error}", error.hint) from None
