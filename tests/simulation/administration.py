"""The observer's knowledge of ADMIN: what an operation changes, and what it does not."""

from collections.abc import Mapping
from typing import Any

from fabric.records import GroupSettings
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from tests.simulation.asking import Asking
from tests.simulation.blocks import IDENTS
from tests.simulation.ledgers import GroupBook, Session, wanted_topics
from tests.simulation.publisher import ANY


class Administration(Asking):
    _update: tuple[GroupBook, GroupSettings] | None = None  # of the command at hand
    _moving: tuple[GroupBook, Mapping[str, Any]] | None = None  # a group.seek or group.settle at hand

    def admin(self, session: Session, message: m.Admin) -> int:
        fields = message.fields
        name, op = fields["group"], fields["op"]
        group = self.groups.get(name)
        if group is None:
            return Code.NOT_FOUND
        self.counts[op] += 1
        if fields.get("dry_run"):  # nothing changes
            return self._skips(group, fields) if op in ("group.seek", "group.settle") else 0
        match op:
            case "group.pause" | "group.resume":
                self.undo.append((group.set_paused, group.paused))
                group.paused = op == "group.pause"
                session.expect(message.rid, self.turn, {"paused": group.paused})
            case "group.update":
                changes = {name: value for name, value in fields.items() if name not in ("op", "group")}
                if "patterns" in changes:
                    changes["patterns"] = tuple(changes["patterns"])
                settings = group.settings._replace(**changes)
                self._update = group, settings
                if settings.patterns != group.settings.patterns:
                    return ANY  # BUSY, while the group looks for what waits for it
            case "group.seek" | "group.settle":
                self._moving = group, fields
                return self._skips(group, fields)
            case "group.delete":
                self.remove(group)
            case "group.refresh":
                self.refresh(session, message.rid, group, fields["from"])
            case "dlq.redrive":
                self.redriving.add(name)
        return 0

    def _skips(self, group: GroupBook, fields: Mapping[str, Any]) -> int:
        """R4: a group in a refresh skips no message up to the target."""
        refresh = group.refresh
        if refresh is None or refresh.has_ended:
            return 0
        last = min(refresh.target, fields.get("up_to", refresh.target))
        if fields["op"] == "group.seek":
            last = 0 if fields["to"] in ("first", "last") else min(last, fields["to"]["seq"] - 1)
        is_skipped = any(not self.is_done(group, seq) for seq in range(group.start, last + 1))
        return Code.CONFLICT if is_skipped and not refresh.moved else ANY

    def moved(self, code: int) -> None:
        """What became of a group.seek or a group.settle."""
        moving, self._moving = self._moving, None
        if moving is not None and not code:
            group, fields = moving
            if group.refresh is not None:
                group.refresh.moved = True
            if fields["op"] == "group.seek":
                self.seek(group, fields["to"])
            else:
                self.settle_up_to(group, fields["up_to"])

    def remove(self, group: GroupBook) -> None:
        """A group is deleted, or has ended by itself."""
        self.deleted(group)
        for sub in list(group.subs):
            self.leave(sub, 0.0, lost=False)
        del self.groups[group.name]
        self.changed()
        self.undo.append((self.groups.__setitem__, group.name, group))
        for letter in [letter for letter in self.letters if letter[0] == group.name]:
            self.dead.pop(letter, None)

    def updated(self, code: int) -> None:
        """What became of a group.update."""
        update, self._update = self._update, None
        if update is not None and not code:
            group, settings = update
            if settings.patterns != group.settings.patterns:
                self.counts["patterns changed"] += 1
                self._let_pass(group, wanted_topics(settings.patterns, group.name))
            self.undo.append((group.change, group.settings))
            group.change(settings)

    def _let_pass(self, group: GroupBook, wanted: frozenset[str]) -> None:
        """New patterns hold from the oldest message on that waits for the group, for each priority apart.

        What was handed out under earlier patterns may come again. What waits behind another message of its key was
        passed or not, by the router's choice, and may still come when a pattern is back.
        """
        far = own = len(self.log) + 1
        by_key = group.settings.order == "key"
        oldest: dict[int, int] = {}  # what is not settled: nothing before it can come
        waiting: dict[int, int] = {}  # what was surely never handed out: all after it must come
        passed: dict[int, int] = {}  # what was handed out since the hub was started: nothing before it can come
        seqs = range(max(group.start, self.first_seq), far)
        for seq in seqs:
            if self.topics[seq - 1] not in group.wanted:
                continue
            priority = IDENTS[self.log[seq - 1]].priority
            if self.topics[seq - 1].startswith("$"):  # of the hub's own making
                own = min(own, seq)
                continue
            if seq in group.attempts:
                passed[priority] = seq
            if seq not in group.settled:
                oldest.setdefault(priority, seq)
                if seq not in group.ever and not self.is_optional(group, seq) and seq not in self.expires:
                    waiting.setdefault(priority, seq)
        for seq in seqs:
            if self.topics[seq - 1] in wanted and self.topics[seq - 1] not in group.wanted:
                priority = IDENTS[self.log[seq - 1]].priority
                first = min(oldest.get(priority, far), own)
                if seq < max(first, passed.get(priority, 0)) and seq not in group.ever and not by_key:
                    self.settled(group, seq)
                elif seq < waiting.get(priority, far) or by_key:
                    group.optional.add(seq)
