"""Administration of a hub: create, change and delete groups, topics and queues: `fab.admin.groups.pause("billing")`.

Both clients share these classes: each method builds the fields of an ADMIN and returns what `ask` returns, the answer
in the blocking client and an awaitable in the asyncio client. Answers are the hub's, as dicts; a refusal is raised.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, Unpack

from fabric_client.core.arguments import Moment, microseconds, patterns_of
from fabric_client.core.verdict_exceptions import Seconds, milliseconds
from fabric_client.options import GroupOptions, QueueOptions, Start, TopicOptions, group_fields, position

A = TypeVar("A")  # dict[str, Any], or an awaitable of it
Asking = Callable[[Mapping[str, Any]], A]


class Admin(Generic[A]):
    def __init__(self, ask: Asking[A]) -> None:
        self._ask = ask
        self.groups = Groups(ask)
        self.topics = Topics(ask)
        self.queues = Queues(ask)
        self.hub = HubSettings(ask)
        self.sessions = Sessions(ask)
        self.producers = Producers(ask)

    def dead_letters(self, group: str) -> "DeadLetters[A]":
        """The dead letters of a group."""
        return DeadLetters(self._ask, group)

    def ask(self, op: str, **fields: Any) -> A:
        """Any operation by its name on the wire."""
        return self._ask({"op": op, **_given(fields)})


class Groups(Generic[A]):
    def __init__(self, ask: Asking[A]) -> None:
        self._ask = ask

    def create(self, group: str, *patterns: str, start: Start | None = None, **settings: Unpack[GroupOptions]) -> A:
        """Create a group. If it exists with these settings, this succeeds; with other settings it raises Conflict."""
        fields = {"op": "group.create", "group": group, "patterns": patterns_of(patterns), **group_fields(settings)}
        if start is not None:
            fields["start"] = position(start)
        return self._ask(fields)

    def update(self, group: str, *, patterns: Sequence[str] | None = None, **settings: Unpack[GroupOptions]) -> A:
        """Change settings of a group."""
        fields = {"op": "group.update", "group": group, **group_fields(settings)}
        if patterns is not None:
            fields["patterns"] = patterns_of(patterns)
        return self._ask(fields)

    def delete(self, group: str) -> A:
        """Delete a group with its position, and end its subscriptions."""
        return self._ask({"op": "group.delete", "group": group})

    def seek(self, group: str, to: Start, *, dry_run: bool = False) -> A:
        """Move the position of a group: "first", "new", a seq or a time. The answer says how many messages at most are
        delivered `again` and how many are `skipped`; with dry_run the group stays where it is."""
        fields = {"op": "group.seek", "group": group, "to": position(to)}
        return self._ask({**fields, "dry_run": True} if dry_run else fields)

    def settle(self, group: str, up_to: int, *, dry_run: bool = False) -> A:
        """Settle all messages of a group up to a seq. The answer says how many were not settled, at most (`settled`),
        and how many of them consumers held (`leased`); verdicts on these are stale. With dry_run nothing changes."""
        fields = {"op": "group.settle", "group": group, "up_to": up_to}
        return self._ask({**fields, "dry_run": True} if dry_run else fields)

    def pause(self, group: str) -> A:
        """Deliver nothing new until `resume`."""
        return self._ask({"op": "group.pause", "group": group})

    def resume(self, group: str) -> A:
        return self._ask({"op": "group.resume", "group": group})

    def refresh(self, group: str, *, start: Start | None = None, timeout: Seconds | None = None) -> A:
        """Ask all consumers to load their local copies again, from `start` (by default the first message)."""
        fields: dict[str, Any] = {"op": "group.refresh", "group": group}
        if start is not None:
            fields["from"] = position(start)
        if timeout is not None:
            fields["timeout_ms"] = milliseconds("timeout", timeout)
        return self._ask(fields)


class Topics(Generic[A]):
    """Settings have the names of the wire, with times in seconds: `max_age`, `max_msgs`, `max_bytes`, `on_full`,
    `keep`, `dedupe`, `dedupe_window`."""

    def __init__(self, ask: Asking[A]) -> None:
        self._ask = ask

    def create(self, topic: str, **settings: Unpack[TopicOptions]) -> A:
        return self._ask({"op": "topic.create", "topic": topic, **_topic_fields(settings)})

    def update(self, topic: str, **settings: Unpack[TopicOptions]) -> A:
        return self._ask({"op": "topic.update", "topic": topic, **_topic_fields(settings)})

    def delete(self, topic: str) -> A:
        """Delete a topic with its messages, and its settings if it has any."""
        return self._ask({"op": "topic.delete", "topic": topic})

    def purge(
        self,
        topic: str,
        *,
        up_to: int | None = None,
        before: Moment | None = None,
        dry_run: bool = False,
        after: int | None = None,
    ) -> A:
        """Delete the messages of a topic: all, those up to a seq, or those that were accepted before a time. With
        dry_run nothing changes, and the answer says how many messages (`removed`) and `bytes` would go, up to the seq
        `up_to`. A long journal is counted in steps: while the answer has `more`, ask again with its `next` as `after`,
        and add the numbers."""
        before_us = None if before is None else microseconds(before)
        fields = {"up_to": up_to, "before_us": before_us, "dry_run": dry_run or None, "after": after}
        return self._ask({"op": "topic.purge", "topic": topic, **_given(fields)})


class Queues(Generic[A]):
    """A queue is a topic that keeps each message until it is acked, with a group of the same name."""

    def __init__(self, ask: Asking[A]) -> None:
        self._ask = ask

    def create(self, queue: str, **settings: Unpack[QueueOptions]) -> A:
        """Create a queue, with settings of a topic and of a group."""
        return self._ask({"op": "queue.create", "queue": queue, **_queue_fields(settings)})

    def delete(self, queue: str) -> A:
        return self._ask({"op": "queue.delete", "queue": queue})

    def purge(self, queue: str, *, dry_run: bool = False, after: int | None = None) -> A:
        """Delete all messages of a queue. With dry_run nothing changes, as in `topics.purge`."""
        return self._ask({"op": "queue.purge", "queue": queue, **_given({"dry_run": dry_run or None, "after": after})})


class DeadLetters(Generic[A]):
    """`list` gives a page; `redrive` and `discard` take `seqs`, a filter (`reason`, `topic`, `before`) or, without
    either, all dead letters. All three answer with `more` and `next`: pass `next` as `after` to continue."""

    def __init__(self, ask: Asking[A], group: str) -> None:
        self._ask = ask
        self._group = group

    def list(self, *, after: int | None = None, n: int | None = None) -> A:
        return self._ask({"op": "dlq.list", "group": self._group, **_given({"after_seq": after, "n": n})})

    def redrive(
        self,
        seqs: Sequence[int] | None = None,
        *,
        reason: str | None = None,
        topic: str | None = None,
        before: Moment | None = None,
        after: int | None = None,
        n: int | None = None,
    ) -> A:
        """Deliver dead letters to their group again, as new messages."""
        return self._ask({"op": "dlq.redrive", **self._choice(seqs, reason, topic, before, after, n)})

    def discard(
        self,
        seqs: Sequence[int] | None = None,
        *,
        reason: str | None = None,
        topic: str | None = None,
        before: Moment | None = None,
        after: int | None = None,
        n: int | None = None,
    ) -> A:
        """Remove messages from the dead letters of the group."""
        return self._ask({"op": "dlq.discard", **self._choice(seqs, reason, topic, before, after, n)})

    def _choice(
        self,
        seqs: Sequence[int] | None,
        reason: str | None,
        topic: str | None,
        before: Moment | None,
        after: int | None,
        n: int | None,
    ) -> dict[str, Any]:
        chosen = _given(
            {"reason": reason, "topic": topic, "before_us": None if before is None else microseconds(before)}
        )
        fields = {"group": self._group, **_given({"after_seq": after, "max": n})}
        if seqs is not None:
            fields["seqs"] = [*seqs]
        if chosen:
            fields["filter"] = chosen
        elif seqs is None:
            fields["all"] = True
        return fields


class HubSettings(Generic[A]):
    def __init__(self, ask: Asking[A]) -> None:
        self._ask = ask

    def update(self, **settings: Any) -> A:
        """Settings of the hub as a whole, such as `events=True`."""
        return self._ask({"op": "hub.update", **settings})


class Sessions(Generic[A]):
    def __init__(self, ask: Asking[A]) -> None:
        self._ask = ask

    def kick(self, session: int | None = None, *, client: str | None = None) -> A:
        """End sessions, by number or by the name of the client. A client may connect again."""
        return self._ask({"op": "session.kick", **_given({"session": session, "client": client})})


class Producers(Generic[A]):
    def __init__(self, ask: Asking[A]) -> None:
        self._ask = ask

    def delete(self, name: str) -> A:
        """Remove a producer or a numbered source that is not connected. The next one of this name begins at 0, so a
        source publishes everything again."""
        return self._ask({"op": "producer.delete", "name": name})


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


_TOPIC_TIMES = {"max_age": "max_age_ms", "dedupe_window": "dedupe_ms"}


def _topic_fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Turn seconds into milliseconds; the hub checks everything else."""
    return {
        _TOPIC_TIMES.get(name, name): milliseconds(name, value) if name in _TOPIC_TIMES else value
        for name, value in settings.items()
        if value is not None
    }


def _queue_fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    of_group = {name: value for name, value in settings.items() if name in GroupOptions.__annotations__}
    of_topic = {name: value for name, value in settings.items() if name not in of_group}
    return {**_topic_fields(of_topic), **group_fields(of_group)}
