"""Names with `*` for any characters: names of groups and producers in a role."""

from collections.abc import Iterable


def matches(glob: str, name: str) -> bool:
    """Whether a name matches. It takes one pass over the name, so no glob is slow."""
    first, *others = glob.split("*")
    if not others:
        return name == glob
    *middle, last = others
    at, end = len(first), len(name) - len(last)
    if not name.startswith(first) or at > end or not name.endswith(last):
        return False
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def matches_any(globs: Iterable[str], name: str) -> bool:
    return any(matches(glob, name) for glob in globs)
