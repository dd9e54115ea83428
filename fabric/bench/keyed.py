"""A hub with keys for a measurement, and the credentials of its principals."""

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from fabric.access.book import AccessBook
from fabric.access.keys import make_pair
from fabric.bench.parts import Bench, Settings
from fabric_client.credentials import Credentials
from fabric_client.links import Link

ROLES: Final = """\
[role.client]
publish = ["#"]
subscribe = ["#"]
groups = ["*"]
admin = ["info"]
"""
PRINCIPAL: Final = "bench"
_FILE: Final = "FABRIC_CREDENTIALS"  # processes of a measurement inherit it: so a link alone is enough for them


class KeyedBench(Bench):
    """A hub whose connections are encrypted. Clients that connect to `url` are the principal `bench`."""

    def __init__(self, settings: Settings, roles: str = ROLES, **principals: str) -> None:
        """`principals` has the roles of more principals."""
        super().__init__(settings)
        data = self.folder / "journal"
        data.mkdir()
        (data / "access.toml").write_text(roles)
        self._book = AccessBook(data)
        self._secrets: dict[str, str] = {}
        for name, role in {PRINCIPAL: "client", **principals}.items():
            pair = make_pair()
            self._book.create(name, role, pair.public, time.time_ns() // 1000)
            self._secrets[name] = pair.secret
        self._before = os.environ.get(_FILE)

    @property
    def url(self) -> str:
        return Link(self.hub.url, self._book.hub_key, "", "").text()

    def credentials(self, principal: str) -> Path:
        """The file of credentials of a principal."""
        path = self.folder / f"{principal}.toml"
        Credentials(self.hub.url, self._book.hub_key, secret=self._secrets[principal]).save(path)
        return path

    def __enter__(self) -> "KeyedBench":
        super().__enter__()
        os.environ[_FILE] = str(self.credentials(PRINCIPAL))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is None:
            del os.environ[_FILE]
        else:
            os.environ[_FILE] = self._before
        super().__exit__(kind, error, trace)
