from collections.abc import Iterator

import pytest

from tests.clients.model_hub import Served


@pytest.fixture
def served() -> Iterator[Served]:
    """A model hub behind a real socket."""
    served = Served()
    yield served
    served.close()
