"""A life drawn from a seed, as data: what kind of world it is, and the list of acts that happen in it.

Swarm testing: each seed switches a random subset of features and faults on, and has its own sizes, so that rare things
happen often in some lives. An act is a kind and a number; whoever plays it reads what it needs from the number's bits,
and does nothing when it does not apply. So any act can be taken out of a life, and the rest still means something.
"""

import random
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from enum import IntEnum, auto
from itertools import accumulate
from typing import Any, Final, NamedTuple

from fabric.records import GroupSettings, TopicSettings
from fabric_protocol.messages import Level
from tests.simulation.ledgers import fields_of

# Acts of a life, of which one is drawn: long lives find what needs much to come together, short ones cost little.
LENGTHS: Final = (24, 32, 32, 40, 40, 48, 64)
# Time is counted in 1/1024 s: sums of such times, and of multiples of 125 ms, are exact in floating point.
TICKS_S: Final = 1024


class Act(IntEnum):
    CONNECT = 0
    PUBLISH = auto()
    PUBLISH_AGAIN = auto()
    PUBLISH_AHEAD = auto()
    PUBLISH_LATER = auto()
    CANCEL = auto()
    TRANSACT = auto()
    ADMINISTER = auto()
    REFRESH = auto()
    READY = auto()
    GET = auto()
    SERVE = auto()  # requests are answered
    ASK = auto()
    REPLY = auto()
    SUBSCRIBE = auto()
    CREDIT = auto()
    FETCH = auto()
    VERDICT = auto()
    VERDICT_STALE = auto()  # on ordinals of long ago
    VERDICT_NEVER_SENT = auto()
    UNSUBSCRIBE = auto()
    GOODBYE = auto()
    DISCONNECT = auto()
    HOLD = auto()  # one direction of a connection is silent for a while
    CONGEST = auto()
    PASS = auto()  # time passes; some say that they are alive
    SLOW = auto()  # the next commits take long
    CRASH = auto()
    FAIL = auto()  # the next commit fails
    FAULT = auto()  # the router fails at a command
    STOP = auto()  # the hub is stopped in good order
    LIE = auto()  # numbers at the edges and beyond
    CLOCK = auto()  # someone sets the wall's clock
    TRIM = auto()
    PULSE = auto()  # a viewer asks what has changed
    INTRUDE = auto()  # a client reaches for what belongs to another principal


ALWAYS: Final = {Act.CONNECT: 6, Act.PUBLISH: 14, Act.SUBSCRIBE: 6, Act.VERDICT: 26}
SOMETIMES: Final = {
    Act.PUBLISH_AGAIN: 3,
    Act.PUBLISH_AHEAD: 1,
    Act.PUBLISH_LATER: 4,
    Act.CANCEL: 2,
    Act.TRANSACT: 5,
    Act.ADMINISTER: 5,
    Act.REFRESH: 1,
    Act.READY: 8,
    Act.GET: 2,
    Act.SERVE: 2,
    Act.ASK: 4,
    Act.REPLY: 8,
    Act.CREDIT: 8,
    Act.FETCH: 2,
    Act.VERDICT_STALE: 2,
    Act.VERDICT_NEVER_SENT: 1,
    Act.UNSUBSCRIBE: 2,
    Act.GOODBYE: 1,
    Act.DISCONNECT: 3,
    Act.HOLD: 2,
    Act.CONGEST: 2,
    Act.PASS: 6,
    Act.SLOW: 2,
    Act.CRASH: 1,
    Act.FAIL: 1,
    Act.FAULT: 2,
    Act.STOP: 1,
    Act.LIE: 2,
    Act.CLOCK: 1,
    Act.TRIM: 1,
}
PATTERNS: Final = (("#",), ("a.*",), ("b.#", "a.c", "*.c"), ("#.c", "b"), ("a",), ("b.>",), ("a.#", "b", "$dlq.g0"))
# In ticks, before each act: mostly nothing, so that things meet.
WAITS: Final = (*[0] * 18, *[1] * 3, 2, 3, 5, 8, 13, 20, 40, 160, 300, 600, 1200)
WAITS_LONG: Final = (*[0] * 16, *[1] * 2, *[2] * 2, 5, 13, 20, 40, 80, 160, 300, 1200, 2048, 5120, 600, 600)
NO_WAIT: Final = 0  # places in both
A_WAIT: Final = 30  # long enough for most clients to be welcome


LEASE_LIMITED_MS: Final = 5000  # groups with this lease have a `max_in_flight`

Topics = tuple[tuple[str, TopicSettings], ...]


class GroupPlan(NamedTuple):
    name: str
    settings: GroupSettings
    fields: dict[str, Any]  # the same, as SUB says it


class Swarm(NamedTuple):
    """What kind of world it is."""

    clients: int
    shared_producer: bool  # two clients use one producer's name, and fence each other
    groups: tuple[GroupPlan, ...]
    latency: tuple[int, ...]  # of each client's connections, in ticks
    commit: int  # how long a commit takes, in ticks
    turn_max: int  # commands that the hub takes in one turn
    ttl_ms: int  # of sessions
    waits: tuple[int, ...]
    credits: tuple[int, ...]
    bytes: tuple[int, ...]
    templates: tuple[bool, bool, bool]  # keys, priorities, ids
    received_pct: int  # publishes of level `received`
    ttl_pct: int  # publishes that expire
    retries: bool  # producers send again what was not confirmed when they come back
    concurrency: int
    step: int  # messages that a group writes down in advance
    batches: bool  # consumers begin whole deliveries
    unsure: bool  # some consumers do not know what they have begun
    topics: Topics  # those that have settings
    ephemeral_pct: int
    start_pct: int  # subscriptions that name a start other than the first
    sources: bool = False  # some clients number their messages with positions that jump
    watched: bool = False  # some clients ask for the pulse
    tenants: bool = False  # clients are of two principals, which use the same names


class Plan(NamedTuple):
    seed: int
    swarm: Swarm
    acts: list[tuple[int, int]]  # (kind, number)


BIG: Final = 1 << 40
MORE: Final = 0x5DEECE66D  # makes another seed of a seed
LOOKS: Final = 0x2545F4914F6CDD1D  # makes a third one
INTRUDES: Final = 0x27BB2EE687B0B0FD  # and a fourth one
SOURCES_SHARE: Final = 0.2  # of all lives
WATCHED_SHARE: Final = 0.2  # of all lives
LOOKED_EACH: Final = 6  # acts, about, of a life that is watched
TENANTS_SHARE: Final = 0.2  # of all lives
INTRUDED_EACH: Final = 6  # acts, about, of a life with tenants
RATED_SHARE: Final = 0.2  # of all groups
ENDING_SHARE: Final = 0.2  # of all groups
ENDS_MS: Final = (500, 2000, 6000)
RATES: Final = ((5, 1000), (40, 1000), (100, 10_000), (3, 2000))  # messages, ms: bursts of 1, 4, 1 and 1
KEPT: Final = (
    TopicSettings(keep="until_acked"),
    TopicSettings(keep="until_acked", max_msgs=4),
    TopicSettings(max_msgs=6),
    TopicSettings(max_msgs=3, on_full="drop_old"),
    TopicSettings(max_age_ms=2000),
    TopicSettings(keep="last_per_key"),
)
DEDUPED: Final = (
    TopicSettings(dedupe_ms=2000),
    TopicSettings(dedupe_ms=2000, dedupe="slide"),
    TopicSettings(dedupe="until_ack"),
    TopicSettings(dedupe="until_ack", keep="until_acked", max_msgs=8),
)


def one_of(rng: random.Random, found: Sequence[Any]) -> Any:
    """What `rng.choice` returns, in half the time."""
    count = len(found)
    bits = count.bit_length()
    at: int = rng.getrandbits(bits)
    while at >= count:
        at = rng.getrandbits(bits)
    return found[at]


def some_of(rng: random.Random, weights: Mapping[Act, int], count: int) -> list[Act]:
    """What `rng.choices` returns."""
    kinds, sums = list(weights), list(accumulate(weights.values()))
    total, last, draw_one = sums[-1] + 0.0, len(sums) - 1, rng.random
    return [kinds[bisect_right(sums, draw_one() * total, 0, last)] for _ in range(count)]


def _topics(rng: random.Random, *, with_ids: bool) -> Topics:
    if rng.random() < (0.3 if with_ids else 0.7):
        return ()
    settings = one_of(rng, DEDUPED if with_ids else KEPT)
    return tuple((name, settings) for name in one_of(rng, (("a", "b.c"), ("a.c", "b", "b.c.d"))))


def _settings(rng: random.Random, orders: tuple[str, ...]) -> GroupSettings:
    order = one_of(rng, orders)
    return GroupSettings(
        one_of(rng, PATTERNS if order == "none" else PATTERNS[:-1]),
        lease_ms=one_of(rng, (500, 2000, 5000, 30_000)),
        attempts_max=one_of(rng, (1, 2, 3, 5)),
        level=Level.RECEIVED if rng.random() < 0.15 else Level.JOURNALED,
        lease_max_ms=one_of(rng, (30_000, 60_000)),
        backoff=one_of(rng, ("fixed", "linear", "exponential")),
        backoff_ms=one_of(rng, (0, 125, 500)),
        backoff_max_ms=one_of(rng, (125, 2000)),
        jitter_pct=one_of(rng, (0, 10, 50)),
        order=order,
        on_expire=one_of(rng, ("drop", "dead")),
        ack="auto" if order == "none" and rng.random() < 0.1 else "explicit",
    )


def _limited(settings: GroupSettings) -> GroupSettings:
    """Some groups have a ceiling. It follows from other settings, so that a seed means the same life as before."""
    if settings.ack != "explicit":
        return settings._replace(max_in_flight=0)
    return settings._replace(max_in_flight=settings.attempts_max) if settings.lease_ms == LEASE_LIMITED_MS else settings


def _group(rng: random.Random, name: str, orders: tuple[str, ...]) -> GroupPlan:
    settings = _limited(_settings(rng, orders))
    return GroupPlan(name, settings, fields_of(settings))


def swarm_of(rng: random.Random) -> Swarm:
    clients = one_of(rng, (2, 2, 3, 3, 4))
    orders = one_of(rng, (("none",), ("none", "key", "strict"), ("key",), ("strict",)))
    with_ids = rng.random() < 0.25
    topics = _topics(rng, with_ids=with_ids)
    until_acked = any(settings.keep == "until_acked" for _, settings in topics)
    until_ack = any(settings.dedupe == "until_ack" for _, settings in topics)
    quick = rng.random() < 0.5
    return Swarm(
        clients=clients,
        shared_producer=rng.random() < 0.15,
        groups=tuple(_group(rng, f"g{i}", orders) for i in range(rng.randint(1, 3))),
        latency=tuple(0 if quick else one_of(rng, (0, 1, 5, 40, 300)) for _ in range(clients)),
        commit=one_of(rng, (0, 1, 1, 4, 60)),
        turn_max=one_of(rng, (1, 4, 100)),
        ttl_ms=one_of(rng, (1000, 2500, 5000, 5000, 10_000)),
        waits=one_of(rng, (WAITS, WAITS, WAITS_LONG)),
        credits=one_of(rng, ((1000,), (0, 1, 2, 5, 1000), (1, 2))),
        bytes=one_of(rng, ((BIG,), (BIG,), (0, 300, 500, BIG), (300,))),
        templates=(orders != ("none",), orders == ("none",) and rng.random() < 0.4, with_ids),
        received_pct=one_of(rng, (0, 0, 30)),
        ttl_pct=0 if until_ack else one_of(rng, (0, 0, 0, 40)),  # has a group met what expired? it cannot be seen
        retries=rng.random() < 0.8,
        concurrency=one_of(rng, (1, 1, 2, 100)),
        step=one_of(rng, (2, 256)),
        batches=rng.random() < 0.15,
        unsure=rng.random() < 0.2,
        topics=topics,
        ephemeral_pct=0 if until_acked else one_of(rng, (0, 0, 20, 50)),
        start_pct=one_of(rng, (0, 0, 30)),
    )


def _with_more(swarm: Swarm, rng: random.Random) -> Swarm:
    """What came later, from numbers of its own, so that all else of a seed is the same life as before."""
    sources = rng.random() < SOURCES_SHARE
    groups = tuple(_with_more_settings(group, rng) for group in swarm.groups)
    watched = rng.random() < WATCHED_SHARE
    return swarm._replace(sources=sources, groups=groups, watched=watched, tenants=rng.random() < TENANTS_SHARE)


def _with_more_settings(group: GroupPlan, rng: random.Random) -> GroupPlan:
    settings = group.settings
    is_rated, rate = rng.random() < RATED_SHARE, one_of(rng, RATES)
    is_ending, expires_ms = rng.random() < ENDING_SHARE, one_of(rng, ENDS_MS)
    if is_ending:
        settings = settings._replace(expires_ms=expires_ms)
    if is_rated:
        settings = settings._replace(rate=rate[0], rate_ms=rate[1])
    return GroupPlan(group.name, settings, fields_of(settings))


class Bias(NamedTuple):
    """What a life must have, for those who look for something special."""

    weights: Mapping[Act, int] = {}
    swarm: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}  # of all groups
    acts: int = 0


def draw(seed: int, bias: Bias | None = None) -> Plan:
    """The life that a seed stands for."""
    rng = random.Random(seed)
    acts = one_of(rng, LENGTHS)
    swarm = _with_more(swarm_of(rng), random.Random(seed ^ MORE))
    weights: dict[Act, int] = dict(ALWAYS)
    for kind, weight in SOMETIMES.items():
        weights[kind] = weight * one_of(rng, (0, 0, 1, 1, 3))
    if swarm.topics:
        weights[Act.TRIM] = 0
    if any(settings.on_full == "refuse" and settings.max_msgs for _, settings in swarm.topics):
        weights[Act.PUBLISH_LATER] = 0  # when it is due, there may be no room
    if swarm.templates[2]:
        weights[Act.CLOCK] = 0  # how long an id is remembered would be anybody's guess
    if bias is not None:
        acts = bias.acts or acts
        weights |= bias.weights
        settings = [_limited(group.settings._replace(**bias.settings)) for group in swarm.groups]
        groups = tuple(GroupPlan(f"g{i}", one, fields_of(one)) for i, one in enumerate(settings))
        swarm = swarm._replace(groups=groups, **bias.swarm)
    kinds = [Act.CONNECT] * swarm.clients + [Act.SUBSCRIBE] * swarm.clients
    kinds += some_of(rng, weights, acts - len(kinds))
    numbers = array("Q", rng.randbytes(8 * acts))
    for at in range(2 * swarm.clients):  # all come together
        numbers[at] = numbers[at] & ~31 | (A_WAIT if at == swarm.clients else NO_WAIT)
    plan: list[tuple[int, int]] = list(zip(kinds, numbers, strict=True))
    start = 2 * swarm.clients
    if swarm.watched:
        plan = _between(plan, Act.PULSE, LOOKED_EACH, start, random.Random(seed ^ LOOKS))
    if swarm.tenants:
        plan = _between(plan, Act.INTRUDE, INTRUDED_EACH, start, random.Random(seed ^ INTRUDES))
    return Plan(seed, swarm, plan)


def _between(
    acts: list[tuple[int, int]], kind: Act, each: int, start: int, rng: random.Random
) -> list[tuple[int, int]]:
    """A life with acts of one more kind between its acts, from its first moments on."""
    more = {rng.randrange(start, len(acts)): rng.getrandbits(59) for _ in range(len(acts) // each)}
    found: list[tuple[int, int]] = []
    for at, act in enumerate(acts):
        if at in more:
            found.append((kind, more[at] * 32 + NO_WAIT))
        found.append(act)
    return found
