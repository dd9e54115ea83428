"""What is translated for long runs is what the interpreter runs, but for what mypyc does not do, or does slowly."""

import re

from tests.simulation.compiled import MESSAGE, MESSAGES, TRANSLATED, sources
from tests.simulation.sizes import SMALL


def test_sizes_that_a_life_makes_small_are_variables() -> None:
    names = {name for sizes in SMALL.values() for name in sizes}
    fixed = {name for _, source in sources() for name in re.findall(r"^(\w+): Final", source, flags=re.MULTILINE)}
    assert names & fixed == set()


def test_objects_are_made_by_their_class() -> None:
    assert [name for name, source in sources() if "object.__new__" in source and "compiled" not in name] == []


def test_messages_have_names_of_their_own() -> None:
    found = {name: source for name, source in sources() if MESSAGES in source}
    assert [name for name, source in found.items() if re.search(rf"\b{MESSAGE}", source)] == []
    assert "case m_Publish():" in found["tests/simulation/observer.py"]
    assert "\nfrom fabric_protocol.messages import Publish as m_Publish\n" in found["tests/simulation/observer.py"]


def test_every_pattern_translates_something() -> None:
    names = [name for name, _ in sources()]
    assert [part for part in TRANSLATED if not any(re.fullmatch(f"{part}[.]py", name) for name in names)] == []


def test_what_a_source_imports_of_the_simulator_is_a_source() -> None:
    found = dict(sources())
    imported = {
        name for source in found.values() for name in re.findall(r"^from tests\.simulation\.(\w+) ", source, re.M)
    }
    assert [name for name in sorted(imported) if f"tests/simulation/{name}.py" not in found] == []
