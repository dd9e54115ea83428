"""Bugs to be planted in the router, one at a time: where, what instead, and in which worlds to look for it."""

from typing import Any, Final, NamedTuple

from fabric.records import DropGroup, SaveIds, SaveProducer, SaveSchedule
from fabric.router import commands, transactions
from fabric.router import router as core
from fabric.router.admin import groups as admin_groups
from fabric.router.block_store import BlockStore
from fabric.router.dead_letters import blocks as letters
from fabric.router.dead_letters.index import DeadLetters
from fabric.router.groups import dead_letter_writer, dispatcher, lanes, pattern_change, refresh, verdict_rows
from fabric.router.groups import key_locks as keys
from fabric.router.groups import redelivery as pending
from fabric.router.groups import verdicts as settling
from fabric.router.groups.backlog import Backlog
from fabric.router.groups.failures import Failures
from fabric.router.groups.group import Group
from fabric.router.groups.idle_groups import IdleGroups
from fabric.router.groups.members import Members
from fabric.router.groups.recount import Recounts
from fabric.router.groups.redelivery import Pending
from fabric.router.groups.subscription import Subscription
from fabric.router.groups.throttle import Pace, Throttle
from fabric.router.publish import publishing as publishing
from fabric.router.publish import sources
from fabric.router.publish.dedupe.index import Ids
from fabric.router.publish.producers import Producer
from fabric.router.publish.sources import Source
from fabric.router.ranges import Ranges
from fabric.router.read.get import Reading
from fabric.router.requests.requests import Requests
from fabric.router.requests.services import Responder
from fabric.router.rounds import Rounds
from fabric.router.router import Router
from fabric.router.schedules.cron import Cron
from fabric.router.schedules.due_queue import DueQueue
from fabric.router.schedules.schedules import Schedules
from fabric.router.sessions.session import Session
from fabric.router.topics import retention
from fabric.router.topics.compaction import Latest
from fabric.router.topics.retention import TopicRetention
from fabric.router.topics.table import TopicTable
from fabric.router.topics.topic import Topic
from fabric.router.transactions import Transactions
from fabric_protocol.block_parts import pick
from tests.simulation import faults
from tests.simulation.blocks import TOPICS
from tests.simulation.mutations import (
    a_minute_late,
    always,
    apply_though_it_fails,
    below_the_position,
    charge_half,
    claim_and_keep,
    close_without_a_row,
    close_without_a_word,
    confirm_before_the_disk,
    count_nothing,
    count_twice,
    count_what_is_on_disk,
    credit_off_by_one,
    deliver_before_the_disk,
    drop_of,
    empty,
    end_with_consumers,
    fail_as_unseen,
    fit_what_expired,
    forget_gaps,
    forget_the_rest,
    forget_the_wait,
    forget_what_waits,
    get_from_the_second,
    get_no_more,
    ignore_stale,
    is_emptied_setting,
    lapse_without_revoking,
    last_of_all,
    leave_and_keep,
    leave_and_take_along,
    letters_a_turn_later,
    lost_and_kept,
    lost_without_a_word,
    lowest_first,
    merged_with_the_first,
    move_and_tell,
    never_strict,
    nothing,
    one_by_one,
    one_too_many,
    producer_without_epoch,
    put_at_once,
    record_with,
    record_without_the_cursor,
    resend_everything,
    resend_nothing,
    restore_producer_anew,
    restore_without_blocks,
    restore_without_failures,
    restore_without_pause,
    restore_without_the_wait,
    room_whatever_the_bytes,
    room_whatever_the_peer,
    search_past_gaps,
    take_early,
    take_too_much,
    take_what_is_stored_in_part,
    the_last_is_not_final,
    touch_for_ever,
    welcome_at_once,
    without,
    without_option,
    without_starts,
    write_without_the_rest,
)
from tests.simulation.plan import DEDUPED, KEPT, SOMETIMES, Act, Bias


class Mutant(NamedTuple):
    where: Any
    name: str
    instead: Any
    bias: Bias | None = None


ORDERED_BY_KEY: Final = Bias(settings={"order": "key", "ack": "explicit"}, swarm={"templates": (True, False, False)})
STRICT: Final = Bias(settings={"order": "strict", "ack": "explicit"})
RANKED: Final = Bias(settings={"order": "none"}, swarm={"templates": (False, True, False), "credits": (1, 2, 5)})
CLAIMING: Final = Bias(
    swarm={"shared_producer": True, "retries": True},
    weights={Act.PUBLISH: 20, Act.PUBLISH_AGAIN: 12, Act.CONNECT: 20, Act.DISCONNECT: 14, Act.CRASH: 8},
)
CRASHES: Final = Bias(weights={Act.CRASH: 8})
RATED: Final = Bias(
    weights={Act.PUBLISH: 30, Act.VERDICT: 40, Act.STOP: 6}, settings={"rate": 5, "rate_ms": 1000, "patterns": ("#",)}
)
NUMBERED: Final = Bias(
    swarm={"sources": True, "retries": True},
    weights={Act.PUBLISH: 30, Act.PUBLISH_AGAIN: 10, Act.CONNECT: 12, Act.DISCONNECT: 8, Act.CRASH: 6},
)
FAILING: Final = Bias(
    weights={Act.CRASH: 6, Act.VERDICT: 40}, settings={"attempts_max": 3, "order": "none", "ack": "explicit"}
)
LAPSING: Final = Bias(weights={Act.PASS: 12}, settings={"lease_ms": 500, "attempts_max": 3, "ack": "explicit"})
RESUMING: Final = Bias(weights={Act.DISCONNECT: 10, Act.CONNECT: 16})

EXPIRING: Final = Bias(swarm={"ttl_pct": 70, "credits": (1, 2)}, weights={Act.PASS: 16})
LATER: Final = Bias(weights={Act.PUBLISH_LATER: 20, Act.CRASH: 6, Act.CANCEL: 8, Act.PASS: 10})
WITH_IDS: Final = Bias(swarm={"templates": (False, False, True)}, weights={Act.CRASH: 6, Act.CLOCK: 0})
TRANSACTING: Final = Bias(weights={Act.TRANSACT: 24, Act.PASS: 10}, settings={"lease_ms": 500, "ack": "explicit"})
ADMINISTERED: Final = Bias(weights={Act.ADMINISTER: 20, Act.CRASH: 4}, settings={"attempts_max": 2})
LONG_AND_RANKED: Final = RANKED._replace(
    settings={"order": "none", "ack": "auto", "patterns": ("#",)}, weights={Act.PUBLISH: 60, Act.CREDIT: 30}, acts=96
)

UNTIL_ACKED: Final = (("a", KEPT[0]), ("b.c", KEPT[0]))
QUEUE: Final = tuple((name, KEPT[1]) for name in TOPICS)
FULL: Final = (("a", KEPT[2]), ("b.c", KEPT[2]))
DROPPING: Final = (("a", KEPT[3]), ("b.c", KEPT[3]))
AGING: Final = (("a", KEPT[4]), ("b.c", KEPT[4]), ("b", KEPT[4]))
LATEST: Final = (("a", KEPT[5]), ("b.c", KEPT[5]))
JOBS: Final = (("a", DEDUPED[2]), ("b.c", DEDUPED[2]), ("b", DEDUPED[2]))
KEYED: Final = (True, False, False)
WITH_ALL: Final = (False, True, True)
FEW_AT_A_TIME: Final = {"templates": (False, True, False), "credits": (1, 2), "ephemeral_pct": 0, "ttl_pct": 0}
QUIET: Final = dict.fromkeys(SOMETIMES, 0)
ONE_BY_ONE: Final = {"clients": 2, "latency": (0, 0), "bytes": (1 << 40,), "ttl_pct": 0, "ephemeral_pct": 0}
PLAIN: Final = {"order": "none", "ack": "explicit", "patterns": ("#",), "lease_ms": 30_000}
QUEUED: Final = Bias(
    swarm={**FEW_AT_A_TIME, **ONE_BY_ONE, "topics": QUEUE, "credits": (1,), "ttl_ms": 10_000, "commit": 0},
    weights={**QUIET, Act.PUBLISH: 30, Act.VERDICT: 40, Act.FETCH: 12, Act.PASS: 10, Act.SUBSCRIBE: 3, Act.CONNECT: 3},
    settings=PLAIN,
    acts=64,
)
WORKING: Final = Bias(
    swarm={**FEW_AT_A_TIME, **ONE_BY_ONE, "topics": JOBS, "templates": WITH_ALL, "concurrency": 1},
    weights={**QUIET, Act.CREDIT: 20, Act.FETCH: 10, Act.PUBLISH: 30, Act.VERDICT: 40},
    settings=PLAIN,
    acts=64,
)
FORGETFUL: Final = Bias(
    swarm={**ONE_BY_ONE, "topics": AGING, "step": 256, "credits": (1000,)},
    weights={**QUIET, Act.CRASH: 6, Act.PASS: 16, Act.PUBLISH: 20, Act.VERDICT: 4},
    settings=PLAIN,
)
TAKEOVER: Final = Bias(
    weights={Act.DISCONNECT: 16, Act.CONNECT: 14, Act.PASS: 10, Act.SUBSCRIBE: 10}, settings={"ack": "explicit"}
)
REFRESHING: Final = Bias(weights={Act.REFRESH: 14, Act.READY: 4, Act.CRASH: 8, Act.GOODBYE: 4})
REFRESHING_AND_MOVED: Final = Bias(weights={Act.REFRESH: 10, Act.READY: 2, Act.ADMINISTER: 14})
UNSURE: Final = TAKEOVER._replace(
    swarm={"unsure": True, "concurrency": 1}, settings={"order": "none", "ack": "explicit"}
)
ORDERED_AND_LOST: Final = TAKEOVER._replace(
    swarm={"templates": KEYED, "concurrency": 100}, settings={"order": "key", "ack": "explicit", "attempts_max": 2}
)
READING: Final = Bias(weights={Act.GET: 14, Act.PUBLISH: 20})
ASKING: Final = Bias(weights={Act.SERVE: 10, Act.ASK: 30, Act.REPLY: 30, Act.DISCONNECT: 6, Act.PASS: 8})
PATTERNED: Final = Bias(
    weights={Act.ADMINISTER: 30, Act.PUBLISH: 20, Act.CRASH: 4}, swarm={"topics": ()}, settings={"ack": "explicit"}
)
SPARSE: Final = Bias(
    weights={**QUIET, Act.ADMINISTER: 30, Act.PUBLISH: 20, Act.VERDICT: 4, Act.CRASH: 6},
    swarm={**ONE_BY_ONE, "topics": (), "credits": (1000,), "ttl_ms": 10_000, "step": 256},
    settings={**PLAIN, "patterns": ("a.*",)},
)
TRIMMED: Final = Bias(
    weights={**QUIET, Act.TRIM: 10, Act.PUBLISH: 30, Act.VERDICT: 20},
    swarm={**ONE_BY_ONE, "topics": (), "credits": (1000,), "ttl_ms": 10_000},
    settings={**PLAIN, "attempts_max": 1},
)
RECOUNTED: Final = Bias(
    swarm={**ONE_BY_ONE, "topics": tuple((name, KEPT[2]) for name in TOPICS), "commit": 60, "ttl_ms": 10_000},
    weights={
        **QUIET,
        Act.PUBLISH: 30,
        Act.PUBLISH_LATER: 16,
        Act.TRIM: 12,
        Act.SLOW: 8,
        Act.PASS: 6,
        Act.CONNECT: 6,
        Act.VERDICT: 4,
        Act.SUBSCRIBE: 2,
    },
    settings=PLAIN,
    acts=64,
)
VERBOSE: Final = Bias(weights={Act.VERDICT: 60}, settings={"ack": "explicit", "lease_ms": 30_000})

RATED_IN_BURSTS: Final = RATED._replace(settings={**RATED.settings, "rate": 40})
ENDING: Final = Bias(
    weights={Act.GOODBYE: 6, Act.UNSUBSCRIBE: 6, Act.PASS: 12, Act.CRASH: 4}, settings={"expires_ms": 2000}
)
RATED_BY_KEY: Final = ORDERED_BY_KEY._replace(settings={**ORDERED_BY_KEY.settings, **RATED.settings})

MUTANTS: Final = {
    "group.settle leaves the leases": Mutant(settling, "take_back_up_to", nothing, ADMINISTERED),
    "a ceiling is ignored": Mutant(Throttle, "room", always(1 << 40), Bias(settings={"lease_ms": 5000})),
    "the bucket of a rate is never charged": Mutant(Pace, "take", nothing, RATED),
    "a message costs half of what it should": Mutant(Pace, "take", charge_half(Pace.take), RATED_IN_BURSTS),
    "a rate is not looked at before a key": Mutant(Pace, "room", always(1 << 40), RATED_BY_KEY),
    "a stopped hub forgets how full a bucket is": Mutant(Pace, "restore", nothing, RATED),
    "the wait for a rate never ends": Mutant(Throttle, "is_due", forget_the_wait, RATED),
    "a group ends although a consumer is there": Mutant(
        IdleGroups, "note", end_with_consumers(IdleGroups.note), ENDING
    ),
    "a group without consumers never ends": Mutant(IdleGroups, "tick", nothing, ENDING),
    "a group waits anew after a restart": Mutant(Group, "restore", restore_without_the_wait(Group.restore), ENDING),
    "a group that has ended comes back": Mutant(Router, "seal", without(DropGroup)(Router.seal), ENDING),
    "confirmed before the disk": Mutant(Router, "seal", confirm_before_the_disk(Router.seal)),
    "delivered before the disk": Mutant(Router, "seal", deliver_before_the_disk(Router.seal)),
    "the floor goes down": Mutant(Group, "record", record_with(cursor=lambda row: max(row.cursor - 3, 1))),
    "open seqs are forgotten": Mutant(Group, "record", record_with(open=lambda row: ())),
    "settled groups are not saved": Mutant(Group, "close", close_without_a_row, CRASHES),
    "settling does nothing": Mutant(Group, "close", nothing),
    "producers are not saved": Mutant(Router, "seal", without(SaveProducer)(Router.seal), CRASHES),
    "a resend is stored again": Mutant(Producer, "duplicate_of", nothing),
    "pseqs are forgotten on restart": Mutant(Producer, "restore", restore_producer_anew, CRASHES),
    "epochs are forgotten on restart": Mutant(Producer, "record", producer_without_epoch(Producer.record), CRASHES),
    "a claim is told before the disk": Mutant(commands, "hello", welcome_at_once(commands.hello), CLAIMING),
    "a claim is not saved": Mutant(publishing.Publishing, "save", nothing, CLAIMING),
    "any block is a resend": Mutant(Producer, "_is_stored", always(True), CLAIMING),
    "a claim keeps the numbers": Mutant(Producer, "claim", claim_and_keep, CLAIMING),
    "the cursor of a source is not saved": Mutant(Source, "record", record_without_the_cursor(Source.record), NUMBERED),
    "sources forget their blocks on restart": Mutant(
        Source, "restore", restore_without_blocks(Source.restore), NUMBERED
    ),
    "the last position of a block is ignored": Mutant(
        sources, "_last", lambda pseq, count, options: pseq + count - 1, NUMBERED
    ),
    "a resend of a source is stored again": Mutant(Source, "duplicate_of", nothing, NUMBERED),
    "a source passes over what was refused": Mutant(
        Source, "duplicate_of", without_option("after")(Source.duplicate_of), NUMBERED
    ),
    "resends of a source are compared without their last position": Mutant(
        Source, "duplicate_of", without_option("last")(Source.duplicate_of), NUMBERED
    ),
    "what is stored in part is stored again": Mutant(
        Source, "duplicate_of", take_what_is_stored_in_part(Source._back_to), NUMBERED
    ),
    "a source is not told that it is one": Mutant(Source, "jumps", False, NUMBERED),
    "producers are not fenced": Mutant(Session, "fenced", False, Bias(swarm={"shared_producer": True})),
    "dead letters are dropped": Mutant(dead_letter_writer, "dead_letters", empty),
    "dead letters of what is left of a block are dropped": Mutant(
        dispatcher.Dispatcher,
        "_write_dead_letters",
        write_without_the_rest(dispatcher.Dispatcher._write_dead_letters),
        TRIMMED,
    ),
    "dead letters come a turn later": Mutant(
        dead_letter_writer, "dead_letters", letters_a_turn_later(letters.dead_letters)
    ),
    "lapsed ordinals stay good": Mutant(settling, "lapse", lapse_without_revoking, LAPSING),
    "leases never lapse": Mutant(settling, "lapse", nothing, LAPSING),
    "stale verdicts are called good": Mutant(settling, "settle", ignore_stale(settling.settle)),
    "a lease can be touched for ever": Mutant(settling, "settle", touch_for_ever(settling.settle), LAPSING),
    "a lost member takes along what it held": Mutant(settling, "leave", leave_and_take_along),
    "attempts begin anew on restart": Mutant(Group, "record", record_with(handed=lambda row: ()), CRASHES),
    "failures are counted twice": Mutant(settling, "_fail", count_twice(settling._fail), FAILING),
    "failures are not counted": Mutant(settling, "_fail", count_nothing(settling._fail), FAILING),
    "failures are not saved": Mutant(Failures, "rows", empty, FAILING),
    "failures are forgotten on restart": Mutant(Group, "restore", restore_without_failures(Group.restore), FAILING),
    "what was only prefetched counts as failed": Mutant(
        Subscription, "begun", lambda self: Ranges([(1, self.sent)]), LAPSING
    ),
    "a failure that several share ends all of them": Mutant(settling, "_is_shared", always(False), LAPSING),
    "suspects are not alone": Mutant(pending, "SUSPECT_FAILURES", 1000, FAILING),
    "what waits is delivered at once": Mutant(Pending, "put", put_at_once, FAILING),
    "what waits is forgotten": Mutant(Pending, "due", forget_what_waits, FAILING),
    "credit is off by one": Mutant(Subscription, "room", credit_off_by_one(Subscription.room)),
    "byte credit is ignored": Mutant(
        Subscription, "room", room_whatever_the_bytes, Bias(swarm={"bytes": (0, 300)}, settings={"ack": "explicit"})
    ),
    "peers that cannot take more get more": Mutant(Subscription, "room", room_whatever_the_peer),
    "keys are not kept in order": Mutant(keys.Keys, "names", lambda self, block: [b""] * block.count, ORDERED_BY_KEY),
    "later ones of a key are not taken back": Mutant(settling, "_take_back_later", nothing, ORDERED_BY_KEY),
    "strict order is not kept": Mutant(Group, "__init__", never_strict(Group.__init__), STRICT),
    "low priorities first": Mutant(Group, "add_lane", lowest_first(Group.add_lane), RANKED),
    "low priorities starve": Mutant(lanes, "STREAK_MAX", 1 << 40, LONG_AND_RANKED),
    "what has expired is delivered": Mutant(lanes, "deliverable_runs", fit_what_expired, EXPIRING),
    "schedules are not removed when they fire": Mutant(
        Schedules, "_drop", lambda self, schedule, turn: self._overlay.dropped(drop_of(schedule)), LATER
    ),
    "schedules fire too early": Mutant(DueQueue, "take", take_early(DueQueue.take), LATER),
    "schedules are lost on restart": Mutant(Router, "seal", without(SaveSchedule)(Router.seal), LATER),
    "a cancelled schedule fires": Mutant(Schedules, "_end", nothing, LATER),
    "ids are forgotten on restart": Mutant(Ids, "_restore", nothing, WITH_IDS),
    "ids are not saved": Mutant(Router, "seal", without(SaveIds)(Router.seal), WITH_IDS),
    "every id is new": Mutant(Ids, "_counts", always(False), WITH_IDS),
    "a TXN is done by halves": Mutant(transactions, "_require_open", nothing, TRANSACTING),
    "a TXN forgets its verdicts": Mutant(Transactions, "_checked", empty, TRANSACTING),
    "a seek leaves the leases": Mutant(settling, "take_back_all", nothing, ADMINISTERED),
    "a seek moves though it was only asked about": Mutant(
        admin_groups, "_meaning", move_and_tell(admin_groups._meaning), Bias(weights={Act.ADMINISTER: 40})
    ),
    "a seek does not move": Mutant(Group, "move", nothing, ADMINISTERED),
    "a paused group delivers": Mutant(dispatcher.Dispatcher, "pause", nothing, ADMINISTERED),
    "a pause ends with a restart": Mutant(Group, "restore", restore_without_pause(Group.restore), ADMINISTERED),
    "a deleted group comes back": Mutant(Router, "seal", without(DropGroup)(Router.seal), ADMINISTERED),
    "letters are redriven to everybody": Mutant(letters, "REDRIVE", "b.", ADMINISTERED),
    "letters are redriven for ever": Mutant(DeadLetters, "remove", nothing, ADMINISTERED),
    "groups are not woken": Mutant(Group, "wake", nothing),
    "nothing is sent again on resume": Mutant(Members, "send_again", resend_nothing, RESUMING),
    "everything is sent again on resume": Mutant(Members, "send_again", resend_everything, RESUMING),
    "groups for which a turn has no work left are forgotten": Mutant(Rounds, "__iter__", forget_the_rest),
    "nobody is told of gaps": Mutant(Group, "lost", lost_without_a_word, Bias(weights={Act.TRIM: 8})),
    "gaps are forgotten on restart": Mutant(
        Group, "record", record_with(untold=lambda row: ()), Bias(weights={Act.TRIM: 10, Act.CRASH: 8, Act.GOODBYE: 6})
    ),
    "what is removed is passed over before the news": Mutant(
        BlockStore, "awaits_news", always(False), Bias(weights={Act.TRIM: 12, Act.CRASH: 6})
    ),
    "gaps are told at each search": Mutant(
        lanes,
        "deliverable_runs",
        search_past_gaps(lanes.deliverable_runs),
        Bias(swarm={"topics": DROPPING, "credits": (1, 2)}),
    ),
    "gaps are told and kept": Mutant(Group, "lost", lost_and_kept(Group.lost), Bias(weights={Act.TRIM: 12})),
    "discarded blocks are found": Mutant(
        BlockStore, "discard", nothing, Bias(swarm={"topics": DROPPING, "credits": (1, 2)})
    ),
    "gaps are told by halves": Mutant(Group, "tell_gaps", forget_gaps, Bias(weights={Act.TRIM: 10, Act.GOODBYE: 6})),
    "messages are removed before they are settled": Mutant(
        TopicRetention,
        "_settled_below",
        lambda self, topic: self._shared.committed_seq + 1,
        Bias(swarm={"topics": UNTIL_ACKED, "ephemeral_pct": 0, "credits": (0, 1, 2)}, weights={Act.TRIM: 0}),
    ),
    "lanes move only when there is credit": Mutant(dispatcher, "advance", always(False), QUEUED),
    "settled means below the position": Mutant(Group, "has_settled", below_the_position, WORKING),
    "an id counts though its job is done": Mutant(
        core, "is_over", always(False), Bias(swarm={"topics": JOBS, "templates": (False, False, True)})
    ),
    "an id does not count while its job is not done": Mutant(
        core, "is_over", always(True), Bias(swarm={"topics": JOBS, "templates": (False, False, True)})
    ),
    "full topics take more": Mutant(TopicTable, "require_room", nothing, Bias(swarm={"topics": FULL})),
    "messages of the open turn do not count": Mutant(
        TopicRetention, "_count_open", lambda self, topic, counting: counting.stop, RECOUNTED
    ),
    "messages on their way to the disk do not count": Mutant(
        TopicRetention, "_count_sealed", count_what_is_on_disk(TopicRetention._count_sealed), RECOUNTED
    ),
    "a topic drops one too many": Mutant(
        Topic, "uncount", one_too_many(Topic.uncount), Bias(swarm={"topics": DROPPING, "credits": (1, 2)})
    ),
    "the latest of a key is let go": Mutant(
        Latest, "is_superseded", lambda self, key, seq: bool(key), Bias(swarm={"topics": LATEST, "templates": KEYED})
    ),
    "nobody is told what a topic dropped": Mutant(
        Group, "lost", lost_without_a_word, Bias(swarm={"topics": DROPPING, "credits": (1, 2)})
    ),
    "what was handed out is not noted when its block goes": Mutant(Group, "record_beyond", nothing, FORGETFUL),
    "a command fails, and has changed something": Mutant(
        dispatcher.Dispatcher,
        "apply",
        apply_though_it_fails(dispatcher.Dispatcher.apply),
        Bias(weights={Act.FAULT: 20}),
    ),
    "a stopped hub forgets what it handed out": Mutant(
        Router, "drain", nothing, Bias(weights={Act.STOP: 12, Act.CRASH: 0, Act.FAIL: 0})
    ),
    "waits have no end": Mutant(
        faults, "decode_command", lambda frames: None, Bias(weights={Act.LIE: 20}, settings={"order": "none"})
    ),
    "what was begun is passed on": Mutant(Subscription, "kept", lambda self: Ranges(), TAKEOVER),
    "an unsure consumer fails what it may have done": Mutant(
        Subscription, "begun", lambda self: self._oldest(self.concurrency - len(self.lapsed)), UNSURE
    ),
    "what an unsure consumer may have done is passed on": Mutant(
        Subscription, "kept", lambda self: self._oldest(self.concurrency - len(self.lapsed)), UNSURE
    ),
    "nothing with a key counts as begun": Mutant(
        Subscription, "_oldest_of_keys", lambda self, lease, names, keys, count, found: 0, ORDERED_AND_LOST
    ),
    "nothing is passed on": Mutant(settling, "detach", nothing, TAKEOVER),
    "sessions that are silent together go one by one": Mutant(Members, "detach", one_by_one(Members.detach), TAKEOVER),
    "a grace never ends": Mutant(core, "GRACE_S", 1e6, TAKEOVER),
    "a consumer that is back is still away": Mutant(Members, "reattach", nothing, TAKEOVER),
    "a refresh ends too early": Mutant(refresh._Refresh, "is_at_target", True, REFRESHING),
    "a refresh never ends": Mutant(refresh._Refresh, "is_at_target", False, REFRESHING),
    "a refresh begins elsewhere after a restart": Mutant(Router, "seal", without_starts(Router.seal), REFRESHING),
    "a refresh does not start over": Mutant(refresh.Refreshes, "_start_over", nothing, REFRESHING),
    "messages of a refresh can be skipped": Mutant(refresh.Refreshes, "require_all", nothing, REFRESHING_AND_MOVED),
    "GET says too early that this is all": Mutant(Reading, "get", get_no_more(Reading.get), READING),
    "GET leaves out the first": Mutant(Reading, "get", get_from_the_second(Reading.get), READING),
    "calendars are a minute late": Mutant(
        Cron, "after", a_minute_late(Cron.after), Bias(weights={Act.PUBLISH_LATER: 30, Act.CLOCK: 4})
    ),
    "rows are merged whatever they say": Mutant(verdict_rows, "merged", merged_with_the_first, VERBOSE),
    "rows are applied in another order": Mutant(verdict_rows, "merged", lambda rows: rows[::-1], VERBOSE),
    "a FETCH is never closed": Mutant(dispatcher.Dispatcher, "_end_fetch", nothing, Bias(weights={Act.FETCH: 10})),
    "a group that is made again loses its row": Mutant(
        Router, "seal", last_of_all(lambda record: type(record) is DropGroup)(Router.seal), REFRESHING
    ),
    "the start of a refresh goes with that of the one before": Mutant(
        Router, "seal", last_of_all(is_emptied_setting)(Router.seal), REFRESHING
    ),
    "new patterns reach back": Mutant(dispatcher, "before_change", nothing, PATTERNED),
    "new patterns find what lies between": Mutant(pattern_change, "_close_unmatched", nothing, SPARSE),
    "a responder is asked more than it can do": Mutant(Responder, "is_free", True, ASKING),
    "a request has an end that is not told": Mutant(Requests, "_fail", close_without_a_word, ASKING),
    "a request outlives its responder": Mutant(Requests, "leave", leave_and_keep, ASKING),
    "a request that a responder has seen is called unseen": Mutant(
        Requests, "_fail", fail_as_unseen(Requests._fail), ASKING
    ),
    "a request waits for ever": Mutant(Requests, "_mark_runnable", nothing, ASKING),
    "a request has more replies than it wanted": Mutant(
        Requests, "reply", the_last_is_not_final(Requests.reply), ASKING
    ),
    "a request ends twice": Mutant(Requests, "_close", nothing, ASKING),
    "expired messages stay ready": Mutant(lanes, "pass_by", nothing, EXPIRING),
    "removed messages stay ready": Mutant(retention, "floor_rises", nothing, Bias(swarm={"topics": DROPPING})),
    "delivered messages stay ready": Mutant(Backlog, "has", always(False), PATTERNED),
    "a block of several topics is ready as a whole": Mutant(
        dispatcher, "takers_of", lambda shared, block: [(g, block.count) for g in shared.trie.match(block.topics[0])]
    ),
    "a count forgets a block": Mutant(Recounts, "_add", nothing, REFRESHING),
    "ranges take too much": Mutant(Ranges, "remove", take_too_much(Ranges.remove)),
    "blocks are joined in the wrong order": Mutant(publishing, "join", lambda blocks: pick(blocks[-1], [(0, 1)])),
}
