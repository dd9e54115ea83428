"""The story of one message for `fabric trace`: collected from the answers of the hub, and written as lines of text.

A message that died has copies: its dead letter, and the message that a redrive makes of it. They have seqs and events
of their own, and belong to the story of the original.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from fabric.cli.support.tables import ago, short, tidy
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
    "dead": "given up at",
    "expired": "expired",
}


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
    steps = [
        *({**event, "what": event.pop("kind")} for event in events),
        *({**c, "what": c.pop("kind")} for c in copies),
    ]
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


def lines(story: Row) -> Iterator[str]:
    """The story as text: the message, what happened in order of time, and what the message waits for now."""
    message, seq = story["message"], story["seq"]
    if "asked" in story:
        yield f"#{story['asked']} is a copy of #{seq}"
    if message is None:
        yield f"#{seq} was removed from the journal; its events were not"
        start_us = story["steps"][0]["time_us"] if story["steps"] else 0
    else:
        start_us = message["time_us"]
        yield f"#{seq} {tidy(message['topic'])}  {_about(message)}"
        yield f"{shown_time(start_us / 1e6)}  accepted"
    for at, step in enumerate(story["steps"]):
        yield f"{_since(step['time_us'], start_us):>27}  {_step(step, story['steps'][at + 1 :], seq)}"
    if story["groups"]:
        yield "now:"
    for row in story["groups"]:
        copy = f" (copy #{row['seq']})" if row["seq"] != seq else ""
        yield f"  {tidy(row['group'])}{copy}: {_state(row)}"
    if not story["groups"] and message is not None:
        yield "no group matches its topic"


def _about(message: Row) -> str:
    parts = [shown_bytes(message["bytes"])]
    parts += [f"{name} {short(str(message[name]))}" for name in ("key", "id", "producer") if message.get(name)]
    if message["expires_us"]:
        parts.append(f"expires {ago(message['expires_us'])}")
    return ", ".join(parts)


def _since(time_us: int, start_us: int) -> str:
    return f"+{shown_seconds(max(time_us - start_us, 0) / 1e6)}"


def _step(step: Row, later: list[Row], seq: int) -> str:
    copy = f" (copy #{step['seq']})" if step["seq"] != seq else ""
    group, client = tidy(step["group"]), tidy(step.get("client") or "a consumer")
    match step["what"]:
        case "dead letter":
            error = f": {short(step['error'])}" if step["error"] else ""
            listed = "" if step["listed"] else "; it is not in the list any more"
            return f"{group}: dead letter #{step['seq']}, {step['reason']}{error}{listed}"
        case "redrive":
            return f"{group}: redriven as #{step['seq']}"
        case "deliver":
            return f"{group}: delivered to {client}, attempt {step['attempt']}{copy}"
        case "expired":
            return f"{group}: expired{copy}"
    return f"{group}: {_DONE.get(step['what'], step['what'])} {client}{_wait(step, later)}{copy}"


def _wait(step: Row, later: list[Row]) -> str:
    """How long a message waited for its next delivery in the group."""
    same = (
        one for one in later if one["what"] == "deliver" and (one["seq"], one["group"]) == (step["seq"], step["group"])
    )
    following = next(same, None)
    if step["what"] not in ("retry", "lapse", "lost", "release") or following is None:
        return ""
    return f", delivered again after {shown_seconds((following['time_us'] - step['time_us']) / 1e6)}"


def _state(row: Row) -> str:
    now_us = time.time() * 1e6
    failed = f", {row['failures']} failures ({short(row['reason'])})" if row.get("failures") else ""
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
            return f"not reached yet, {row['ahead']:,} messages of all topics before it{_why(row)}"
    return f"{row['state']}{_why(row)}{failed}"


def _why(row: Row) -> str:
    if row.get("paused"):
        return "; the group is paused"
    return "; the group has no consumers" if row.get("consumers") == 0 else ""
