"""The observer's knowledge of groups: which delivery was allowed, what a verdict does, who must be told what.

It follows every message in every group one by one, by the rules that users were promised. Which consumer gets a message
is the router's choice; here it is only checked that the choice was allowed.
"""

from typing import Any, Final

from fabric.records import GroupSettings
from fabric.router.groups.dispatcher import FETCH_GRACE_S
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from fabric_protocol.messages import Verdict
from tests.simulation.blocks import IDENTS
from tests.simulation.ledgers import GroupBook, Held, Session, Sub, settings_of
from tests.simulation.order import Order, is_suspect

UNSURE_ATTEMPTS: Final = 3  # from here on a loss counts, whatever the consumer knows
FAR_MS: Final = 1_000_000
VERDICT_NAMES: Final = {verdict.value: f"verdict {verdict.name}" for verdict in Verdict}


def as_one(rows: Any) -> list[Any]:
    """Rows that say the same of ordinals that follow each other count as one row; TOUCH may say it twice."""
    found: list[Any] = []
    for row in rows:
        verdict, first, last, arg = row
        if found and (found[-1][0], found[-1][3]) == (verdict, arg):
            _, start, end, _ = found[-1]
            touches = verdict == Verdict.TOUCH and start - 1 <= last and first <= end + 1
            if touches or first == end + 1:
                found[-1] = (verdict, min(start, first), max(end, last), arg)
                continue
        found.append(row)
    return found


class Judge(Order):
    # Members.

    def subscribe(self, session: Session, message: m.Subscribe) -> int:
        chan, fields = message.chan, message.fields
        if chan in session.subs:
            return Code.BAD_OPTION
        name = fields.get("group")
        group = self.groups.get(name) if name else None
        if group is None:
            if "patterns" not in fields:
                return Code.BAD_OPTION
            group = self.create(name, settings_of(fields))
            session.expect(message.rid, -1, {"cursor": group})
        elif "patterns" in fields and settings_of(fields) != group.settings:
            return Code.GROUP_MISMATCH
        sub = session.subs[chan] = Sub(session, chan, group, fields)
        group.subs.append(sub)
        self.pass_on(group)
        self.joined(group)
        return 0

    def joined(self, group: GroupBook) -> None:
        """A consumer has come."""

    def pass_on(self, group: GroupBook) -> None:
        """What members without a connection cannot have begun is for the others, if there are any."""
        away = [sub for sub in group.subs if sub.session.grace_until]
        for sub in away if len(away) < len(group.subs) else ():
            kept = self.kept(sub)
            for ordinal, held in list(sub.open.items()):
                if ordinal not in kept:
                    self._take(sub, ordinal, held)
                    self.counts["passed on"] += 1

    def begun(self, sub: Sub) -> set[int]:
        """The ordinals that count as begun when a consumer is lost. One that is unsure has begun none, except the only
        one that it has, and those that came too often."""
        if not sub.unsure or len(sub.open) == 1:
            return self._oldest(sub, sub.concurrency)
        return {ordinal for ordinal, held in sub.open.items() if held.attempt >= UNSURE_ATTEMPTS}

    def kept(self, sub: Sub) -> set[int]:
        """The ordinals that stay with a consumer whose connection is closed."""
        return self._oldest(sub, max(sub.unsure, sub.concurrency))

    def _oldest(self, sub: Sub, count: int) -> set[int]:
        """The oldest that can be handled at once: one of each key where an order is kept, or whole deliveries."""
        order = "none" if sub.unsure else sub.group.settings.order
        left = min(count - len(sub.stuck), 1) if order == "strict" else count - len(sub.stuck)
        found, keys, batch = set[int](), set[bytes](), None
        for ordinal, held in sub.open.items():
            if held is batch:
                found.add(ordinal)
                continue
            if left <= 0:
                break
            key = IDENTS[self.log[held.seq(ordinal) - 1]].key if order == "key" else b""
            if key not in keys:
                found.add(ordinal)
                left -= 1
                if key:
                    keys.add(key)
                batch = held if sub.batches and order != "key" else None
        return found

    def create(self, name: str | None, settings: GroupSettings) -> GroupBook:
        if name is None:
            self._ephemerals += 1
        group = GroupBook(name or f"$sub.{self._ephemerals}", settings, durable=name is not None)
        group.begin(self.first_seq)  # until the answer says where
        group.moved_in = self.turn  # one of the same name may have been deleted in this turn
        self.changed()
        self._excuse(group)
        self.groups[group.name] = group
        if name:
            self.undo.append((self.groups.pop, name, None))
        return group

    def seek(self, group: GroupBook, to: Any) -> None:
        """Begin again elsewhere: nothing is held, nothing has failed."""
        self.changed()
        for sub in group.subs:
            for ordinal, held in list(sub.open.items()):
                self._take(sub, ordinal, held)
        self.undo.append((group.put_back, *group.snapshot()))
        if to == "first":
            start = self.first_seq
        elif to == "last":
            wanted = (
                seq for seq in range(self.durable, self.first_seq - 1, -1) if self.topics[seq - 1] in group.wanted
            )
            start = next(wanted, self.durable + 1)
        else:
            start = max(to["seq"], self.first_seq)
        group.move(start)
        group.moved_in = self.turn
        self._excuse(group)

    def settle_up_to(self, group: GroupBook, up_to: int) -> None:
        """All up to a seq is settled, whoever holds it."""
        group.moved_in = self.turn  # what expired before in this turn has its dead letter
        for sub in group.subs:
            for ordinal, held in list(sub.open.items()):
                if held.seq(ordinal) <= up_to:
                    self._take(sub, ordinal, held)
        for seq in range(max(group.start, self.first_seq), min(up_to, len(self.log)) + 1):
            if self.topics[seq - 1] in group.wanted:
                self.settled(group, seq)

    def _excuse(self, group: GroupBook) -> None:
        """A group that comes, or comes back, may find messages gone that nobody else had use for."""
        if self.settings:
            group.optional.update(seq for seq in range(1, len(self.log) + 1) if self.may_be_removed(seq))
        if self.until_acked:
            others = [one for one in self.groups.values() if one.durable and one is not group]
            for seq in range(1, len(self.log) + 1):
                topic = self.topics[seq - 1]
                if topic in self.until_acked and all(
                    seq in one.settled or seq in one.optional or seq < one.start
                    for one in others
                    if topic in one.wanted
                ):
                    group.optional.add(seq)

    def leave(self, sub: Sub, now: float, *, lost: bool) -> None:
        group, started = sub.group, self.begun(sub) if lost else set[int]()
        shared = len(started) + len(sub.stuck) > 1
        for ordinal, held in list(sub.open.items()):
            seq = self._take(sub, ordinal, held)
            if ordinal in started:
                self.fail(group, seq, now, None, shared=shared)
            elif not lost:
                group.handed.discard(seq)  # given back
        if lost:
            self.counts["members lost"] += 1
        group.subs.remove(sub)
        del sub.session.subs[sub.chan]
        if not group.durable:
            del self.groups[group.name]

    def _take(self, sub: Sub, ordinal: int, held: Held) -> int:
        """End the lease on one delivery; returns its seq."""
        del sub.open[ordinal]
        if sub.alone is held:
            sub.alone = None
        seq = held.seqs[ordinal - held.first]
        sub.group.free(seq, held)
        return seq

    def fetch(self, session: Session, message: m.Fetch, now: float) -> int:
        sub = session.subs.get(message.chan)
        if sub is None:
            return Code.NOT_FOUND
        if sub.fetch is not None:
            return Code.BAD_OPTION
        sub.ordinal_max, sub.bytes_max = sub.sent + message.count, 1 << 62
        sub.fetch = (message.rid, sub.sent, now + message.expires_ms / 1000 + FETCH_GRACE_S)
        self.alarm(sub.fetch[2], sub)
        return 0

    def fetched(self, session: Session, message: m.End) -> None:
        sub = session.subs[message.chan]
        assert sub.fetch is not None, "a FETCH is closed once"
        assert message.rid == sub.fetch[0]
        assert message.sent == sub.sent - sub.fetch[1], "END says how many were sent"
        sub.fetch = None
        sub.ordinal_max = sub.sent
        self.counts["fetches"] += 1

    # Deliveries.

    def deliver(self, session: Session, message: m.Deliver, seqs: list[int], now: float) -> None:
        sub = session.subs[message.chan]
        group, first, count = sub.group, message.first_ordinal, len(seqs)
        if first <= sub.sent:
            sub.sent_again(message, seqs, self.first_seq)
            self.counts["sent again"] += 1
            return
        self.counts["deliveries"] += 1
        assert first == sub.sent + 1, "ordinals have no gaps"
        assert first + count - 1 <= sub.ordinal_max, "D7: never more than the credit"
        assert sub.bytes_sent < sub.bytes_max or (group.leases and not sub.open), "D7: byte credit"
        assert session.is_reachable(now), "nothing for a peer that cannot take it"
        assert not group.paused, f"{group.name} is paused"
        horizon = len(self.log) if group.received else self.durable
        assert seqs[-1] <= horizon, "C2: delivered before it is on disk"
        self.check_order(group, sub, seqs)
        for seq in seqs:
            assert self.topics[seq - 1] in group.wanted, f"{group.name} does not want {self.topics[seq - 1]}"
            assert not self.is_expired(seq), f"D8: {seq} has expired"
        if group.pace is not None:
            self.counts["deliveries under a rate"] += 1
            group.pace.delivered(count, now)
        sub.sent += count
        sub.bytes_sent += len(message.block)
        if not group.durable:
            self._stream(group, seqs)
        else:
            self._lease(group, sub, message, seqs, now)

    def _lease(self, group: GroupBook, sub: Sub, message: m.Deliver, seqs: list[int], now: float) -> None:
        settings, first = group.settings, message.first_ordinal
        held = Held(sub, first, seqs, message.attempt, now + group.lease_s, now + settings.lease_max_ms / 1000)
        assert sub.alone is None, "a suspect is alone with its consumer"
        previous = 0
        for seq in seqs:
            assert previous < seq, "seqs ascend"
            previous = seq
            assert seq >= group.start, "nothing before the start"
            assert seq not in group.settled or seq < self.first_seq, f"D4: {seq} is settled in {group.name}"
            assert seq not in group.leased, f"D2: {seq} is leased twice in {group.name}"
            group.check_turn(seq, message.attempt, now)
            if is_suspect(group, seq):
                assert len(seqs) == 1 and not sub.open, "a suspect is delivered alone"  # noqa: PT018
                sub.alone = held
                self.counts["suspects"] += 1
            if group.leases:
                group.leased[seq] = held
        if message.attempt > 1:
            self.counts["redeliveries"] += 1
        if group.leases:
            sub.open.update(dict.fromkeys(range(first, first + len(seqs)), held))
            if settings.max_in_flight:
                self.counts["deliveries under a ceiling"] += 1
                assert len(group.leased) <= settings.max_in_flight, "D9: never more in flight than the ceiling"
            self.alarm(held.deadline, held)
        else:
            for seq in seqs:
                self.settled(group, seq)

    def _stream(self, group: GroupBook, seqs: list[int]) -> None:
        """An ephemeral subscription: each wanted message once, in order, none left out."""
        for seq in seqs:
            if len(group.lines) < 2:
                assert seq > group.last, "D4: an ephemeral subscription goes forward"
                for skipped in range(max(group.last + 1, self.first_seq), seq):
                    assert self.topics[skipped - 1] not in group.wanted or self.is_optional(group, skipped), (
                        f"D1: {skipped} was left out"
                    )
                group.last = seq
            assert seq not in group.settled, "D4: an ephemeral subscription gets each message once"
            group.settled.add(seq)

    # Verdicts.

    def settle(self, session: Session, message: m.Settle, now: float) -> int:
        sub = session.subs.get(message.chan)
        if sub is None:
            return Code.NOT_FOUND
        if max(row[2] for row in message.verdicts) > sub.sent:
            return Code.BAD_ORDINAL
        applied, stale = self.apply(sub, message.verdicts, now)
        if stale:
            self.counts["stale verdicts"] += 1
        if message.rid:
            session.expect(message.rid, self.turn, {"applied": applied, "stale": stale})
        return 0

    def apply(self, sub: Sub, verdicts: Any, now: float) -> tuple[int, set[int]]:
        applied, stale = 0, set[int]()
        for verdict, first, last, arg in as_one(verdicts):
            back: list[int] = []
            for ordinal in range(first, last + 1):
                held = sub.open.get(ordinal)
                if held is None:
                    stale.add(ordinal)
                    continue
                applied += 1
                if verdict == Verdict.TOUCH:
                    lease_ms = arg if type(arg) is int else sub.group.settings.lease_ms
                    held.deadline = min(max(held.deadline, now + lease_ms / 1000), held.ends)
                    continue
                back.append(self._take(sub, ordinal, held))
                self._judge(sub.group, back[-1], verdict, arg, now)
            if back and verdict in (Verdict.RETRY, Verdict.RELEASE):
                self._take_back_later(sub, back)
            if sub.stuck and verdict != Verdict.TOUCH:
                sub.stuck.difference_update(range(first, last + 1))
        return applied, stale

    def _judge(self, group: GroupBook, seq: int, verdict: int, arg: Any, now: float) -> None:
        self.counts[VERDICT_NAMES[verdict]] += 1
        if verdict == Verdict.ACK:
            self.settled(group, seq)
        elif verdict == Verdict.REJECT:
            self.write_dead_letters(group, seq)
        elif verdict == Verdict.RELEASE:
            group.handed.discard(seq)  # its consumer says that it was not begun
        elif verdict == Verdict.RETRY:
            self.fail(group, seq, now, arg[0] if isinstance(arg, tuple) else arg)

    def _take_back_later(self, sub: Sub, back: list[int]) -> None:
        """Where an order is kept, whatever comes after a message that comes back must come after it again."""
        order = sub.group.settings.order
        if order == "none":
            return
        firsts: dict[bytes, int] = {}
        for seq in back:
            key = b"all" if order == "strict" else IDENTS[self.log[seq - 1]].key
            if key:
                firsts[key] = min(firsts.get(key, seq), seq)
        for ordinal, held in list(sub.open.items()):
            seq = held.seqs[ordinal - held.first]
            key = b"all" if order == "strict" else IDENTS[self.log[seq - 1]].key
            if firsts.get(key, seq) < seq:
                self._take(sub, ordinal, held)
                self.counts["taken back"] += 1

    def settled(self, group: GroupBook, seq: int) -> None:
        if seq not in group.settled:
            group.settled.add(seq)
            self.undo.append((group.settled.discard, seq))
            self.changed()

    def write_dead_letters(self, group: GroupBook, seq: int) -> None:
        if seq in group.settled or seq < self.first_seq:
            return  # retention has taken it
        if not self.topics[seq - 1].startswith("$dlq."):  # letters have no letters of their own
            self.dead[group.name, self.origin.get(seq, seq)] += 1
        group.given_up.add(seq)
        self.settled(group, seq)

    def fail(self, group: GroupBook, seq: int, now: float, delay_ms: Any, *, shared: bool = False) -> None:
        """A failure counts. One that several messages share makes no dead letter of any of them."""
        if not group.durable:
            return
        failures = group.failures.get(seq, 0)
        self.undo.append((group.set_failures, seq, failures, group.due.get(seq, 0.0)))
        group.failures[seq] = failures + 1
        limit = group.settings.attempts_max
        is_last = limit and failures + 1 >= limit and not shared
        if is_last and not self.topics[seq - 1].startswith("$dlq."):  # letters are tried for ever
            self.write_dead_letters(group, seq)
        else:
            if type(delay_ms) is int and delay_ms > FAR_MS:
                group.optional.add(seq)  # nobody waits for it here
                group.far.add(seq)
            group.due[seq] = now + group.wait_s(failures + 1, delay_ms) - 0.001

    # Time.

    def lapse(self, held: Held, now: float) -> None:
        """A lease ran out: what can have been begun has failed."""
        sub = held.sub
        started = self.begun(sub)
        shared, back = len(started) + len(sub.stuck) > 1, []
        for ordinal in range(held.first, held.first + len(held.seqs)):
            if sub.open.get(ordinal) is held:
                self.counts["lapsed"] += 1
                seq = self._take(sub, ordinal, held)
                back.append(seq)
                if ordinal in started:
                    sub.stuck.add(ordinal)
                    self.fail(sub.group, seq, now, None, shared=shared)
                    self.counts["shared failures"] += shared
        if back:
            self._take_back_later(sub, back)

    # What is left.

    def lost(self, group: GroupBook) -> list[int]:
        """What the limits of topics took, and the group was not told."""
        if not self.settings:
            return []
        return [
            seq
            for seq in range(max(group.start, self.first_seq), len(self.log) + 1)
            if self.topics[seq - 1] in group.wanted and self.is_missed(group, seq)
        ]

    def is_missed(self, group: GroupBook, seq: int) -> bool:
        if seq in group.settled or seq in group.optional or seq in group.told or seq in self.expires:
            return False
        return self.settings_of(self.topics[seq - 1]).keep != "last_per_key"

    def missing(self, group: GroupBook) -> list[int]:
        start = max(group.start, self.first_seq)
        return [
            seq
            for seq in range(start, len(self.log) + 1)
            if seq not in group.settled and self.topics[seq - 1] in group.wanted and not self.is_optional(group, seq)
        ]
