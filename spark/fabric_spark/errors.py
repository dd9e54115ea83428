"""Errors of reading snapshots and journals as tables.

Spark shows only the text of an exception in its Python workers. So the text has both: what is wrong and what to do.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from fabric_protocol.errors import FabricError


class SourceError(FabricError):
    """The table cannot be read as it was asked for."""

    def __str__(self) -> str:
        what = str(self.args[0])
        return f"{what}. What to do: {self.hint}." if self.hint else what

    def __reduce__(self) -> tuple[type["SourceError"], tuple[str, str]]:
        return SourceError, (str(self.args[0]), self.hint)


@contextmanager
def explained() -> Iterator[None]:
    """Put the hints of journal and snapshot errors into their texts."""
    try:
        yield
    except SourceError:
        raise
    except FabricError as error:
        raise SourceError(str(error), error.hint) from error
