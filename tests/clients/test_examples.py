"""Each example runs and prints what its page says."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fabric.hub import Hub, HubOptions
from tests.patience import PATIENCE_S

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with Hub(tmp_path / "data", HubOptions(binds=["tcp://127.0.0.1:*"])) as hub:
        yield hub.binds[0]


def example(url: str, name: str, *arguments: str) -> list[str]:
    path = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env={**os.environ, "PYTHONPATH": path, "FABRIC_URL": url},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def orders(url: str) -> None:
    """Three examples that belong together."""
    one, many = example(url, "publish.py", "20")
    assert (one.rpartition(" ")[0], many) == ("order 0 has seq", "published 20 orders")
    charged = example(url, "consume.py", "billing", "0.5")
    assert [line.split(" (")[0] for line in charged] == [f"charged order {number}" for number in range(20)]
    invoices = example(url, "async_worker.py", "invoicing", "0.5")
    assert sorted(invoices) == sorted(f"invoice for order {number}" for number in range(20))


def later(url: str) -> None:
    due, waiting, reminded = example(url, "later.py")
    assert due.startswith("order 7 is due at ")
    assert waiting == "waiting: ['metrics.collect', 'reminders.due']"
    assert reminded == "remind of order 7"


def transaction(url: str) -> None:
    assert example(url, "transaction.py", "1") == ["19 invoices for 19 orders", "dead: ['order 13 is never paid']"]


def request_reply(url: str) -> None:
    closed, apple, counted, unicorn = example(url, "request_reply.py")
    assert (closed, apple, counted) == ("the shop is closed", "an apple costs 3", "1! 2! 3!")
    assert unicorn == "a unicorn: KeyError: 'unicorn'"


def ordered(url: str) -> None:
    assert example(url, "ordered.py") == ["alice [0, 1, 2, 3, 4]", "bob [0, 1, 2, 3, 4]"]


def local_copy(url: str) -> None:
    dropped, whole = example(url, "local_copy.py")
    assert dropped == "the copy is dropped"
    assert whole == "the copy is whole again: {'apple': '5', 'pear': '4'}"


def numbered_source(url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for last in (3, 6):
            before, after = example(url, "numbered_source.py", f"{folder}/orders.db")
            assert (before, after) == tuple(f"rows up to {n} are published" for n in (last - 3, last))


ALL = (orders, later, transaction, request_reply, ordered, local_copy, numbered_source)


def test_examples_run_one_after_the_other_and_again_on_one_hub(url: str) -> None:
    """A reader tries them in any order, and twice. None may stand in the way of another, or of itself."""
    for run in (*ALL, *reversed(ALL)):
        run(url)


def test_examples_run_side_by_side_on_one_hub(url: str) -> None:
    """Each beside all others, and a copy beside another copy."""
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(run, url) for run in (*ALL, local_copy)]:
            done.result()


def test_each_example_is_run_here() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert f'"{path.name}"' in here or path.name.startswith("spark"), path.name  # tests/spark runs those


def test_each_example_fits_a_screen() -> None:
    for path in EXAMPLES.glob("*.py"):
        lines_max = 80 if path.name.startswith("spark") else 50  # cell by cell, as in a notebook
        assert len(path.read_text().splitlines()) <= lines_max, path.name
