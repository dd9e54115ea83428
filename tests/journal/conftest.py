import pytest

from fabric.journal.tables import chunks


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close a chunk every five blocks, so that a small journal has many."""
    monkeypatch.setattr(chunks, "BLOCKS_MAX", 5)
