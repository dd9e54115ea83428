"""The observer's own count of what groups, sessions and the hub have done: the naive twin of their counters.

    T1  delivered, acked, retried, released, rejected and lapsed of a group, the messages and bytes of a session, and
        the same numbers of the hub are those that were said and heard at the door, message by message
    T2  expired and dead are within what the door can tell: a message that expires without a dead letter leaves no trace
    T3  a counter begins at 0 when the hub starts, that of a group also when the group is created; it never falls

What expires is bounded. At least: the dead letters of expired messages, and, when all is settled in the end, whatever
was stored in this run and was settled in no other way. At most: the messages with an end that the patterns of the group
have matched, and that no verdict has settled; once more after each seek.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fabric.records import GroupSettings, TopicSettings
from fabric.router.groups.tally import Tally
from fabric.router.router import Router, Transaction
from fabric_protocol import messages as m
from fabric_protocol.messages import Verdict
from tests.simulation.blocks import idents_of
from tests.simulation.disk import Disk
from tests.simulation.ending import Ending
from tests.simulation.facts import Counts
from tests.simulation.ledgers import GroupBook, Held, Session
from tests.simulation.publisher import is_used_up

# Counters of the hub, and what the observer counts in the same moment.
AT_ONCE: Final = {
    "transactions": "transactions",
    "stale_verdicts": "stale verdicts",
    "schedules_taken": "scheduled",
    "requests": "requests",
    "replies": "replies",
    "sessions_resumed": "resumed",
    "sessions_silent": "silent",
    "groups_expired": "groups ended",
}
# The same for what the observer counts when a turn is closed.
WHEN_SEALED: Final = {"dead_letters": "dead letters", "redriven": "redriven"}
DONE: Final = (Verdict.ACK, Verdict.REJECT)


class Heard:
    """What was heard of one group, or of all, since the hub started."""

    __slots__ = (
        *("acked", "delivered", "lapsed", "rejected", "released", "retried", "settled"),
        *("before", "done", "given_up", "is_plain", "letters", "told", "topics", "unclear", "written"),
    )

    def __init__(self, topics: frozenset[str] = frozenset()) -> None:
        self.delivered = self.acked = self.retried = self.released = self.rejected = self.lapsed = 0
        self.settled = 0  # by a verdict
        self.given_up = 0  # by a verdict or a failure
        self.written = 0  # of these, those whose turn is closed: they have their dead letters
        self.letters = 0  # of messages that expired
        self.unclear = 0  # dead letters that retention had taken when they failed: the hub cannot see what they were
        self.done: set[int] = set()  # what was settled by a verdict or by its delivery, and so did not expire
        self.before = 0  # what may have expired before the latest seek
        self.topics = topics  # that its patterns have ever matched
        self.is_plain = True  # it was not moved, and its patterns are those that it had first
        self.told = (0, 0, 0)  # since_us, expired and dead, when they were compared

    def exact(self) -> tuple[int, ...]:
        return self.delivered, self.acked, self.retried, self.released, self.rejected, self.lapsed

    def note(self, verdict: int) -> None:
        if verdict == Verdict.ACK:
            self.acked += 1
        elif verdict == Verdict.RETRY:
            self.retried += 1
        elif verdict == Verdict.RELEASE:
            self.released += 1
        elif verdict == Verdict.REJECT:
            self.rejected += 1
        self.settled += verdict in DONE


class Said:
    """What one session has published, and what it was sent."""

    __slots__ = ("bytes_in", "bytes_out", "messages_in", "messages_out")

    def __init__(self) -> None:
        self.messages_in = self.bytes_in = self.messages_out = self.bytes_out = 0


class Tallying(Ending):
    def __init__(self, counts: Counts, settings: Iterable[tuple[str, TopicSettings]]) -> None:
        super().__init__(counts, settings)
        self.sessions: dict[bytes, Session] = {}  # by peer
        self._heard: dict[GroupBook, Heard] = {}
        self._said: dict[Session, Said] = {}
        self._all = Heard()
        self._owing: list[Heard] = []  # of groups that have given up messages in this turn
        self._stored_before = 0  # messages that the journal had when the hub was started
        self._counted_before: dict[str, int] = {}

    def _said_by(self, session: Session) -> Said:
        said = self._said.get(session)
        if said is None:
            said = self._said[session] = Said()
        return said

    # What happens.

    def crashed(self, disk: Disk, *, clean: bool) -> None:
        super().crashed(disk, clean=clean)
        before = self._heard  # what was delivered under earlier patterns may come again, and expire
        self._heard = {group: Heard(group.wanted | before[group].topics) for group in self.groups.values()}
        self._said, self._all, self._owing = {}, Heard(), []
        self._stored_before = len(self.log)
        self._counted_before = {name: self.counts[name] for name in (*AT_ONCE.values(), *WHEN_SEALED.values())}

    def create(self, name: str | None, settings: GroupSettings) -> GroupBook:
        group = super().create(name, settings)
        self._heard[group] = Heard(group.wanted)
        return group

    def accepted_hoped(self, now: float) -> None:
        hoped = self._hoped
        if hoped is not None and not is_used_up(hoped[0].producer, hoped[1].pseq):
            self._took(hoped[0], hoped[1])
        super().accepted_hoped(now)

    def _took(self, session: Session, message: m.Publish | m.Transact) -> None:
        """A publish is new: also its messages with known ids count, and those that are for later."""
        said = self._said_by(session)
        said.messages_in += len(idents_of(message.block))
        said.bytes_in += len(message.block)

    def deliver(self, session: Session, message: m.Deliver, seqs: list[int], now: float) -> None:
        sub = session.subs[message.chan]
        is_new = message.first_ordinal > sub.sent
        super().deliver(session, message, seqs, now)
        if is_new:
            count, said, heard = len(seqs), self._said_by(session), self._heard[sub.group]
            said.messages_out += count
            said.bytes_out += len(message.block)
            heard.delivered += count
            self._all.delivered += count
            if not sub.group.leases and self.expires:
                heard.done.update(seqs)

    def _judge(self, group: GroupBook, seq: int, verdict: int, arg: Any, now: float) -> None:
        super()._judge(group, seq, verdict, arg, now)
        heard = self._heard[group]
        heard.note(verdict)
        self._all.note(verdict)
        if self.expires and verdict in DONE:
            heard.done.add(seq)

    def lapse(self, held: Held, now: float) -> None:
        sub = held.sub
        count = sum(sub.open.get(ordinal) is held for ordinal in held.ordinals())
        super().lapse(held, now)
        self._heard[sub.group].lapsed += count
        self._all.lapsed += count

    def fail(self, group: GroupBook, seq: int, now: float, delay_ms: Any, *, shared: bool = False) -> None:
        super().fail(group, seq, now, delay_ms, shared=shared)
        self._heard[group].unclear += seq < self.first_seq and self.topics[seq - 1].startswith("$dlq.")

    def write_dead_letters(self, group: GroupBook, seq: int) -> None:
        """A message is given up, although there is no letter of one that retention has taken."""
        super().write_dead_letters(group, seq)
        heard = self._heard[group]
        heard.given_up += 1
        heard.done.add(seq)
        self._owing.append(heard)

    def _unexpected(self, name: str, origin: int) -> None:
        before = self.counts["expired to letters"]
        super()._unexpected(name, origin)
        if self.counts["expired to letters"] > before:
            heard = self._heard[self.groups[name]]
            assert self.topics[origin - 1] in heard.topics, f"D6: a dead letter of {origin}, which is not for {name}"
            heard.letters += 1

    def sealed(self, turn: Transaction) -> None:
        super().sealed(turn)
        if self._owing:
            for heard in self._owing:
                heard.written = heard.given_up
            self._owing = []

    def seek(self, group: GroupBook, to: Any) -> None:
        """What has expired is met once more."""
        heard = self._heard[group]
        heard.before = self._expired_max(heard)
        heard.done, heard.is_plain = set(), False
        super().seek(group, to)

    def settle_up_to(self, group: GroupBook, up_to: int) -> None:
        self._heard[group].is_plain = False
        super().settle_up_to(group, up_to)

    def updated(self, code: int) -> None:
        update = self._update
        super().updated(code)
        if update is not None:
            heard = self._heard[update[0]]
            heard.is_plain &= update[0].wanted == heard.topics
            heard.topics |= update[0].wanted

    def ended_groups(self) -> int:
        """How many groups there were in this run of the hub that have ended."""
        return len(self._heard) - len(self.groups)

    # What the hub has counted.

    def check_tallies(self, router: Router, *, final: bool = False) -> None:
        """Compare all counters; `final`: all that will be settled is settled, and all turns are closed."""
        channels = {
            (peer, chan): sub.group for peer, session in self.sessions.items() for chan, sub in session.subs.items()
        }
        for (peer, chan), group in channels.items():
            if not group.durable:  # such a group has no name here that outlives a restart
                its = router.session_table.session_of(peer).channels[chan].group
                self._check_group(group, its.tally, final=False)
        for group in self.groups.values():
            if group.durable:
                self._check_group(group, router.groups[group.name].tally, final=final)
        for peer, session in self.sessions.items():
            known, said = router.session_table.session_of(peer), self._said_by(session)
            told = known.messages_in, known.bytes_in, known.messages_out, known.bytes_out
            heard = said.messages_in, said.bytes_in, said.messages_out, said.bytes_out
            assert told == heard, f"T1: session {known.number} has counted {told}, not {heard}"
        self._check_hub(router.counters, final=final)

    def _check_group(self, group: GroupBook, tally: Tally, *, final: bool) -> None:
        heard = self._heard[group]
        told = tally.delivered, tally.acked, tally.retried, tally.released, tally.rejected, tally.lapsed
        assert told == heard.exact(), f"T1: {group.name} has counted {told}, not {heard.exact()}"
        expired_max = self._expired_max(heard)
        least = heard.letters + (self._surely_expired(group, heard) if final and heard.is_plain else 0)
        assert least <= tally.expired <= expired_max, (
            f"T2: {group.name} has counted {tally.expired} expired messages, not {least} to {expired_max}"
        )
        least, most = heard.written + heard.letters, heard.given_up + letters_max(group.settings, expired_max)
        most += heard.unclear
        assert least <= tally.dead <= most, f"T2: {group.name} has counted {tally.dead} as dead, not {least} to {most}"
        since_us, expired, dead = heard.told
        assert since_us in (0, tally.since_us), f"T3: the counters of {group.name} begin anew"
        assert expired <= tally.expired and dead <= tally.dead, f"T3: a counter of {group.name} falls"  # noqa: PT018
        heard.told = tally.since_us, tally.expired, tally.dead

    def _check_hub(self, counters: Mapping[str, int], *, final: bool) -> None:
        names = ("deliveries", "acked", "retried", "released", "rejected", "lapsed", "settled", "messages_in")
        told = tuple([counters.get(name, 0) for name in names])
        heard = (*self._all.exact(), self._all.settled, len(self.log) - self._stored_before)
        assert told == heard, f"T1: the hub has counted {dict(zip(names, told, strict=True))}, not {heard}"
        least = most = 0
        for one in self._heard.values() if self.expires else ():
            least, most = least + max(one.letters, one.told[1]), most + self._expired_max(one)
        count = counters.get("expired", 0)
        assert least <= count <= most, f"T2: the hub has counted {count} expired messages, not {least} to {most}"
        for name, mine in AT_ONCE.items():
            heard_of_it = self.counts[mine] - self._counted_before.get(mine, 0)
            assert counters.get(name, 0) == heard_of_it, f"T1: {name} is {counters.get(name, 0)}, not {heard_of_it}"
        for name, mine in WHEN_SEALED.items():
            count, least = counters.get(name, 0), self.counts[mine] - self._counted_before.get(mine, 0)
            assert count == least or (count > least and not final), f"T1: {name} is {count}, not {least}"

    def _expired_max(self, heard: Heard) -> int:
        """How many messages a group can have found expired at most."""
        if not self.expires:
            return heard.before
        topics, done, latest = heard.topics, heard.done, self.wall_max_us
        return heard.before + sum(
            expires <= latest and seq not in done and self.topics[seq - 1] in topics
            for seq, expires in self.expires.items()
        )

    def _surely_expired(self, group: GroupBook, heard: Heard) -> int:
        """How many messages of this run a group has settled in no other way, when all messages are settled. What was
        delivered and is not settled may delay those behind it, although they have expired."""
        if not self.expires or self.clock_was_set or group.leased or not group.attempts.keys() <= group.settled:
            return 0
        return sum(
            seq > self._stored_before
            and seq >= max(group.start, self.first_seq)
            and self.topics[seq - 1] in group.wanted - self.until_acked  # what other groups are done with is removed
            and self.is_expired(seq)
            and not (seq in group.settled or seq in group.optional or (self.settings and self.may_be_removed(seq)))
            for seq in self.expires
        )


def letters_max(settings: GroupSettings, expired: int) -> int:
    """How many of the messages that expired can have a dead letter."""
    return expired if settings.on_expire == "dead" else 0
