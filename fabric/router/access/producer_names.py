"""Names of producers: a principal has names of its own, so that it cannot claim the name of another principal.

The name of a producer in the journal is `principal/name`. Two kinds of names are in the journal as they are: names of
connections without a key, and names that a role grants under `producers`, which its principals share. Such a name does
not begin as the names of another principal do.
"""

import re
from typing import Final

from fabric.router.access.globs import matches_any
from fabric.router.access.identity import LOCAL_NAME
from fabric.router.access.principal import Principal, Principals
from fabric_protocol.errors import Code, ProtocolError

PRINCIPAL_CHARS_MAX: Final = 64
_PRINCIPAL: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{PRINCIPAL_CHARS_MAX - 1}}}")


def internal_name(principal: Principal, name: str, principals: Principals) -> str:
    """The name in the journal of the producer that a principal names. Raises when it may not use the name."""
    prefix, slash, _ = name.partition("/")
    if principal.name == LOCAL_NAME:
        # All names were free before there were principals, so only those of existing principals are not.
        if slash and prefix != LOCAL_NAME and principals.find(prefix) is not None:
            raise _taken(principal, name, prefix)
        return name
    if not matches_any(principal.role.producers, name):
        return f"{principal.name}/{name}"
    if slash and _PRINCIPAL.fullmatch(prefix):
        raise _taken(principal, name, prefix)
    return name


def owner_of(internal: str, principals: Principals) -> str:
    """The principal to which a name in the journal belongs; `local` for names that belong to none or to several."""
    prefix, slash, _ = internal.partition("/")
    return prefix if slash and principals.find(prefix) is not None else LOCAL_NAME


def _taken(principal: Principal, name: str, prefix: str) -> ProtocolError:
    return ProtocolError(
        Code.FORBIDDEN,
        f"principal {principal.name!r} may not use producer {name!r}: names that begin with {prefix + '/'!r} belong to "
        f"principal {prefix!r}; use a name without /",
    )
