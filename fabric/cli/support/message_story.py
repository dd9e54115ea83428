"""The story of one message for `fabric trace`: collected from the answers of the hub, and written as lines of text.

A message that died has copies: its dead letter, and the message that a redrive makes of it. They have seqs and events
of their own, and belong to the story of the original.
"""

import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from fabric.cli.support.tables import ago, plural, short, tidy
from fabric.cli.support.values import shown_bytes, shown_seconds, shown_time

Ask = Callable[..., Mapping[str, Any]]
Row = dict[str, Any]
EVENTS_PAGE: Final = 1_000

_DONE: Final = {
    "ack": "acked by",
    "retry": "retried by",
    "release": "released by",
    "lapse": "lease lapsed at",
    "lost": "lost with",
    "taken": "taken back from",
}
SURE: Final = 150  # characters by which a reason is recognised: events have only the beginning of a long one
TIME_WIDTH: Final = 27  # of a time, which is before the text of a step
TEXT_MIN: Final = 30  # characters of a line behind its time, also on a very narrow terminal
REJECTED: Final = "rejected"  # how the reason of a rejected message begins


def seq_of(ask: Ask, before: int | None = None, **wanted: Any) -> int | None:
    """The seq of the newest message with an id or a key; None when there is none."""
    fields = {name: value for name, value in wanted.items() if value is not None}
    while True:
        answer = ask("find", **fields, **({} if before is None else {"before": before}))
        if answer["seqs"]:
            return int(answer["seqs"][0])
        if not answer["more"]:
            return None
        before = answer["next"]


def collect(ask: Ask, seq: int) -> Row:
    """The whole story of a message. Of a dead letter or a redriven copy, it is the story of the original."""
    asked, first = seq, ask("story", seq=seq, n=EVENTS_PAGE)
    origin = ((first["message"] or {}).get("headers") or {}).get("fabric-seq", "")
    if origin.isdigit() and int(origin) != seq:
        seq, first = int(origin), ask("story", seq=int(origin), n=EVENTS_PAGE)
    events = list(_events(ask, seq, first))
    copies = list(_copies(ask, seq, events))
    groups = [{"seq": seq, **row} for row in first["groups"]]
    for copy in copies:
        if copy["kind"] == "redrive":
            story = ask("story", seq=copy["seq"], n=EVENTS_PAGE)
            events += _events(ask, copy["seq"], story)
            groups += [{"seq": copy["seq"], **row} for row in story["groups"]]
    steps = [{"what": row["kind"], **{k: v for k, v in row.items() if k != "kind"}} for row in (*events, *copies)]
    steps.sort(key=lambda step: (step["time_us"], step["seq"]))
    return {
        "seq": seq,
        **({"asked": asked} if asked != seq else {}),
        "recording": first["recording"],
        "message": first["message"],
        "steps": steps,
        "groups": groups,
    }


def _events(ask: Ask, seq: int, answer: Mapping[str, Any]) -> Iterator[Row]:
    """The events about a message, from all pages."""
    while True:
        for event in answer["events"]:
            yield {"seq": seq, **event}
        if not answer["more"]:
            return
        answer = ask("story", seq=seq, n=EVENTS_PAGE, after=answer["next"])


def _copies(ask: Ask, seq: int, events: list[Row]) -> Iterator[Row]:
    """The dead letters of a message and what redrives made of them. If no event was recorded, all groups count."""
    died: dict[str, int] = {}
    for event in events:
        if event["kind"] in ("dead", "expired"):
            died.setdefault(event["group"], event["time_us"])
    places: list[Row] = [{"group": group, "time_us": time_us} for group, time_us in died.items()]
    for place in places if events else [{}]:
        answer = ask("copies", seq=seq, **place)
        yield from answer["copies"]
        while answer["more"]:
            answer = ask("copies", seq=seq, **place, after=answer["next"])
            yield from answer["copies"]


# Text.


def lines(story: Row, width: int) -> Iterator[str]:
    """The story as text: the message, what happened in order of time, and what the message waits for now."""
    message, seq, steps = story["message"], story["seq"], story["steps"]
    if "asked" in story:
        yield f"#{story['asked']} is a copy of #{seq}"
    if message is None:
        yield f"#{seq} was removed from the journal; its events were not"
        start_us = steps[0]["time_us"] if steps else 0
    else:
        start_us = message["time_us"]
        yield from _wrapped("", f"#{seq} {tidy(message['topic'])}  {_about(message)}", width)
        yield from _wrapped(shown_time(start_us / 1e6), f"accepted{_born(message)}", width)
    for at, step in enumerate(steps):
        yield from _wrapped(_since(step["time_us"], start_us), _step(step, steps[:at], steps[at + 1 :], seq), width)
    if story["groups"]:
        yield "now:"
    for row in story["groups"]:
        copy = f" (copy #{row['seq']})" if row["seq"] != seq else ""
        yield from _wrapped("", f"  {tidy(row['group'])}{copy}: {_state(row)}", width)
    if not story["groups"] and message is not None:
        yield "no group matches its topic"


def _wrapped(when: str, text: str, width: int) -> list[str]:
    """Lines that are not longer than the terminal is wide; the text stands behind its time."""
    head = f"{when:>{TIME_WIDTH}}  " if when else ""
    rest = " " * (len(head) or 4)
    return textwrap.wrap(text, max(width, len(head) + TEXT_MIN), initial_indent=head, subsequent_indent=rest)


def _about(message: Row) -> str:
    parts = [shown_bytes(message["bytes"])]
    parts += [f"{name} {short(str(message[name]))}" for name in ("key", "id") if message.get(name)]
    if message["expires_us"]:
        parts.append(f"expires {ago(message['expires_us'])}")
    return ", ".join(parts)


def _born(message: Row) -> str:
    """Where a message was accepted first, if another journal had it before."""
    origin = message.get("origin")
    if origin is None:
        return ""
    return (
        f" from journal {origin['journal'][:8]}, which had it as #{origin['seq']} {shown_time(origin['time_us'] / 1e6)}"
    )


def _since(time_us: int, start_us: int) -> str:
    return f"+{shown_seconds(max(time_us - start_us, 0) / 1e6)}"


def _step(step: Row, earlier: list[Row], later: list[Row], seq: int) -> str:
    copy = f" (copy #{step['seq']})" if step["seq"] != seq else ""
    group, client = tidy(step["group"]), tidy(step.get("client") or "a consumer")
    match step["what"]:
        case "dead letter":
            return f"{group}: dead letter #{step['seq']}, {_letter(step, earlier, later)}"
        case "redrive":
            return f"{group}: redriven as #{step['seq']}"
        case "deliver":
            return f"{group}: delivered to {client}, attempt {step['attempt']}{copy}{_unknown_end(step, later)}"
        case "dead":
            return f"{group}: {_end(step, client)}{copy}"
        case "expired":
            return f"{group}: expired{copy}"
    reason = f": {tidy(step['reason'])}" if step.get("reason") else ""
    return f"{group}: {_DONE.get(step['what'], step['what'])} {client}{copy}{reason}{_wait(step, later)}"


def _end(step: Row, client: str) -> str:
    """Why a group has given a message up."""
    kind, _, text = step.get("reason", "").partition(": ")
    if kind == REJECTED:
        return f"rejected by {client}" + (f": {tidy(text)}" if text else "")
    last = f"given up after attempt {step['attempt']}"
    return f"{last}, {tidy(kind)}" if kind else last


def _letter(letter: Row, earlier: list[Row], later: list[Row]) -> str:
    """What a dead letter says; an error that a step before it has told is left out."""
    error, group = letter["error"], letter["group"]
    is_told = any(step["group"] == group and step.get("reason", "").endswith(error[:SURE]) for step in earlier)
    text = letter["reason"] + (f": {tidy(error)}" if error and not is_told else "")
    is_redriven = any(step["what"] == "redrive" and step["group"] == group for step in later)
    return text if letter["listed"] or is_redriven else f"{text}; it is not among the dead letters any more"


def _same(step: Row, steps: list[Row]) -> Iterator[Row]:
    """The steps of the same message in the same group."""
    return (one for one in steps if (one["seq"], one["group"]) == (step["seq"], step["group"]))


def _unknown_end(step: Row, later: list[Row]) -> str:
    """A note on a delivery that is followed by another one."""
    following = next(_same(step, later), None)
    if following is None or following["what"] != "deliver":
        return ""
    return "; its end is not recorded: the hub was killed, or events were off"


def _wait(step: Row, later: list[Row]) -> str:
    """How long a message waited for its next delivery in the group."""
    following = next((one for one in _same(step, later) if one["what"] == "deliver"), None)
    if step["what"] not in ("retry", "lapse", "lost", "release", "taken") or following is None:
        return ""
    after = shown_seconds((following["time_us"] - step["time_us"]) / 1e6)
    return f"{';' if step.get('reason') else ','} delivered again after {after}"


def _state(row: Row) -> str:
    now_us = time.time() * 1e6
    failed = f"; {plural(row['failures'], 'failure')}, the last: {tidy(row['reason'])}" if row.get("failures") else ""
    match row:
        case {"state": "leased"}:
            left = shown_seconds(max(row["until_us"] - now_us, 0) / 1e6)
            held = f"{tidy(row['client'])} (session {row['session']}), attempt {row['attempt']}"
            return f"in flight with {held}, its lease ends in {left}{failed}"
        case {"state": "retrying"}:
            return f"retrying, attempt {row['attempt']} is due {ago(row['due_us'])}{failed}"
        case {"parked": True}:
            behind = f"#{row['behind']}" if row["behind"] else f"one at {tidy(row.get('client', 'a consumer'))}"
            return f"parked behind an earlier message of its key, {behind}{failed}"
        case {"state": "ready", "reached": False}:
            ahead = f" behind {plural(row['ahead'], 'message')} of all topics" if row["ahead"] else ""
            return f"waits for its first delivery{ahead}{_why(row)}"
    return f"{row['state']}{_why(row)}{failed}"


def _why(row: Row) -> str:
    if row.get("paused"):
        return "; the group is paused"
    return "; the group has no consumers" if row.get("consumers") == 0 else ""
