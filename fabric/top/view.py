"""View: the lines of a screen, from the model, the size and the state of the keys. Only visible rows are rendered."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.text import Text

from fabric.cli.support.tables import tidy
from fabric.cli.support.values import shown_seconds
from fabric.top import columns
from fabric.top.columns import GAP, Column, compact, rate, size, span
from fabric.top.details import details
from fabric.top.model import PAGES, Model, Row
from fabric.top.state import HELP, State

HEADER_FROM: Final = 12  # lines of a terminal that has room for the totals
NARROW: Final = 70  # columns of a terminal on which only the present page is named
FOOTER: Final = "q quit  ? help  Tab page  Enter details  / filter  < > order  r reverse  p pause"
TYPING: Final = "type a part of a name; Enter keeps it, Esc removes it"
NO_KEYS: Final = "Ctrl-C quits; standard input is not a terminal, so there are no keys"
TITLE: Final = "bold"
SELECTED: Final = "reverse"


class Link(NamedTuple):
    """The connection to the hub, for the first line."""

    url: str
    is_up: bool = True
    down_s: float = 0.0  # how long the hub has not answered
    why: str = ""
    clock: str = ""  # the time of day
    has_keys: bool = True


def screen(model: Model, state: State, link: Link, now_s: float, width: int, height: int) -> Group:
    """All lines of a screen."""
    head = [*_top(model, state, link, now_s, width, height), _tabs(model, state, width)]
    room = max(height - len(head) - 1, 1)
    rows = state.ordered(model, now_s)
    if state.has_help:
        body = state.visible(_help(state, width), room)
    elif state.has_details and (row := model.rows[state.page].get(state.selected or "")) is not None:
        body = state.visible(details(model, state.page, row, now_s, width), room)
    else:
        body = _table(model, state, rows, now_s, width, room)
    body = [*body[:room], *[Text("")] * (room - len(body))]
    return Group(*head, *body, _foot(state, link, width))


def printed(model: Model, state: State, link: Link, now_s: float, width: int) -> Group:
    """All rows of a page, for --once and for pipes."""
    rows = state.ordered(model, now_s)
    head = [*_top(model, state, link, now_s, width, HEADER_FROM), Text("")]
    return Group(*head, *_table(model, state, rows, now_s, width, len(rows) + 2, is_live=False))


# The head.


def _top(model: Model, state: State, link: Link, now_s: float, width: int, height: int) -> list[Text]:
    lines = [_first(model, state, link, now_s, width)]
    if height >= HEADER_FROM:
        lines += _totals(model, now_s, width)
    return lines


def _first(model: Model, state: State, link: Link, now_s: float, width: int) -> Text:
    parts = [("fabric top", TITLE), (tidy(link.url), "cyan")]
    if not link.is_up:
        since = f" for {span(link.down_s)}" if link.down_s >= 1 else ""
        parts.append((f"NO ANSWER{since}: {tidy(link.why) or 'the client tries again'}", "bold red"))
    elif (health := model.hub.get("health")) is not None:
        parts.append((tidy(str(health)), "green" if health == "ok" else "bold red"))
    if refusing := model.hub.get("refusing"):
        parts.append((f"refuses publishes: {tidy(str(refusing))}", "bold red"))
    if state.is_paused:
        parts.append(("PAUSED", "bold yellow"))
    if (up_s := columns.since(model, model.hub.get("started_us"), now_s)) is not None and link.is_up:
        parts.append((f"up {span(up_s)}", ""))
    parts.append((link.clock, "dim"))
    return _line(parts, width)


def _totals(model: Model, now_s: float, width: int) -> list[Text]:
    hub = model.hub
    speeds = [
        f"{word} {rate(model.rates.per_s(counter, now_s))}/s"
        for word, counter in (("in", "messages_in"), ("out", "messages_out"), ("acked", "acked"))
    ]
    sizes = [
        f"{word} {size(model.rates.per_s(counter, now_s))}B/s"
        for word, counter in (("in", "bytes_in"), ("out", "bytes_out"))
        if model.rates.latest(counter) is not None
    ]
    first = [(text, "") for text in [*speeds, *sizes, *_commits(model, now_s)]]
    counts = [
        (f"{word} {compact(hub[key])}", style if hub[key] else "")
        for word, key, style in (
            ("ready", "ready", ""),
            ("in flight", "in_flight", ""),
            ("retrying", "retrying", "yellow"),
            ("dead", "dead", "red"),
            ("stored", "messages", ""),
            ("last seq", "last_seq", ""),
        )
        if hub.get(key) is not None
    ]
    return [_line(first, width), _line(counts, width)]


def _commits(model: Model, now_s: float) -> list[str]:
    """How long commits take: as the hub says, or else the mean of the last seconds."""
    told = [
        f"{word} {shown_seconds(model.hub[key] / 1e6)}"
        for word, key in (("p50", "commit_p50_us"), ("p99", "commit_p99_us"))
        if model.hub.get(key) is not None
    ]
    if told:
        return [f"commit {' '.join(told)}"]
    took, commits = model.rates.grown("commit_us", now_s), model.rates.grown("commits", now_s)
    if took is None or commits is None or commits[0] <= 0:
        return []
    return [f"commit {shown_seconds(took[0] / commits[0] / 1e6)}"]


def _tabs(model: Model, state: State, width: int) -> Text:
    is_narrow = width < NARROW
    parts = []
    for number, page in enumerate(PAGES, 1):
        is_shown = page == state.page
        named = f"{number} {page} {len(model.rows[page]):,}" if is_shown or not is_narrow else str(number)
        parts.append((f" {named} ", SELECTED if is_shown else ""))
    if state.filter or state.is_typing:
        parts.append((f"filter: {tidy(state.filter)}{'_' if state.is_typing else ''}", "bold yellow"))
    way = "reversed " if state.is_reversed else ""
    parts.append((f"{way}by {columns.column(state.page, state.sort).title}", "dim"))
    if left_out := model.left_out[state.page]:
        parts.append((f"{left_out:,} more are not followed", "yellow"))
    return _line(parts, width, gap=1)


# The table.


def _table(
    model: Model, state: State, rows: Sequence[Row], now_s: float, width: int, room: int, is_live: bool = True
) -> list[Text]:
    chosen = columns.fitting(state.page, width)
    named = max(width - sum(column.width + GAP for column in chosen), 1)
    widest = max((row.width for row in rows), default=0)
    named = min(named, max(widest, len(chosen[0].title)))
    place = state.place(rows)
    shown = rows
    if is_live:
        state.scroll(place, len(rows), room - 1)
        shown = rows[state.offset : state.offset + max(room - 1, 1)]
    lines = [_titles(chosen, state, named, width)]
    for row in shown:
        is_selected = is_live and row is rows[place]
        lines.append(_row(model, chosen, row, now_s, named, width, is_selected))
    if not rows:
        lines.append(_cut(Text(_nothing(model, state), style="dim"), width))
    return lines


def _nothing(model: Model, state: State) -> str:
    if model.merged_s is None:
        return "waiting for the hub's first answer"
    return f"no name has {tidy(state.filter)!r} in it" if state.filter else f"there are no {state.page}"


def _titles(chosen: Sequence[Column], state: State, named: int, width: int) -> Text:
    line = Text(no_wrap=True, overflow="crop")
    for column in chosen:
        is_first = column is chosen[0]
        title = set_cell_size(column.title, named) if is_first else f"{column.title:>{column.width + GAP}}"
        line.append(title, style="bold underline" if column.key == state.sort else TITLE)
    return _cut(line, width)


def _row(
    model: Model, chosen: Sequence[Column], row: Row, now_s: float, named: int, width: int, is_selected: bool
) -> Text:
    line = Text(no_wrap=True, overflow="crop", style=SELECTED if is_selected else "")
    name = row.label if row.width <= named else set_cell_size(row.label, named - 1) + "…"
    line.append(set_cell_size(name, named))
    for column in chosen[1:]:
        value = column.value(model, row, now_s)
        style = column.alarm if value else "dim" if value in (None, 0) else ""
        line.append(f"{column.shown(value):>{column.width + GAP}}", style="" if is_selected else style)
    return _cut(line, width)


# Other parts.


def _help(state: State, width: int) -> list[Text]:
    titled = [(column.title, column.meaning) for column in columns.BY_PAGE[state.page]]
    pairs = [("", ""), *HELP, ("", ""), *titled]
    return [_cut(Text.assemble((f"  {term:<16}", TITLE), meaning), width) for term, meaning in pairs]


def _foot(state: State, link: Link, width: int) -> Text:
    text = NO_KEYS if not link.has_keys else TYPING if state.is_typing else FOOTER
    return _cut(Text(text, style="dim"), width)


def _line(parts: Iterable[tuple[str, str]], width: int, gap: int = 2) -> Text:
    """As many parts as fit into a line; a part that does not fit is left out, but the first is cut."""
    line, room = Text(no_wrap=True, overflow="crop"), width
    for text, style in parts:
        needed = cell_len(text) + (gap if len(line) else 0)
        if not text or (needed > room and len(line)):
            continue
        line.append(" " * (gap if len(line) else 0)).append(text, style=style)
        room -= needed
    return _cut(line, width)


def _cut(line: Text, width: int) -> Text:
    line.no_wrap, line.overflow = True, "crop"
    line.truncate(max(width, 1), overflow="ellipsis")
    return line
