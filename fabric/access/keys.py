"""Keys: CURVE key pairs, the two ways to write a key, and the file of the hub's own pair.

A key is 32 bytes. Files and the wire have it in Z85 (40 characters), links in base64url (43 characters, because Z85 has
characters with a meaning in URLs). The parser accepts both, and all other code uses Z85.
"""

import base64
import binascii
import contextlib
import os
import stat
import struct
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import zmq
from zmq.utils import z85

from fabric.access.files import read_file
from fabric_protocol.errors import FabricError

KEY_BYTES: Final = 32
Z85_CHARS: Final = 40
LINK_CHARS: Final = 43
# Keys that are known: each change of the book goes through all of them, and to translate one takes 100 microseconds.
REMEMBERED_MAX: Final = 32_768
FOLDER: Final = "keys"  # in the data folder of the hub
HUB_KEY: Final = "hub.key"
FILE_BYTES_MAX: Final = 4_096  # of a key file; two keys and comments need 300
OTHERS: Final = 0o077  # permissions of the group and of all users
TEXT: Final = """\
# The key pair of this hub. Clients trust the hub by its public key: with another key no client connects any more.
# Keep the secret: a program that has it can pretend to be this hub.
public = "{public}"
secret = "{secret}"
"""


class KeyPair(NamedTuple):
    public: str  # in Z85, as the secret
    secret: str


def make_pair() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def curve_public(secret: str) -> str:
    """The public key of a secret key."""
    return zmq.curve_public(secret.encode()).decode()


@lru_cache(REMEMBERED_MAX)
def parse_key(text: str) -> str:
    """A key in Z85, from Z85 or base64url. Raises ValueError that says what is wrong, without the key."""
    raw = b""
    try:
        if len(text) == Z85_CHARS:
            raw = z85.decode(text.encode("ascii"))
            known = len(raw) == KEY_BYTES and z85.encode(raw).decode() == text
        elif len(text) == LINK_CHARS:
            raw = base64.b64decode(text.encode("ascii") + b"=", altchars=b"-_", validate=True)
            known = len(raw) == KEY_BYTES and link_form_of(raw) == text
        else:
            raise ValueError(f"a key has {Z85_CHARS} characters (Z85) or {LINK_CHARS} (base64url), not {len(text)}")
    except (UnicodeEncodeError, KeyError, IndexError, OverflowError, struct.error, binascii.Error):
        known = False
    if not known:
        raise ValueError("it has characters that no key has: copy the whole key, without spaces")
    if not any(raw):
        raise ValueError("a key of zeros is no key")
    return z85.encode(raw).decode()


@lru_cache(REMEMBERED_MAX)
def raw_key(key: str) -> bytes:
    """The 32 bytes of a key in Z85."""
    return z85.decode(key.encode())


def link_form(key: str) -> str:
    """A key in Z85 as it stands in a link."""
    return link_form_of(raw_key(key))


def link_form_of(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def hub_key_path(data: Path) -> Path:
    return data / FOLDER / HUB_KEY


def have_keys(data: Path) -> bool:
    """True if a data folder has the key pair of a hub, whether or not the hub can read it now."""
    try:
        hub_key_path(data).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # it is there: without it the hub would let in clients without a key
        pass
    return True


def open_hub_key(data: Path) -> tuple[KeyPair, bool]:
    """The hub's key pair, and whether it was made now."""
    path = hub_key_path(data)
    if have_keys(data):
        _require_own(path.parent)
        return read_pair(path), False
    pair = make_pair()
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _require_own(path.parent)
        write_private(path, TEXT.format(**pair._asdict()))
    except OSError as error:
        raise FabricError(
            f"cannot write the hub's key {path}: {error.strerror}",
            f"{path.parent} must be a folder that the user of the hub may write",
        ) from error
    return pair, True


def _require_own(folder: Path) -> None:
    """Refuse a folder in which every user may replace the keys."""
    mode = folder.stat().st_mode
    if mode & stat.S_IWOTH:
        raise FabricError(
            f"every user may replace the keys in {folder} (mode {stat.S_IMODE(mode):o})", f"chmod 700 {folder}"
        )


def read_pair(path: Path) -> KeyPair:
    """The key pair in a file that this user alone can read."""
    try:
        text, mode = read_file(path, FILE_BYTES_MAX)
    except OSError as error:
        raise FabricError(f"cannot read the key file {path}: {error.strerror}", "is it of another user?") from error
    if mode & OTHERS:
        raise FabricError(
            f"{path} holds a secret, and other users may read it (mode {mode:o})",
            f"chmod 600 {path}, and make a new key if another user may have read it",
        )
    try:
        if len(text) > FILE_BYTES_MAX:
            raise ValueError(f"it is larger than {FILE_BYTES_MAX} bytes")
        return _pair_of(text)
    except (ValueError, RecursionError) as error:
        raise FabricError(
            f"{path} is not a key file: {error}",
            'it has two lines: public = "…" and secret = "…"; restore it from a backup',
        ) from None


def _pair_of(text: bytes) -> KeyPair:
    fields = tomllib.loads(text.decode())
    found = {}
    for name in KeyPair._fields:
        value = fields.get(name)
        if not isinstance(value, str):
            raise ValueError(f"{name} is missing")
        try:
            found[name] = parse_key(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    pair = KeyPair(**found)
    if curve_public(pair.secret) != pair.public:
        raise ValueError("public and secret are not of one pair")
    return pair


def write_private(path: Path, text: str) -> None:
    """Make a file that this user alone can read. Raises FileExistsError if it exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()  # half a file would be read at the next start
        raise


def replace_private(path: Path, text: str) -> None:
    """Replace a file at once: after a crash it is the old file or the new one."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)  # of a hub that was killed
    write_private(draft, text)
    os.replace(draft, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
