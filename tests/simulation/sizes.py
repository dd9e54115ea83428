"""Sizes that are small in a simulated hub, so that what takes a million messages elsewhere takes a dozen here."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

from fabric.router import block_store as block_store
from fabric.router import rounds
from fabric.router.groups import deliver as handing
from fabric.router.groups import dispatcher, lanes, members, subscription
from fabric.router.groups import handed_out as handed
from fabric.router.publish.dedupe import index as ids
from fabric.router.publish.dedupe import segment as id_era
from fabric.router.publish.dedupe import segment_filter as id_span
from fabric.router.read import pulse

BUCKETS: Final = 4
WORDS: Final = 64
SEGMENT_KEYS: Final = 12
FILTER_SEGMENTS: Final = 2

SMALL: Final[dict[ModuleType, dict[str, float]]] = {
    id_era: {
        "BUCKETS": BUCKETS,
        "BUCKET_SHIFT": 62,
        "SEGMENT_KEYS": SEGMENT_KEYS,
        "PAGE_BYTES": 4 * id_era.KEY_BYTES,
        "SLICE_BYTES": 4 * WORDS,
        "SLICES": 2,
        "_SLOT": WORDS - 1,
        "WORDS": WORDS,
    },
    id_span: {
        "BUCKETS": BUCKETS,
        "FILTER_SEGMENTS": FILTER_SEGMENTS,
        "SHARED_WORDS": FILTER_SEGMENTS * WORDS,
        "_SLOT": FILTER_SEGMENTS * WORDS - 1,
    },
    # The latest three blocks, more or less, are in memory.
    block_store: {"GONE_MAX": 1, "KEPT_BLOCKS_MAX": 2, "SCAN_BLOCKS_MAX": 4, "MEMORY_BYTES_MAX": 400},
    handed: {"STEP_MIN": 2, "STEP_MAX": 1024, "GROWTH": 2},
    lanes: {"SCAN_BLOCKS_MAX": 4},
    # A turn hands out some ten blocks, and a consumer holds twelve.
    rounds: {"TURN_WORK": 2_000, "AGAIN_WORK": 500, "GO_WORK_MIN": 200, "GROUP_WORK": 10, "SEARCH_WORK": 200},
    handing: {"LEASE_WORK": 50, "TOPIC_WORK": 10},
    dispatcher: {"SEARCH_WORK": 200},
    members: {"LEASE_WORK": 50},
    subscription: {"HELD_MAX": 12, "HELD_MIN": 3, "ALL_HELD_MAX": 24},
    # A viewer that has not asked for some seconds begins anew, and so does one after a handful of sessions have ended.
    pulse: {"ENDED_MAX": 5, "IDLE_S": 3.0},
    ids: {"BUCKETS": BUCKETS, "SEGMENT_KEYS": SEGMENT_KEYS, "KEPT_ROWS": 3, "STEP_BUCKETS": 1, "STEP_ROWS": 3},
}
_USUAL: Final = {module: {name: getattr(module, name) for name in sizes} for module, sizes in SMALL.items()}


@contextmanager
def small(step: int) -> Iterator[None]:
    """While a life is lived, in which a group writes down so many messages in advance that it is going to hand out."""
    for module, sizes in SMALL.items():
        vars(module).update(sizes)
    vars(handed)["STEP_MIN"] = step
    try:
        yield
    finally:
        for module, sizes in _USUAL.items():
            vars(module).update(sizes)
