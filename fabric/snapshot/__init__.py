"""Snapshots: consistent copies of a journal for other readers, as immutable shards and a manifest.

create(journal, target, previous=…)    take a snapshot; shards of the previous snapshot are linked
load(path), find(path)                 the manifest of a snapshot, or of the newest snapshot in a folder
verify(path)                           compare the shards with the manifest and with their checksums
open_shard(file), iterate_blocks(…)    read a shard
"""

from fabric.snapshot.builder import Pace
from fabric.snapshot.check_shard import Finding
from fabric.snapshot.create import Made, create, create_in
from fabric.snapshot.folder import Busy, Snapshot, find, snapshots
from fabric.snapshot.manifest import EventShard, GroupState, Manifest, NotASnapshot, Shard, TopicState, load
from fabric.snapshot.push import Pushed, push
from fabric.snapshot.shards import iterate_blocks, iterate_events, iterate_origins, open_shard
from fabric.snapshot.verify import Report, verify

__all__ = [
    "Busy",
    "EventShard",
    "Finding",
    "GroupState",
    "Made",
    "Manifest",
    "NotASnapshot",
    "Pace",
    "Pushed",
    "Report",
    "Shard",
    "Snapshot",
    "TopicState",
    "create",
    "create_in",
    "find",
    "iterate_blocks",
    "iterate_events",
    "iterate_origins",
    "load",
    "open_shard",
    "push",
    "snapshots",
    "verify",
]
