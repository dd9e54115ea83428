"""What goes wrong on the way from a snapshot to a table, said so that it survives Spark.

Spark shows of an exception in its Python workers only the text, so here the text has all: what is wrong, and what to
do about it.
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
    """Let errors of the journal and of snapshots carry their hints in their text."""
    try:
        yield
    except SourceError:
        raise
    except FabricError as error:
        raise SourceError(str(error), error.hint) from error
