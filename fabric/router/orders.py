"""Orders: in which order the router goes through its parts. Each line has its reason.

A part stands behind the parts whose work it reads. Where no part reads the work of another, the order is free.
"""

from typing import TYPE_CHECKING, NamedTuple

from fabric.router.part import Part

if TYPE_CHECKING:
    from fabric.router.router import Router


class Orders(NamedTuple):
    writing: tuple[Part, ...]  # `rows`, when a turn is sealed
    committing: tuple[Part, ...]  # `committed`, when a turn is on disk
    ticking: tuple[Part, ...]  # `tick`, before groups deliver
    ticking_later: tuple[Part, ...]  # `tick`, after groups have delivered
    waiting: tuple[Part, ...]  # `next_deadline`

    @classmethod
    def of(cls, router: "Router") -> "Orders":
        ticking: tuple[Part, ...] = (
            router.dispatcher,  # first: the work of the turn is counted anew, and lapsed leases make messages ready
            router.idle_groups,  # before topics: a group that has ended keeps no messages of a topic
            router.requests,  # before groups deliver, as are the notices of requests that have ended
            router.schedules,  # a due schedule gets its seqs before topics look at their limits
            router.topics,  # last: a message that is over a limit is removed before groups deliver
        )
        return cls(
            writing=(
                router.publishing,  # first: blocks and producers, because other rows name the seqs of these blocks
                router.turn,  # in the order of commands: a group that was deleted and created again is dropped first
                router.schedules,  # counts of schedules, behind the schedules that commands have written
                router.group_rows,  # behind the drop of an earlier group of the same name
                router.topics,  # behind groups: their rows decide which topics of `until_acked` are looked at
                router.ids,  # free: no other row depends on idempotency keys
                router.events,  # free: all events of the turn were noted before the seal
                router.dead_letters,  # free: all dead letters of the turn were appended before the seal
            ),
            # Each part has its own list of sealed turns, so this order is free. A line says what the commit allows.
            committing=(
                router.publishing,  # new publishes may have the bytes of the turn
                router.schedules,  # schedules of the turn are read from disk
                router.ids,  # segments that the turn has completed are read from disk
                router.events,  # events of the turn are read from disk
                router.dispatcher,  # groups may deliver as far as their rows on disk say
                router.topics,  # retention may look at the blocks of the turn
            ),
            ticking=ticking,
            ticking_later=(
                router.dispatcher.recounts,  # free: it only counts
                router.topics.tallies,  # free: it only counts
                router.refreshes,  # first: a group has reached its target when it has delivered, and that is advised
                router.events,  # behind all parts that note events: the wait for a commit begins
                router.advisories,  # behind all parts that advise, and behind deliveries: ordinals are given here
            ),
            # The earliest deadline counts, so this order is free. Events and advisories wait for no time.
            waiting=(router.turn, *ticking, router.refreshes, router.dispatcher.recounts, router.topics.tallies),
        )
