"""The processes of a measurement: starts them, lets them begin at the same time, and ends them.

A worker is a function in `workers`. It connects first and reports that it is ready; when all workers are ready, the
parent lets them begin. Every wait has a limit, and a worker ends itself when its parent has ended.
"""

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final, NamedTuple

from fabric.cli.support.hub_process import HubProcess
from fabric_protocol.errors import FabricError

READY_S: Final = 60.0  # imports and connections, on a busy machine
RUN_S: Final = 300.0  # longest time of a measurement
END_S: Final = 5.0

_CONTEXT: Final = multiprocessing.get_context("spawn")  # fork would copy sockets and threads of the parent


class Task(NamedTuple):
    """The function of a worker: `work(line, **arguments)`."""

    work: Callable[..., dict[str, Any]]
    arguments: dict[str, Any]


class Line:
    """A worker's connection to its parent."""

    def __init__(self, pipe: "Connection[Any, Any]") -> None:
        self._pipe = pipe

    def ready(self) -> None:
        """Report that this worker is ready, and wait until all workers are."""
        self._pipe.send(("ready", None))
        if not self._pipe.poll(READY_S):
            raise FabricError("the start signal did not come")
        self._pipe.recv()


class Run(NamedTuple):
    """The results of a measurement. `foreign` is the share of the CPU that other programs used in that time."""

    results: list[dict[str, Any]]
    hub_cpu_s: float
    foreign: float


class Watch:
    """Measures the share of the CPU that other programs use."""

    def __init__(self) -> None:
        self._busy_s, self._own_s, self._begun = _busy_s(), time.process_time(), time.monotonic()

    def foreign(self, children_cpu_s: float = 0.0) -> float:
        """The share since the Watch was made; the CPU time of our children does not count."""
        own_s = time.process_time() - self._own_s + children_cpu_s
        capacity_s = (time.monotonic() - self._begun) * (os.cpu_count() or 1)
        return max(0.0, (_busy_s() - self._busy_s - own_s) / capacity_s)


def shared_counter(value: int = 0) -> Any:
    """A number that all workers share."""
    return _CONTEXT.Value("q", value)


def run(tasks: Sequence[Task], hub: HubProcess | None = None) -> Run:
    """Run the tasks at the same time; returns their results in the same order."""
    pairs = [_CONTEXT.Pipe() for _ in tasks]
    processes = [
        _CONTEXT.Process(target=_work, args=(task, theirs), daemon=True)
        for task, (_, theirs) in zip(tasks, pairs, strict=True)
    ]
    try:
        for process in processes:
            process.start()
        ours = [pair[0] for pair in pairs]
        for pipe in ours:
            _hear(pipe, READY_S)
        watch, hub_before = Watch(), _cpu(hub)
        for pipe in ours:
            pipe.send("go")
        results = [_hear(pipe, RUN_S) for pipe in ours]
        hub_cpu_s = _cpu(hub) - hub_before
        return Run(results, hub_cpu_s, watch.foreign(hub_cpu_s + sum(result["cpu_s"] for result in results)))
    except BaseException:
        for process in processes:
            if process.pid is not None:
                process.kill()  # a worker has failed, and the others wait for it
        raise
    finally:
        for process in processes:
            if process.pid is not None:
                _end(process)
        for mine, theirs in pairs:
            mine.close()
            theirs.close()


def _hear(pipe: "Connection[Any, Any]", seconds: float) -> dict[str, Any]:
    if not pipe.poll(seconds):
        raise FabricError(
            f"a benchmark process was silent for {seconds:g} s",
            "the machine may be overloaded: end other programs, and try again",
        )
    kind, value = pipe.recv()
    if kind == "error":
        raise FabricError(f"a benchmark process failed: {value}")
    return value or {}


def _end(process: BaseProcess) -> None:
    process.join(END_S)
    if process.is_alive():
        process.kill()
        process.join()


def _work(task: Task, pipe: "Connection[Any, Any]") -> None:
    """Run in the worker."""
    _die_with_parent()
    logging.getLogger("fabric_client").setLevel(logging.ERROR)  # a killed hub is lost to thousands of clients
    line = Line(pipe)
    try:
        result = task.work(line, **task.arguments)
        pipe.send(("result", {**result, "cpu_s": time.process_time() - result.pop("cpu_before_s", 0.0)}))
    except BaseException as error:
        pipe.send(("error", f"{type(error).__name__}: {error}"))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _cpu(hub: HubProcess | None) -> float:
    return hub.cpu_s() if hub is not None else 0.0


def _busy_s() -> float:
    """Busy CPU seconds of the whole machine since boot; 0 if the kernel does not tell."""
    try:
        with open("/proc/stat") as stat:
            fields = [int(field) for field in stat.readline().split()[1:9]]
    except OSError:
        return 0.0
    idle = fields[3] + fields[4]
    return float(sum(fields) - idle) / os.sysconf("SC_CLK_TCK")
