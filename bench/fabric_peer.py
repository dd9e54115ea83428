"""Fabric in a harness that measures message servers side by side: one class with the interface of its `common.Peer`.

The harness loads it with `--extra fabric=bench/fabric_peer.py:Fabric`. Its Python environment must be able to import
the project: `pip install -e .` there, or `pip install fabricmq`.

A harness that runs as root starts servers as an unprivileged account. That account must be able to run a Python with
the same libraries: the harness's own, or else one of the same version on the system's path.
"""

import os
import shutil
import subprocess
import sys
import time
import uuid
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Literal, cast

import click
import lmdb
import msgpack
import rich
import zmq
from common import Pacer, Peer, Tally, body, free_port, wait_port  # type: ignore[import-not-found]

import fabric
import fabric_client

SYSTEM_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
ACCOUNT: Final = "nobody"  # as whom the harness, when it is root, starts servers
LOOK_S: Final = 0.2  # a consumer without messages looks so often whether everything was consumed
PACE_S: Final = 0.0003
FLUSH_S: Final = 60.0
TOPIC: Final = "FABRIC_BENCH_TOPIC"  # worker processes inherit the environment
LEVEL: Final = "FABRIC_BENCH_LEVEL"


def python_path() -> str:
    """Where the project and its libraries are, for a Python that does not look there by itself."""
    modules = (fabric, fabric_client, zmq, lmdb, msgpack, click, rich)
    places = [str(Path(module.__file__ or "").parent.parent) for module in modules]
    return os.pathsep.join(dict.fromkeys(places))


@cache
def interpreter() -> str | None:
    """A Python that can run the hub as whoever will run it."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    system = shutil.which(version, path=SYSTEM_PATH)
    account: dict[str, Any] = {}
    if os.geteuid() == 0:
        account = {"user": ACCOUNT, "group": "nogroup", "extra_groups": []}
    environment = {"PATH": SYSTEM_PATH, "PYTHONPATH": python_path()}
    for candidate in filter(None, (sys.executable, system)):
        trial = [candidate, "-c", "import fabric.hub"]
        try:
            subprocess.run(trial, env=environment, cwd="/", check=True, capture_output=True, timeout=60, **account)
        except (OSError, subprocess.SubprocessError):
            continue
        return candidate
    return None


class Fabric(Peer):  # type: ignore[misc]
    name = "fabric"
    client = f"fabric_client {fabric.__version__}"
    modes: Final = {
        "a": "journaled: fsync before confirm",
        "b": "received: confirmed on receipt, journaled with the next commit",
    }

    def missing(self) -> str | None:
        return None if interpreter() else f"no Python that user {ACCOUNT} may run can import fabric"

    def version(self) -> str:
        return fabric.__version__

    def start(self, mode: str, datadir: str) -> int:
        os.environ[LEVEL] = "journaled" if mode == "a" else "received"
        port: int = free_port()
        command = [str(interpreter()), "-m", "fabric", "hub", "--data", f"{datadir}/journal"]
        hub = self.spawn([*command, "--bind", url(port)], datadir, env={"PYTHONPATH": python_path()})
        wait_port(port, hub)
        return port

    def reset(self, port: int, consumers: int = 1) -> None:
        topic = os.environ[TOPIC] = f"bench.{uuid.uuid4().hex[:12]}"
        with (
            fabric_client.connect(url(port)) as fab,
            fab.consume(
                topic, group=topic, start="first", level=cast(Literal["journaled", "received"], os.environ[LEVEL])
            ),
        ):
            pass  # the group stays; it starts at the first message

    def produce(self, job: Any, prog: Any) -> tuple[int, int, int]:
        topic, level, sent = os.environ[TOPIC], os.environ[LEVEL], 0
        with fabric_client.connect(url(job.port)) as fab:
            publish: Any = fab.publish_nowait if level == "journaled" else partial(fab.publish_nowait, level="received")
            if job.rate:
                pace = Pacer(job)
                begun = pace.t0
                while not pace.over:
                    for stamp in pace.due():
                        publish(topic, body(job.size, stamp))
                        sent += 1
                    pace.mark_idle()
                    time.sleep(PACE_S)
            else:
                data = body(job.size)
                begun = time.monotonic_ns()
                end = begun + int(job.max_s * 1e9)
                while sent < job.n and time.monotonic_ns() < end:
                    publish(topic, data)
                    sent += 1
            fab.flush(FLUSH_S)  # raises unless everything was confirmed
            return sent, begun, time.monotonic_ns()

    def consume(self, job: Any, prog: Any) -> Any:
        group = os.environ[TOPIC]
        with fabric_client.connect(url(job.port)) as fab:
            prog.is_ready()  # nothing is fetched before the start signal
            tally = Tally(job.rate > 0)
            while not prog.finished():
                for batch in fab.consume_batches(group=group, timeout=LOOK_S):
                    for message in batch:
                        tally.got(message.body)
                    batch.ack()
                    tally.acked(len(batch))
                    prog.add(len(batch))
                    if prog.finished():
                        break
            fab.flush(FLUSH_S)
            return tally.result()


def url(port: int) -> str:
    return f"tcp://127.0.0.1:{port}"
