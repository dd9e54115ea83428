"""Verifies a snapshot: the manifest against the shards, and the shards against their checksums.

A damaged LMDB file can kill the process that reads it. So a child process checks the shards; if it is killed, that is a
finding, and another child goes on with the next shard.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fabric.errors import SnapshotError
from fabric.journal.tools.child_check import ChildEnded, Tell, in_child
from fabric.snapshot.check_shard import Finding, walk
from fabric.snapshot.folder import find
from fabric.snapshot.manifest import MANIFEST_FILE, EventShard, Manifest, Shard, load
from fabric_protocol.errors import FabricError

Progress = Callable[[int, int], None]  # (checked seqs, all seqs)


class Report(NamedTuple):
    path: str
    quick: bool
    first_seq: int
    last_seq: int
    messages: int
    bytes: int
    shards: int
    events: int
    findings: tuple[Finding, ...]


def verify(path: str | os.PathLike[str], progress: Progress | None = None, *, quick: bool = False) -> Report:
    """Verify a snapshot, or the newest of a folder; `quick` reads no payloads."""
    folder = Path(path)
    if not (folder / MANIFEST_FILE).exists():
        folder = find(path).path
    manifest = load(folder, check_files=False)
    findings = order_findings(manifest)
    begin, total = 0, len(manifest.files)
    while begin < total:
        begin = _verify_files(folder, manifest, begin, quick, findings, progress)
    return Report(
        path=str(folder),
        quick=quick,
        first_seq=manifest.first_seq,
        last_seq=manifest.last_seq,
        messages=manifest.messages,
        bytes=manifest.bytes,
        shards=len(manifest.shards),
        events=sum(shard.rows for shard in manifest.events),
        findings=tuple(findings),
    )


def order_findings(manifest: Manifest) -> list[Finding]:
    """Findings in the manifest itself."""
    findings, last_ts_us = [], 0
    for shard in manifest.shards:
        if shard.first_ts_us and shard.first_ts_us < last_ts_us:
            why = "the first message of the shard is older than the last message of the shard before it"
            findings.append(Finding(shard.file, shard.first_seq, shard.last_seq, why))
        last_ts_us = max(last_ts_us, shard.last_ts_us)
    for group in manifest.groups:
        if group.cursor > manifest.last_seq + 1:
            why = f"group {group.group!r} is at seq {group.cursor}, beyond the last seq"
            findings.append(Finding(MANIFEST_FILE, 0, 0, why))
    return findings


def _verify_files(
    folder: Path, manifest: Manifest, begin: int, quick: bool, findings: list[Finding], progress: Progress | None
) -> int:
    """Check the files from place `begin` on in a child; returns the place of the first file that was not checked."""
    try:
        for kind, *values in in_child(check, str(folder.resolve()), quick, begin):
            if kind == "finding":
                findings.append(Finding(*values))
            elif kind == "done":
                begin = values[0] + 1
            elif progress is not None:
                progress(values[0], manifest.last_seq - manifest.first_seq + 1)
    except ChildEnded as ended:
        if ended.code > 0:
            raise SnapshotError(f"cannot check {folder}: {ended}", "look at what it has printed") from ended
        findings.append(killed(manifest.files[begin], -ended.code))
        return begin + 1
    return begin


def killed(shard: Shard | EventShard, signal: int) -> Finding:
    """The finding about a file that kills the process which reads it."""
    first, last = (shard.first_seq, shard.last_seq) if isinstance(shard, Shard) else (shard.first, shard.last)
    return Finding(shard.file, first, last, f"reading it kills the process (signal {signal})")


def check(tell: Tell, path: str, quick: bool, begin: int) -> None:
    """The child's side: tells findings, progress, and the place of each file that is done."""
    folder = Path(path)
    manifest = load(folder, check_files=False)
    for i, shard in enumerate(manifest.files[begin:], begin):
        is_messages = isinstance(shard, Shard)

        def tell_seq(seq: int, is_messages: bool = is_messages) -> None:
            if is_messages:
                tell("progress", seq - manifest.first_seq)

        try:
            for finding in walk(folder, shard, quick, tell_seq):
                tell("finding", *finding)
        except (FabricError, OSError) as error:
            tell("finding", shard.file, 0, 0, str(error))
        if isinstance(shard, Shard):
            tell_seq(shard.last_seq + 1)
        tell("done", i)
