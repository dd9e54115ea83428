"""Rejects, redrives and discards with crashes at any point: no message is lost, none is in two places, and a command
that was answered is done."""

import random
from typing import Any

from fabric_protocol import messages as m
from fabric_protocol.block import Block, encode
from tests.router.world import World
from tests.seeds import seeded

P, C, A = b"P", b"C", b"A"


class Life:
    """A hub, and what has been promised about each message."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.w = World()
        self.published: set[str] = set()
        self.acked: set[str] = set()
        self.discarded: set[str] = set()
        self._begin()

    def _begin(self) -> None:
        for peer in (P, C, A):
            self.w.hello(peer)
        self.w.sub(C, 1, "job.#", group="g", attempts_max=3, backoff_ms=0, credit=1 << 30)
        self.settled = 0  # ordinals of this subscription that were looked at

    def say(self, peer: bytes, message: m.ToHub) -> list[m.ToClient]:
        """Now and then the hub crashes before or after the commit. What it answered before the crash counts."""
        heard = len(self.w.said[peer])
        self.w.say(peer, message, commit=False)
        crash = self.chance.random()
        if crash > 0.03:
            self.w.commit()
        answers = list(self.w.said[peer][heard:])
        if crash < 0.06:
            self.w.restart()
            self._begin()
        return answers

    def publish(self) -> None:
        count = self.chance.choice((1, 1, 3, 20))
        bodies = [f"{len(self.published)}.{i}" for i in range(count)]
        topic = self.chance.choice(("job.a", "job.b"))
        answer = self.say(P, m.Publish(9, 0, 0, encode(topic, [body.encode() for body in bodies])))
        if any(isinstance(one, m.PubOk) for one in answer):
            self.published |= set(bodies)

    def work(self) -> None:
        todo = self.w.delivered(C)[self.settled :]
        self.settled += len(todo)
        for ordinal, _, _, body in todo[: self.chance.randrange(1, 30)]:
            verdict = self.chance.choice((m.Verdict.ACK, m.Verdict.REJECT, m.Verdict.REJECT, m.Verdict.RETRY))
            before = self.w.router
            answers = self.say(C, m.Settle(1, 7, ((verdict, ordinal, ordinal, None),)))
            done = any(isinstance(one, m.Ok) and one.rid == 7 and one.fields.get("applied") for one in answers)
            if done and verdict == m.Verdict.ACK:
                self.acked.add(body)
            if self.w.router is not before:
                return

    def admin(self) -> None:
        op = self.chance.choice(("dlq.redrive", "dlq.redrive", "dlq.discard"))
        fields: dict[str, Any] = {"op": op, "group": "g"}
        there = self.letters()
        kind = self.chance.randrange(3)
        if kind == 0 and there:
            fields["seqs"] = self.chance.sample(sorted(there), self.chance.randrange(1, min(len(there), 5) + 1))
        elif kind == 1:
            fields |= {"filter": {"topic": self.chance.choice(("job.a", "job.b"))}, "max": self.chance.randrange(1, 9)}
        else:
            fields |= {"all": True, "max": self.chance.randrange(1, 9)}
        answers = self.say(A, m.Admin(3, fields))
        for answer in answers:
            assert not isinstance(answer, m.Err), answer
        after = self.letters()
        gone = {body for seq, body in there.items() if seq not in after}
        answered = [one for one in answers if isinstance(one, m.Ok) and one.rid == 3]
        if answered:
            assert len(gone) == answered[0].fields["redriven" if op == "dlq.redrive" else "discarded"]
        if op == "dlq.discard":
            self.discarded |= gone

    def drained(self) -> set[str]:
        """All that is still delivered, when everything is acked."""
        done = 0
        while len(rows := self.w.delivered(C)) > done:
            self.w.say(C, m.Settle(1, 0, tuple((m.Verdict.ACK, row[0], row[0], None) for row in rows[done:])))
            done = len(rows)
            self.w.pass_time(1)
        return set(self.w.bodies(C))

    def letters(self) -> dict[int, str]:
        """seq -> body of all letters, by list and by GET, which agree."""
        found: dict[int, str] = {}
        seq, more = 0, True
        while more:
            for message in self.w.say(A, m.Get(4, {"topic": "$dlq.g", "n": 1000, "seq": seq})):
                if isinstance(message, m.Got):
                    block = Block(message.block)
                    runs = list(zip(message.seqs[::2], message.seqs[1::2], strict=True))
                    seqs = [s for a, n in runs for s in range(a, a + n)] or list(
                        range(block.base_seq, block.last_seq + 1)
                    )
                    found |= dict(zip(seqs, (body.decode() for body in block.payloads()), strict=True))
                elif isinstance(message, m.Ok) and message.rid == 4:
                    seq, more = message.fields["next"], message.fields["more"]
        (answer,) = self.w.say(A, m.Admin(5, {"op": "dlq.list", "group": "g", "n": 1000}))
        if isinstance(answer, m.Ok):
            assert answer.fields["count"] == len(found)
            assert [row["seq"] for row in answer.fields["letters"]] == sorted(found)
        assert len(set(found.values())) == len(found), "a message has two letters"
        return found


def test_no_message_is_lost_between_the_living_and_the_dead() -> None:
    chance = seeded("the living and the dead")
    for _ in range(15):
        life = Life(chance)
        for _ in range(60):
            chance.choice((life.publish, life.work, life.work, life.admin))()
        life.w.restart()
        life._begin()
        left = life.drained()
        letters = set(life.letters().values())
        assert not left & letters, "alive and dead at once"
        assert not (left | letters) & life.discarded
        assert not (left | letters) & life.acked
        assert life.published <= left | letters | life.discarded | life.acked
