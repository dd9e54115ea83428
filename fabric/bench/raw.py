"""The speed of the disk: LMDB with the journal's settings, without hub, network and client.

All durable figures are compared with it: a hub cannot be faster than its disk.
"""

import time
from pathlib import Path
from typing import Final

from fabric.journal.environment import open_environment
from fabric_protocol.block import encode

KEY_BYTES: Final = 8


def write_rate(folder: Path, *, messages: int, blocks: int, commits: int, size: int) -> float:
    """Messages per second if the same blocks are written in the same number of synced commits."""
    blocks, commits = max(1, blocks), max(1, commits)
    per_block = max(1, messages // blocks)
    block = encode("bench.raw", [bytes(size)] * per_block)
    folder.mkdir()
    environment = open_environment(folder)
    try:
        table = environment.open_db(b"raw")
        written = 0
        begun = time.monotonic()
        for commit in range(commits):
            until = blocks * (commit + 1) // commits
            with environment.begin(write=True) as txn:
                while written < until:
                    txn.put(written.to_bytes(KEY_BYTES, "big"), block, db=table, append=True)
                    written += 1
        return per_block * blocks / (time.monotonic() - begun)
    finally:
        environment.close()


def commit_us(folder: Path, *, size: int, commits: int) -> list[float]:
    """The times of synced commits of one small block, in microseconds, ascending."""
    block = encode("bench.raw", [bytes(size)])
    folder.mkdir()
    environment = open_environment(folder)
    try:
        table = environment.open_db(b"raw")
        spans = []
        for index in range(commits):
            begun = time.perf_counter()
            with environment.begin(write=True) as txn:
                txn.put(index.to_bytes(KEY_BYTES, "big"), block, db=table, append=True)
            spans.append((time.perf_counter() - begun) * 1e6)
        return sorted(spans)
    finally:
        environment.close()
