"""docs/architecture.md agrees with the code: its functions exist, its rooms are those of test_house.py, README and the
disk."""

import ast
import re
from collections.abc import Iterable
from typing import Final

import pytest

from tests.test_house import DOOR, DOORS, FLOOR, MODULES, ROOMS, ROOT, Room, longest

PAGE: Final = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
STEPS: Final = re.findall(r"^(\d+)\. `([\w.]+)` ", PAGE, re.MULTILINE)
STEPS_MAX: Final = 25
ROWS: Final = re.findall(r"^\| (`[^|]+`) \| ([^|]+?) \| ([^|]+?) \|$", PAGE, re.MULTILINE)


def functions(module: str) -> set[str]:
    """Functions of a module and methods of its classes, as `function` and `Class.function`."""
    found = set()
    for node in ast.parse(MODULES[module].read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = (child for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


def namesakes(name: str) -> list[str]:
    """Functions with the same last word, anywhere: where a function that was moved may be now."""
    last = name.rpartition(".")[2]
    return [
        f"{module}.{function}"
        for module in MODULES
        for function in sorted(functions(module))
        if function.rpartition(".")[2] == last
    ]


def missing(name: str) -> str:
    """Empty when the function exists; otherwise what is wrong with its name."""
    module = longest(name, MODULES)
    if module is None or module == name or name.removeprefix(f"{module}.") not in functions(module):
        return f"docs/architecture.md: {name} does not exist; functions of that name: {namesakes(name)}"
    return ""


@pytest.mark.parametrize("name", [name for _, name in STEPS])
def test_a_function_of_the_walk_exists(name: str) -> None:
    assert missing(name) == ""


def test_a_function_that_moved_is_named() -> None:
    assert "fabric.router.router.Router.step" in missing("fabric.router.core.Router.step")
    assert "fabric.router.router.Router.step" in missing("fabric.router.router.step")


def test_the_walk_is_short_and_numbered() -> None:
    assert [int(number) for number, _ in STEPS] == list(range(1, len(STEPS) + 1))
    assert 20 <= len(STEPS) <= STEPS_MAX
    assert len({name for _, name in STEPS}) == len(STEPS)


def row(names: Iterable[str], room: Room) -> tuple[str, str, str]:
    """A row of the table. The four modules and packages of the floor are one word there."""
    ours = [one for one in room.ours if one not in names]
    if set(FLOOR) <= set(ours):
        ours = ["the floor", *(one for one in ours if one not in FLOOR)]
    shown = ", ".join(one if " " in one else f"`{one}`" for one in ours)
    return ", ".join(f"`{name}`" for name in names), shown or "–", ", ".join(room.libraries) or "–"


def test_the_table_of_rooms_is_that_of_the_rules() -> None:
    rules = [*(row((name,), room) for name, room in ROOMS.items()), row(DOORS, DOOR)]
    expected = "\n".join(f"| {names} | {ours} | {libraries} |" for names, ours, libraries in rules)
    assert rules == ROWS, f"docs/architecture.md: the table of rooms must be\n{expected}"
    assert "**floor** is {}, {}, {} and {}.".format(*(f"`{name}`" for name in FLOOR)) in PAGE


def test_imports_point_down_in_the_picture() -> None:
    lines = [line.split() for line in re.findall(r"^    [|v]  (fabric.+)$", PAGE, re.MULTILINE)]
    height = {name: -number for number, line in enumerate(lines) for name in line}
    assert sorted(height) == sorted({*ROOMS, *DOORS})
    for name in height:
        room = ROOMS.get(name, DOOR)
        others = [one for one in room.ours if one in height and not related(one, name)]
        assert [one for one in others if height[one] >= height[name]] == [], name


def related(one: str, other: str) -> bool:
    """Whether two names are of one room: one lies inside the other, or both are doors."""
    if one in DOORS and other in DOORS:
        return True
    return "fabric" not in (one, other) and (longest(one, [other]) or longest(other, [one])) is not None


def map_of_rooms() -> list[str]:
    """The paths of README's map: words that end in a slash or name a file, below the folder that is indented less."""
    found: list[str] = []
    above: dict[int, str] = {}
    for line in README.partition("\n## The map of the rooms\n")[2].lstrip("\n").splitlines():
        if not line.startswith("    "):
            break
        depth = len(line) - len(line.lstrip())
        words = re.split(r"\s{2,}", line.strip())[0].split()
        parent = next((above[less] for less in sorted(above, reverse=True) if less < depth), "")
        above = {less: path for less, path in above.items() if less < depth} | {depth: parent + words[0]}
        found += [parent + word for word in words]
    return found


def test_the_map_of_readme_is_on_disk() -> None:
    paths = map_of_rooms()
    assert {"fabric/router/publish/", "clients/python/fabric_client/", "spark/fabric_spark/"} <= set(paths)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_map_of_readme_is_on_the_page() -> None:
    rooms = [path for path in map_of_rooms() if path.endswith("/") and list((ROOT / path).glob("*.py"))]
    rooms = [path for path in rooms if path.startswith(("fabric/", "clients/python/", "spark/"))]
    assert [path for path in rooms if f"`{path}`" not in PAGE] == []


def test_every_folder_of_the_router_is_on_map_and_page() -> None:
    folders = {f"{path.parent.relative_to(ROOT)}/" for path in (ROOT / "fabric/router").glob("*/__init__.py")}
    assert {path for path in map_of_rooms() if re.fullmatch(r"fabric/router/\w+/", path)} == folders
    assert set(re.findall(r"`(fabric/router/\w+/)`", PAGE)) == folders
