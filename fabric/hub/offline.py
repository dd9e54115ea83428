"""Answers INFO from a journal without a hub: its state is restored as at the start of a hub, and nothing is changed."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from fabric.hub.restore import offline_router
from fabric.journal.journal import Journal
from fabric.router.read.info import offline_info


class OfflineHub(AbstractContextManager["OfflineHub"]):
    """A journal that no hub uses. It is locked while this object is open."""

    def __init__(self, path: str | Path) -> None:
        self._journal = Journal.open(path, create=False)
        try:
            self._router = offline_router(self._journal)
        except BaseException:
            self._journal.close()
            raise

    def info(self, what: str, **fields: Any) -> Mapping[str, Any]:
        """The answer to INFO."""
        return offline_info(self._router, {"what": what, **fields})

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.close()
