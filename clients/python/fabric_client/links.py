"""Links: an address of a hub with the hub's key, `fabric+curve://HOST:PORT/#k=KEY`.

A link to join has a one-time code as well (`&c=CODE`) and the name that it is for (`&n=NAME`). A code is a secret until
it was used, so neither `repr` nor an error shows it.
"""

import re
import urllib.parse
from typing import Final, NamedTuple

from fabric_client.keys import key, link_form
from fabric_protocol.errors import FabricError

SCHEME: Final = "fabric+curve://"
DEFAULT_PORT: Final = 7171
PORT_MAX: Final = 65_535
URLS_MAX: Final = 16  # addresses of one client: a hub and its standbys
_ADDRESS_HINT: Final = "it looks like tcp://HOST:PORT or ipc://PATH"
_LINK_CHARS_MAX: Final = 4096
_HINT: Final = f"a link looks like '{SCHEME}HOST:PORT/#k=KEY'; 'fabric keys invite NAME' on the hub prints one to join"
_SEVERAL: Final = f"one link names several addresses of a hub: {SCHEME}HOST:PORT,HOST:PORT/#k=KEY"
# A key of Z85 may contain '&', so the lengths of keys decide where it ends.
_KEY: Final = re.compile(r"(?:^|&)k=([A-Za-z0-9_-]{43}|.{40})(?=&|$)")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s\[\]:/@]+)(?::(\d{1,5}))?")


class Link(NamedTuple):
    """A parsed link. `url` is the address for ZeroMQ, or several with commas."""

    url: str
    hub_key: str
    code: str = ""
    name: str = ""

    def __repr__(self) -> str:
        return f"Link({self.url!r}, hub_key={self.hub_key!r}, code={'…' if self.code else ''!r}, name={self.name!r})"

    def text(self) -> str:
        """The link as people paste it."""
        hosts = self.url.replace("tcp://", "")
        fields = [f"k={link_form(self.hub_key)}"]
        fields += [f"c={urllib.parse.quote(self.code)}"] if self.code else []
        fields += [f"n={urllib.parse.quote(self.name)}"] if self.name else []
        return f"{SCHEME}{hosts}/#{'&'.join(fields)}"


def is_link(text: str) -> bool:
    return text.strip().strip("'\"").startswith(SCHEME)


def parse_link(text: str) -> Link:
    """Read a link. Quotes, spaces and a command `fabric join` around it are left out."""
    if not isinstance(text, str):
        raise FabricError(f"a link is a text, not {type(text).__name__}", _HINT)
    text = "".join(line.strip() for line in text.splitlines())  # a terminal or a mail may have broken the line
    text = text.removeprefix("fabric join").strip().strip("'\"")
    if not text.startswith(SCHEME) or len(text) > _LINK_CHARS_MAX:
        raise FabricError(f"this is not a link: it does not begin with {SCHEME}", _HINT)
    if text.count(SCHEME) > 1:
        raise FabricError("these are several links", _SEVERAL)
    hosts, found, fragment = text[len(SCHEME) :].partition("#")
    if not found:
        raise FabricError("the link has no '#k=KEY': the part after '#' is missing", f"quote it in a shell; {_HINT}")
    match = _KEY.search(fragment)
    if match is None:
        raise FabricError("the link has no key of the hub: 'k=KEY' is missing or not whole", _HINT)
    rest = fragment[: match.start()] + fragment[match.end() :]
    fields = dict(part.partition("=")[::2] for part in rest.split("&") if part)
    code, name = (urllib.parse.unquote(fields.get(field, "")) for field in ("c", "n"))
    return Link(_url(hosts.rstrip("/")), key(match[1], "the hub's key in the link"), code, name)


def split_urls(urls: str) -> tuple[str, ...]:
    """The addresses of a text with commas."""
    found = tuple(url.strip() for url in urls.split(","))
    if len(found) > 1 and not all(found):
        raise FabricError(f"{urls!r} has an empty address", "several addresses are joined by commas: tcp://A,tcp://B")
    if len(found) > 1 and any(map(is_link, found)):
        raise FabricError("one of several addresses is a link", _SEVERAL)
    if len(found) > URLS_MAX:
        raise FabricError(f"{len(found)} addresses are too many", f"give {URLS_MAX} at most")
    return found


def check_address(url: str) -> None:
    """Raise for a text to which no client can connect."""
    scheme, _, rest = url.partition("://")
    match = _HOST.fullmatch(rest) if scheme == "tcp" else None
    if match is not None and not 1 <= int(match[2] or 0) <= PORT_MAX:
        raise FabricError(f"{url!r} has no port of 1..{PORT_MAX}", _ADDRESS_HINT)
    if match is None and not (scheme in ("ipc", "inproc") and rest):
        raise FabricError(f"{url!r} is not an address", _ADDRESS_HINT)


def _url(hosts: str) -> str:
    found = []
    for host in hosts.split(","):
        match = _HOST.fullmatch(host.strip())
        if match is None:
            raise FabricError(f"{host!r} in the link is not HOST:PORT", _HINT)
        found.append(url := f"tcp://{match[1]}:{match[2] or DEFAULT_PORT}")
        check_address(url)
    return ",".join(found)
