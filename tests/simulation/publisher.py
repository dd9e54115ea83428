"""The observer's knowledge of publishing: producers and their numbers, idempotency keys, delays, transactions."""

from collections.abc import Iterable
from typing import Any, Final

from fabric.records import TopicSettings
from fabric.router.access.identity import LOCAL_NAME
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from fabric_protocol.messages import Level
from tests.simulation.blocks import IDENTS, idents_of
from tests.simulation.facts import Counts, Unclear
from tests.simulation.ledgers import Published, Scheduled, Session, Sub
from tests.simulation.limits import is_over
from tests.simulation.numbering import Producer
from tests.simulation.refreshing import Refreshing

MINUTE_US: Final = 60_000_000
CRON_MS: Final = 60_000  # of the only calendar there is here: each minute
ANY: Final = -1  # no expectation
Work = list[tuple[Sub, Any]]


def is_used_up(producer: Producer | None, pseq: int) -> bool:
    """Whether something was stored under that number."""
    return producer is not None and 0 < pseq <= producer.last


def options_of(message: m.Publish | m.Transact) -> Any:
    return message.options if isinstance(message, m.Publish) else {}


class Publishing(Refreshing):
    def __init__(self, counts: Counts, settings: Iterable[tuple[str, TopicSettings]]) -> None:
        super().__init__(counts, settings)
        self.landed_turns = 0
        self._scheduled = 0  # schedules that were ever taken
        self._numbered: dict[tuple[str, int], Scheduled] = {}  # by producer and pseq
        self.ids: dict[tuple[str, bytes], tuple[int, int]] = {}  # (topic, id) -> seq, until when it counts
        self._doubted: set[tuple[str, bytes, int]] = set()  # (topic, id, until when it counts)
        self._hoped: tuple[Session, m.Publish | m.Transact, Work] | None = None

    # Taking.

    def publish(self, session: Session, message: m.Publish | m.Transact) -> int:
        producer = session.producer
        assert producer is not None
        if session.epoch != producer.epoch or producer.claimant is not None:
            return Code.FENCED
        assert session.epoch is not None
        idents = idents_of(message.block)
        refusal = producer.refusal(message.pseq, idents, session.epoch, options_of(message))
        if refusal:
            return refusal
        self._hoped = (session, message, [])
        if is_used_up(producer, message.pseq):
            return 0
        return ANY if self.is_refusing(idents) else 0

    def transact(self, session: Session, message: m.Transact) -> int:
        expected = self.publish(session, message)
        if expected not in (0, ANY) or is_used_up(session.producer, message.pseq):
            return expected
        work: Work = []
        for chan, verdicts in message.settles:
            sub = session.subs.get(chan)
            if sub is None:
                self._hoped = None
                return Code.NOT_FOUND
            ordinals = [ordinal for _, first, last, _ in verdicts for ordinal in range(first, last + 1)]
            if len(set(ordinals)) < len(ordinals) or max(ordinals) > sub.sent:
                self._hoped = None
                return ANY
            if not sub.open.keys() >= set(ordinals):
                self.counts["stale transactions"] += 1
                if expected == 0:  # else a topic may be full, which is told first
                    self._hoped = None
                    return Code.STALE
                return ANY
            work.append((sub, verdicts))
        self._hoped = (session, message, work)
        return expected

    def accepted_hoped(self, now: float) -> None:
        """The hub took a publish: as a new one, as one that it has, or for later."""
        if self._hoped is None:
            return
        session, message, work = self._hoped
        self._hoped = None
        producer = session.producer
        assert producer is not None
        is_dup = is_used_up(producer, message.pseq)
        options = options_of(message)
        if "delay_ms" in options or "cron" in options:
            self._schedule(session, message, options, producer, is_dup=is_dup)
            return
        level = message.level if isinstance(message, m.Publish) else Level.JOURNALED
        published = Published(session, message.rid, level, idents_of(message.block), self.turn)
        if is_dup:
            self.counts["duplicates"] += 1
            published.first, published.is_new = producer.first_seq_of(message.pseq), False
            self.counts["duplicates of sources"] += producer.jumps
        else:
            if "ttl_ms" in options:
                published.expires_us = self.wall_us + options["ttl_ms"] * 1000
            self._number_producer(session, producer, published, message)
            self._look_up_ids(published)
            self._take_room(published)
            self.accepted.append(published)
        if isinstance(message, m.Publish):
            if message.rid:
                session.unconfirmed.setdefault(message.rid, []).append(published)
        else:
            self._transacted(session, message.rid, published, work, now)

    def _number_producer(
        self, session: Session, producer: Producer, published: Published, message: m.Publish | m.Transact
    ) -> None:
        if message.pseq:
            assert session.epoch is not None
            self.undo.append((producer.take_back, producer.last, producer.proven))
            producer.proven = session.epoch
            published.producer, published.pseq = producer, message.pseq
            producer.take(message.pseq, published.idents, session.epoch, options_of(message))
            self.counts["blocks of sources"] += producer.jumps

    def _take_room(self, published: Published) -> None:
        """In the topics that have limits."""
        if self.settings:
            known = (published.known, published.twins)
            new = [ident for at, ident in enumerate(published.idents) if at not in known[0] and at not in known[1]]
            self.check_room(new)
            self.coming(new)

    def doubt_ids(self) -> None:
        """The wall's clock is set back: an id whose time was over counts again, or was forgotten meanwhile."""
        self._doubted.update((*key, until_us) for key, (_, until_us) in self.ids.items() if until_us <= self.wall_us)

    def _look_up_ids(self, published: Published) -> None:
        """Which messages of a new publish are duplicates by their ids."""
        firsts: dict[tuple[str, bytes], int] = {}
        for place, ident in enumerate(published.idents):
            topic, _, _, name, _ = IDENTS[ident]
            if not name:
                continue
            settings = self.settings_of(topic)
            seq, until_us = self.ids.get((topic, name), (0, 0))
            window_us = self.wall_us + settings.dedupe_ms * 1000
            if self.wall_us < until_us and (topic, name, until_us) in self._doubted:
                raise Unclear("the time of an id was over before the clock was set back")
            if self.wall_us < until_us and not (settings.dedupe == "until_ack" and self._is_over(topic, seq)):
                published.known[place] = seq
                self.counts[f"duplicate ids {settings.dedupe}"] += 1
                if settings.dedupe == "slide" and window_us > until_us:
                    self.undo.append((self._put_id_back, (topic, name), (seq, until_us)))
                    self.ids[topic, name] = (seq, window_us)
            elif (topic, name) in firsts:
                published.twins[place] = firsts[topic, name]
            else:
                firsts[topic, name] = place
                old = self.ids.get((topic, name))
                self.undo.append((self._put_id_back, (topic, name), old))
                self.ids[topic, name] = (-len(self.accepted) - 1, window_us)  # numbered when sealed
        published.stored -= len(published.known) + len(published.twins)
        self.counts["duplicate ids"] += len(published.known) + len(published.twins)

    def _is_over(self, topic: str, seq: int) -> bool:
        """Whether no group waits for a message any more."""
        if seq < 0:
            return not any(group.durable and topic in group.wanted for group in self.groups.values())
        if seq < self.first_seq:
            return True
        waiting = [group for group in self.groups.values() if group.durable and topic in group.wanted]
        waiting = [group for group in waiting if not is_over(group, seq)]
        if waiting and all(seq in group.optional for group in waiting):
            raise Unclear("a message may be removed or not, and so its id may count or not")
        return not waiting

    def _put_id_back(self, key: tuple[str, bytes], old: tuple[int, int] | None) -> None:
        if old is None:
            self.ids.pop(key, None)
        else:
            self.ids[key] = old

    def _transacted(self, session: Session, rid: int, published: Published, work: Work, now: float) -> None:
        applied = 0
        self.counts["transactions"] += 1
        for sub, verdicts in work:
            last = {m.Verdict.RETRY, m.Verdict.RELEASE}
            ordered = [row for row in verdicts if row[0] not in last]
            ordered += sorted((row for row in verdicts if row[0] in last), key=lambda row: -row[1])
            done, stale = self.apply(sub, ordered, now)
            assert not stale
            applied += done
        stored = published.stored if published.is_new else 0
        session.expect(rid, published.turn, {"applied": applied, "stored": stored, "first_seq": published})

    # Later.

    def _schedule(self, session: Session, message: Any, options: Any, producer: Producer, *, is_dup: bool) -> None:
        if is_dup:
            first = self._numbered.get((producer.name, message.pseq))
            session.expect(message.rid, self.turn, {"dup": True, **({"schedule": first} if first else {})})
            return
        idents = idents_of(message.block)
        published = Published(session, message.rid, message.level, idents, self.turn)
        self._number_producer(session, producer, published, message)
        due_us = self.wall_us + options.get("delay_ms", 0) * 1000
        if "cron" in options:
            due_us = (self.wall_us // MINUTE_US + 1) * MINUTE_US
        name = options.get("name", "")
        owner = session.principal
        for old in [one for one in self.schedules if name and one.name == name and one.owner == owner]:
            self._remove(old)
        every_ms = CRON_MS if "cron" in options else options.get("every_ms", 0)
        self._scheduled += 1
        one = Scheduled(self._scheduled, idents, due_us, options.get("ttl_ms", 0), every_ms, name, owner)
        self.schedules.append(one)
        if message.pseq:
            self._numbered[producer.name, message.pseq] = one
        self.undo.append((self._forget_schedule, one))
        self.counts["scheduled"] += 1
        self.counts["scheduled by cron"] += "cron" in options
        session.expect(message.rid, self.turn, {"due_us": due_us, "schedule": one})

    def _forget_schedule(self, one: Scheduled) -> None:
        if one in self.schedules:
            self.schedules.remove(one)

    def _remove(self, one: Scheduled) -> None:
        if one.due_us <= self.turn_wall_us:  # it may have fired in this turn; the seal will tell
            one.cancelled = True
            self.undo.append((setattr, one, "cancelled", False))
        else:
            self.schedules.remove(one)
            self.undo.append((self.schedules.append, one))

    def cancel(self, session: Session, message: m.Cancel) -> int:
        """A schedule is cancelled by its owner, or by a connection without a key: it may administer."""
        name, number = message.fields.get("name"), message.fields.get("id")
        owner = message.fields.get("owner", session.principal)
        for one in self.schedules:
            is_named = name and one.name == name and one.owner == owner
            if not one.cancelled and (is_named or (number and one.id == number)):
                if session.principal not in (one.owner, LOCAL_NAME):
                    self.counts["foreign cancels"] += 1
                    return 0
                self._remove(one)
                self.counts["cancelled"] += 1
                return 0
        return 0

    def fire(self, idents: list[int], seqs: list[int]) -> int:
        """Delayed messages are in the journal: whose are the first of them? Returns how many."""
        same = [one for one in self.schedules if tuple(idents[: len(one.idents)]) == one.idents]
        best = min(same, key=lambda one: (one.due_us, one.number), default=None)
        assert best is not None, "D8: a schedule fires once, and not when it was cancelled"
        if len(same) > 1 and self.wall_us < self.turn_wall_us:  # the clock was set back
            raise Unclear("schedules of equal messages may have fired in either order")
        due = [one for one in same if one.due_us <= self.turn_wall_us]
        if len(due) > 1 and any(one.cancelled for one in due):
            raise Unclear("of schedules of equal messages, one was cancelled when all were due")
        assert best.due_us <= self.turn_wall_us, "D8: a schedule fires before it is due"
        self.counts["fired"] += 1
        self.counts["fired by cron"] += best.every_ms == CRON_MS
        if best.ttl_ms:
            for seq in seqs[: len(best.idents)]:
                self.expires[seq] = best.due_us + best.ttl_ms * 1000
        if best.every_ms:
            self.undo.append((best.set_due, best.due_us))
            best.due_us += best.every_ms * 1000  # at the earliest: rounds that were missed are left out
        else:
            self.schedules.remove(best)
            self.undo.append((self.schedules.append, best))
        return len(best.idents)

    def drop_cancelled(self) -> None:
        """The turn is closed: what was cancelled in it and did not fire will not."""
        for one in [one for one in self.schedules if one.cancelled]:
            self.schedules.remove(one)
            self.undo.append((self.schedules.append, one))

    # Numbering and confirming.

    def number(self, accepted: list[Published], new: list[int]) -> None:
        """Each publish finds its messages in the log, all of them, one after the other; delayed ones come between."""
        at, log = 0, self.log
        waiting = iter(accepted)
        published = next(waiting, None)
        while at < len(new) or published is not None:
            while published is not None and not published.stored:
                self._found(published, [])
                published = next(waiting, None)
            if at < len(new) and IDENTS[log[new[at] - 1]].later:
                at += self.fire([log[seq - 1] for seq in new[at : at + 8]], new[at : at + 8])
                continue
            if published is None:
                break
            seqs = new[at : at + published.stored]
            at += published.stored
            assert len(seqs) == published.stored, "J4: a publish is stored wholly"
            self._found(published, seqs)
            published = next(waiting, None)
        assert at == len(new), "J4: something is stored that nobody published"

    def _found(self, published: Published, seqs: list[int]) -> None:
        idents = published.idents
        if published.known or published.twins:
            kept = [at for at in range(len(idents)) if at not in published.known and at not in published.twins]
            idents = tuple([idents[at] for at in kept])
        else:
            kept = list(range(len(idents)))
        if seqs:
            assert seqs[-1] - seqs[0] + 1 == len(seqs), "J4: its seqs follow each other"
            assert tuple(self.log[seqs[0] - 1 : seqs[-1]]) == idents, "J3: what was published is what is stored"
        where = dict(zip(kept, seqs, strict=True))
        for place, first in published.twins.items():
            published.known[place] = where[first]
        for place, seq in where.items():
            topic, _, _, name, _ = IDENTS[published.idents[place]]
            if name:
                self.ids[topic, name] = (seq, self.ids[topic, name][1])
            if published.expires_us:
                self.expires[seq] = published.expires_us
        for place, seq in published.known.items():
            if seq < 0:  # of a publish before it in this turn, which is numbered by now
                topic, _, _, name, _ = IDENTS[published.idents[place]]
                published.known[place] = self.ids[topic, name][0]
        published.first = seqs[0] if seqs else published.known[min(published.known)]
        if published.producer is not None:
            published.producer.found(published.pseq, published.first, len(published.idents))

    def confirmed(self, session: Session, message: m.PubOk) -> None:
        for row in message.confirms:
            rid, first, stored, dups = row[:4]
            waiting = session.unconfirmed.get(rid)
            assert waiting, "a publish is confirmed once"
            published = waiting.pop(0)
            if not waiting:
                del session.unconfirmed[rid]
            count = len(published.idents)
            self.counts["confirmed"] += 1
            assert message.level == published.level
            assert message.level == Level.RECEIVED or published.turn < self.landed_turns, (
                "C1: confirmed before the disk"
            )
            if published.is_new:
                expected = (published.first, published.stored, count - published.stored)
                assert (first, stored, dups) == expected, f"J3: confirmed with {row[1:]}, not {expected}"
                if published.known:
                    assert dict(row[4]) == published.known, "J5: duplicates are answered with their first seqs"  # type: ignore[misc]
            else:
                assert (stored, dups) == (0, count), "J5: a resend is stored once"
                assert published.first in (0, first), "J5: a resend is answered with its first seq"
