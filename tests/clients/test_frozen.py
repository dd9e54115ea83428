"""A consumer that is frozen, as a laptop that sleeps or a stopped container is, keeps only what it has begun."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.clients.real_hub import HubProcess, connect, eventually
from tests.patience import PATIENCE_S

JOBS = 20
# It stops itself while it handles its first message. Its leases and its session are longer than the test.
CONSUMER = """
import os, signal, sys
import fabric_client

def handle(message):
    with open(sys.argv[2], "a") as handled:
        handled.write(message.body.decode() + "\\n")
    if message.body == b"0":
        os.kill(os.getpid(), signal.SIGSTOP)

with fabric_client.connect(sys.argv[1], name="frozen", heartbeat=0.2, session_ttl=600) as fab:
    fab.work("jobs", handler=handle, group="g", lease=600, concurrency=1)
"""


@contextmanager
def consumer(url: str, handled: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", CONSUMER, url, str(handled)]) as process:
        try:
            yield process
        finally:
            process.kill()


def is_stopped(process: "subprocess.Popen[bytes]") -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_what_a_frozen_consumer_has_not_begun_goes_to_another(hub_process: HubProcess, tmp_path: Path) -> None:
    handled = tmp_path / "handled"
    with connect(hub_process) as fab:
        fab.publish_many("jobs", [b"%d" % number for number in range(JOBS)], timeout=PATIENCE_S)
        with consumer(hub_process.url, handled) as frozen:
            eventually(lambda: is_stopped(frozen))
            mine = set[bytes]()
            for message in fab.consume("jobs", group="g", timeout=PATIENCE_S):
                mine.add(message.body)
                message.ack()
                if len(mine) == JOBS - 1:
                    break
            assert mine == {b"%d" % number for number in range(1, JOBS)}
            os.kill(frozen.pid, signal.SIGCONT)
            eventually(lambda: fab.info("group", name="g")["floor"] == JOBS)
            assert handled.read_text().split() == ["0"], "the messages that another consumer got were taken back"
