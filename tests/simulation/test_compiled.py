"""What is translated for long runs is what the interpreter runs, but for two things that mypyc does not do."""

import re

from tests.simulation.compiled import TRANSLATED, sources
from tests.simulation.sizes import SMALL


def test_sizes_that_a_life_makes_small_are_variables() -> None:
    names = {name for sizes in SMALL.values() for name in sizes}
    fixed = {name for _, source in sources() for name in re.findall(r"^(\w+): Final", source, flags=re.MULTILINE)}
    assert names & fixed == set()


def test_objects_are_made_by_their_class() -> None:
    assert [name for name, source in sources() if "object.__new__" in source and "compiled" not in name] == []


def test_every_pattern_translates_something() -> None:
    names = [name for name, _ in sources()]
    assert [part for part in TRANSLATED if not any(re.fullmatch(f"{part}[.]py", name) for name in names)] == []
