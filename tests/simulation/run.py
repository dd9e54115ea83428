"""Many lives on all cores, or one of them in detail."""

import argparse
import gc
import multiprocessing
import os
import random
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.simulation.acts import live
from tests.simulation.compiled import enter, is_compiled
from tests.simulation.facts import Counts, Unclear
from tests.simulation.finish import finish
from tests.simulation.plan import Act, Plan, draw
from tests.simulation.shrink import shrink
from tests.simulation.sizes import small
from tests.simulation.world import World

CHUNK: Final = 50  # lives that a core lives before it reports
CHUNKS: Final = 20  # after so many a process ends: it collects no garbage, and a life leaves some 128 KiB
ACT_NAMES: Final = [f"act {kind.name.lower()}" for kind in Act]


class Life(NamedTuple):
    steps: int
    counts: Counts


class Report(NamedTuple):
    """What became of a chunk of lives."""

    lives: int
    steps: int
    counts: Counts
    failed: int | None  # the seed of the first that failed


def play(plan: Plan, trace: list[str] | None = None) -> Life:
    """Live a plan to its end; what is wrong raises."""
    with small(plan.swarm.step):
        world = World(plan, trace)
        try:
            live(world)
            finish(world)
        except Unclear:
            world.counts["unclear"] += 1
    world.counts["topics trimmed"] += sum(row.floor > 1 for row in world.disk.topics.values())
    world.counts.update(dict(zip(ACT_NAMES, world.acts, strict=True)))
    return Life(world.steps, world.counts)


def verdict_on(plan: Plan) -> str:
    """How a life fails, without the numbers, so that equal failures are equal; nothing when it does not."""
    try:
        play(plan)
    except Exception as error:
        return re.sub(r"[0-9]+", "#", f"{type(error).__name__} {error}")[:60]
    return ""


def explain(seed: int) -> str:
    """A failing life, made short, with everything that was said in it."""
    plan = draw(seed)
    short = shrink(plan, verdict_on)
    trace: list[str] = []
    try:
        play(short, trace)
    except Exception as error:
        trace.append(f"           {type(error).__name__}: {error}")
    kept = f"{len(short.acts)} of {len(plan.acts)} acts are enough"
    return "\n".join([f"seed {seed}: {kept}", *world_of(plan), *trace])


def world_of(plan: Plan) -> list[str]:
    """What kind of world a life is in."""
    lines = [f"  {name}: {value}" for name, value in plan.swarm._asdict().items() if name != "groups"]
    return lines + [f"  {group.name}: {group.settings}" for group in plan.swarm.groups]


def chunk(seeds: range) -> Report:
    """Some lives. What they leave behind is collected afterwards: to look for it within a life takes longer."""
    gc.disable()
    try:
        return lives_of(seeds)
    finally:
        gc.enable()
        gc.collect()


def lives_of(seeds: range) -> Report:
    steps = 0
    counts: Counts = defaultdict(int)
    for lives, seed in enumerate(seeds):
        try:
            life = play(draw(seed))
        except Exception:
            return Report(lives, steps, counts, seed)
        steps += life.steps
        for name, count in life.counts.items():
            counts[name] += count
    return Report(len(seeds), steps, counts, None)


def simulate(first: int, lives: int, jobs: int) -> int:
    """Many lives; 1 when one of them fails."""
    began, done, steps, counts = time.monotonic(), 0, 0, Counter[str]()
    chunks = [range(at, min(at + CHUNK, first + lives)) for at in range(first, first + lives, CHUNK)]
    failed: int | None = None
    with multiprocessing.Pool(jobs, gc.disable, maxtasksperchild=CHUNKS) as pool:
        for report in pool.imap_unordered(lives_of, chunks):
            done, steps = done + report.lives, steps + report.steps
            counts.update(report.counts)
            rate = done / (time.monotonic() - began)
            print(f"\r{done:,} of {lives:,} lives, {rate:,.0f}/s", end="", file=sys.stderr, flush=True)
            if report.failed is not None:
                failed = report.failed
                pool.terminate()
                break
    seconds = time.monotonic() - began
    how = "compiled" if is_compiled() else "interpreted"
    print(f"\r{done:,} lives of {steps / max(done, 1):.0f} steps in {seconds:.1f} s on {jobs} cores, {how}:", end=" ")
    print(f"{done / seconds:,.0f}/s, seeds {first}..{first + lives - 1}")
    for name, count in sorted(counts.items()):
        print(f"  {name:28}{count:14,}")
    if failed is None:
        return 0
    print(explain(failed))
    return 1


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="live one life and show it; made short when it fails")
    parser.add_argument("--lives", type=int, default=10_000, help="how many to live")
    parser.add_argument("--first", type=int, help="the first seed; at random unless told")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes to use")
    parser.add_argument("--whole", action="store_true", help="with --seed: do not make it short")
    args = parser.parse_args()
    if args.seed is None:
        enter(args.lives)
        first = random.SystemRandom().getrandbits(40) if args.first is None else args.first
        sys.exit(simulate(first, args.lives, args.jobs))
    if verdict_on(draw(args.seed)) and not args.whole:
        print(explain(args.seed))
        sys.exit(1)
    print(*show(args.seed), sep="\n")


def show(seed: int) -> Iterator[str]:
    """One life as it was lived."""
    trace: list[str] = []
    try:
        life = play(draw(seed), trace)
    finally:
        yield from world_of(draw(seed))
        yield from trace
    yield f"{life.steps} steps"
    yield from (f"  {name:28}{count:14,}" for name, count in sorted(life.counts.items()))
