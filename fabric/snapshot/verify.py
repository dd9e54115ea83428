"""Checking a snapshot: the manifest against the shards, and the shards against their own checksums.

A damaged LMDB file can kill the process that reads it. The walk is therefore done in a child; when that dies, its death
is a finding, and another child goes on with the next shard.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from fabric.errors import SnapshotError
from fabric.snapshot.check_shard import Finding, walk
from fabric.snapshot.folder import find
from fabric.snapshot.manifest import MANIFEST_FILE, Manifest, Shard, load
from fabric_protocol.errors import FabricError

Progress = Callable[[int, int], None]  # (seqs walked, seqs in all)

_CHILD: Final = "import sys; from fabric.snapshot.verify import main; sys.exit(main(sys.argv[1:]))"


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
    """Hold a snapshot (of a folder of them, the newest) against its checksums; `quick` leaves payloads alone."""
    folder = Path(path)
    if not (folder / MANIFEST_FILE).exists():
        folder = find(path).path
    manifest = load(folder, check_files=False)
    findings = _order(manifest)
    begin, total = 0, len(manifest.files)
    while begin < total:
        begin = _child(folder, manifest, begin, quick, findings, progress)
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


def _order(manifest: Manifest) -> list[Finding]:
    """What the manifest alone can tell."""
    findings, last_ts_us = [], 0
    for shard in manifest.shards:
        if shard.first_ts_us and shard.first_ts_us < last_ts_us:
            why = "the shard begins before the one in front of it ends"
            findings.append(Finding(shard.file, shard.first_seq, shard.last_seq, why))
        last_ts_us = max(last_ts_us, shard.last_ts_us)
    for group in manifest.groups:
        if group.cursor > manifest.last_seq + 1:
            why = f"group {group.group!r} is at seq {group.cursor}, beyond the last one"
            findings.append(Finding(MANIFEST_FILE, 0, 0, why))
    return findings


def _child(
    folder: Path, manifest: Manifest, begin: int, quick: bool, findings: list[Finding], progress: Progress | None
) -> int:
    """Let a child walk the shards from one on; returns the first one that was not walked."""
    roots = [str(Path(__file__).parents[2]), *filter(None, sys.path)]  # what this process can import, the child can
    command = [
        sys.executable,
        "-P",
        "-S",
        "-c",
        _CHILD,
        str(folder.resolve()),
        "quick" if quick else "full",
        str(begin),
    ]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(roots))
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        assert child.stderr is not None
        for line in child.stdout:
            kind, *values = json.loads(line)
            if kind == "finding":
                findings.append(Finding(*values))
            elif kind == "done":
                begin = values[0] + 1
            elif progress is not None:
                progress(values[0], manifest.last_seq - manifest.first_seq + 1)
        said = child.stderr.read().strip()
    if child.returncode < 0:
        shard = manifest.files[begin]
        first, last = (shard.first_seq, shard.last_seq) if isinstance(shard, Shard) else (shard.first, shard.last)
        why = f"reading it kills the process (signal {-child.returncode})"
        findings.append(Finding(shard.file, first, last, why))
        return begin + 1
    if child.returncode:
        raise SnapshotError(f"the check of {folder} failed: {said.splitlines()[-1] if said else child.returncode}")
    return begin


def main(arguments: list[str]) -> int:
    """The child: one JSON array for each line."""
    folder, extent, begin = Path(arguments[0]), arguments[1], int(arguments[2])
    manifest = load(folder, check_files=False)
    for i, shard in enumerate(manifest.files[begin:], begin):
        is_messages = isinstance(shard, Shard)

        def tell(seq: int, is_messages: bool = is_messages) -> None:
            if is_messages:
                print(json.dumps(["progress", seq - manifest.first_seq]), flush=True)

        try:
            for finding in walk(folder, shard, extent == "quick", tell):
                print(json.dumps(["finding", *finding]), flush=True)
        except (FabricError, OSError) as error:
            print(json.dumps(["finding", shard.file, 0, 0, str(error)]), flush=True)
        if isinstance(shard, Shard):
            tell(shard.last_seq + 1)
        print(json.dumps(["done", i]), flush=True)
    return 0
