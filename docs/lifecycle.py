"""The life of a message in a group, as it stands in clients/PROTOCOL.md and docs/concepts.md: drawn from the table in
fabric/router/groups/lifecycle.py so that it cannot go stale.

Each part stands below a line `<!-- lifecycle: PART -->`, up to the next empty line. Run `python docs/lifecycle.py` to
write all parts anew.
"""

import re
import sys
from pathlib import Path
from typing import Final

from fabric.router.groups.lifecycle import FIRST, STATES, TRANSITIONS, Event, State

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = (ROOT / "clients/PROTOCOL.md", ROOT / "docs/concepts.md")
SLOT: Final = re.compile(r"<!-- lifecycle: ([a-z]+) -->\n.*?\n(?=\n)", re.DOTALL)
STEP: Final = 10  # characters between the lines of two states
INDENT: Final = 4


def arrows() -> dict[tuple[State, State], list[Event]]:
    """The events that lead from one state to another."""
    found: dict[tuple[State, State], list[Event]] = {}
    for (state, event), transition in TRANSITIONS.items():
        for to in transition.to:
            if to is not state:
                found.setdefault((state, to), []).append(event)
    return found


def column(state: State) -> int:
    return INDENT + list(State).index(state) * STEP


def arrow(state: State, to: State, events: list[Event]) -> str:
    """One line of the picture: an arrow between the lines of two states, and its events beside it."""
    line = list("".join(f"{'|':<{STEP}}" for _ in State))
    start, end = column(state) - INDENT, column(to) - INDENT
    low, high = min(start, end), max(start, end)
    line[low : high + 1] = "-" * (high - low + 1)
    line[start] = "o"
    line[end - 1 if end > start else end + 1] = ">" if end > start else "<"
    line[end] = "|"
    return " " * INDENT + "".join(line) + ", ".join(events)


def picture() -> str:
    """A line for each state, and below it an arrow for each way from one state to another."""
    names = " " * len(arrow(FIRST, FIRST, []))
    for state in State:
        names = beside(names, state, column(state))
    begin = [beside("", text, column(FIRST)) for text in ("publish", "v")]
    lines = [arrow(state, to, events) for (state, to), events in arrows().items()]
    return "\n".join(["```text", *begin, names.rstrip(), *lines, "```"])


def beside(line: str, text: str, middle: int) -> str:
    """The line with a text whose middle is at a column."""
    start = middle - len(text) // 2
    return f"{line[:start]:<{start}}{text}{line[start + len(text) :]}"


def states() -> str:
    return "\n".join(["| state | meaning |", "|---|---|", *(f"| {state} | {text} |" for state, text in STATES.items())])


def transitions() -> str:
    rows = [
        f"| {state} | {event} | {' or '.join(', '.join(to).rsplit(', ', 1))} | {meaning} |"
        for (state, event), (to, meaning) in TRANSITIONS.items()
    ]
    return "\n".join(["| from | event | to | meaning |", "|---|---|---|---|", *rows])


PARTS: Final = {"picture": picture, "states": states, "transitions": transitions}


def renewed(text: str) -> str:
    """A page with every part as the table says."""
    return SLOT.sub(lambda slot: f"<!-- lifecycle: {slot[1]} -->\n{PARTS[slot[1]]()}\n", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{', '.join(page.name for page in PAGES)}: {len(TRANSITIONS)} transitions\n")
