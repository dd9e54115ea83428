"""Hub is the loop: it receives, lets the router decide, submits turns to the journal, and sends frames.

    router thread   receive -> step/tick -> seal --queue--> … next turn at once …
    journal thread  one synced LMDB transaction for the turns so far --wake--> router thread releases their sends

To read this file, begin with `turn`.
"""

import contextlib
import logging
import math
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Final

import zmq

import fabric
from fabric.hub.addresses import check_addresses
from fabric.hub.advisory_log import AdvisoryLog
from fabric.hub.commits import Commits
from fabric.hub.curve import IO_THREADS
from fabric.hub.faults import Faults
from fabric.hub.guard import Guard
from fabric.hub.hub_access import HubAccess, bind_admin, wants_keys
from fabric.hub.intake import Intake
from fabric.hub.journal_thread import JournalThread
from fabric.hub.log import event
from fabric.hub.notify import Notifier
from fabric.hub.options import HubOptions as HubOptions
from fabric.hub.restore import restored_router
from fabric.hub.router_socket import RouterSocket
from fabric.hub.vital_signs import VitalSigns
from fabric.journal.journal import Journal
from fabric.records import Restored
from fabric.router.publish.publishing import Refusal
from fabric.router.router import Router
from fabric.router.turn import Frames
from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.errors import Code, FabricError, ProtocolError
from fabric_protocol.messages import PeerId

CROWDED_S: Final = 0.002  # how often frames are received while many frames wait
SPACE_EVERY_S: Final = 0.1  # a quota may be exceeded by the publishes of this time; the disk itself is asked less often
OUTBOX_POLL_S: Final = 0.005  # a ROUTER socket does not report which peer can take more, so full peers are tried again
SWITCH_S: Final = 0.0001  # the two threads switch often; Python's default of 5 ms is as long as a commit
STOPPING: Final = Refusal(Code.SHUTTING_DOWN, "the hub is stopping", 500)


class Hub:
    """A hub over one journal directory. `run` blocks; `start` and `stop` run it in a thread of this process.

    with Hub("./data", HubOptions(binds=["inproc://hub"])) as hub:
        client = fabric_client.connect("inproc://hub", context=hub.context)
    """

    def __init__(
        self,
        path: str | Path,
        options: HubOptions = HubOptions(),  # noqa: B008 - immutable
        context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
    ) -> None:
        check_addresses(options.binds)  # before a journal is created
        self._options = options
        has_keys = wants_keys(Path(path), options)
        self.context = context or zmq.Context(io_threads=max(options.io_threads, IO_THREADS if has_keys else 1))
        self._owns_context = context is None
        with (
            contextlib.ExitStack() as undo
        ):  # a hub that cannot start closes all: a context would wait for an open socket
            if self._owns_context:
                undo.callback(self.context.term)
            self.journal = Journal.open(path, options.limits, allow_network_fs=options.allow_network_fs)
            undo.callback(self.journal.close)
            self._log = AdvisoryLog()
            self.counters = Counter[str]()
            self.access = HubAccess(self.context, Path(path), options) if has_keys else None  # None: no keys
            if self.access is not None:
                undo.callback(self.access.close)
            self.binds: list[str] = []  # INFO tells them, so the router gets the list itself
            self._router = self._new_router(self.journal.load())
            self._faults = Faults(self._log)
            self._opened = 0  # sessions that were opened before the router was restored last
            self._socket = RouterSocket(self.context, self.counters, self._faults.of_answer)
            undo.callback(self._socket.close)
            if self.access is not None:
                self.binds += self.access.listen(self._socket, options.binds)
            else:
                self.binds += [self._socket.bind(url) for url in options.binds]
                if options.has_socket:
                    bind_admin(self._socket, Path(path), self.binds)
            undo.pop_all()
        self._make_loop()

    def _make_loop(self) -> None:
        """Make the parts of the loop, and its state."""
        self._guard = Guard(self._socket.connections, self.counters, self._options.memory_bytes)
        self._signs = VitalSigns()
        self.notifier = Notifier()  # sends nothing; `serve` sets the one of a hub process
        self._journal_thread = JournalThread(self.journal)
        self._poller = zmq.Poller()
        self._socket.register(self._poller)
        self._poller.register(self._journal_thread.wake_fd, zmq.POLLIN)
        self._inner_poller = zmq.Poller()  # without the socket, for times when many frames wait
        for fd in (self._journal_thread.wake_fd, self._socket.connections.fd):
            self._inner_poller.register(fd, zmq.POLLIN)
        self._intake = Intake(self._router, self._take, self._journal_thread.has_reports)
        self._arrivals = self._intake.arrivals
        self._gone: list[PeerId] = []  # peers without a connection; frames from them may wait in the arrivals
        self._commits = Commits(
            self._router, self._journal_thread, self._intake, self._signs, self._log, self.counters, self._send
        )
        self._space_at = 0.0
        self._draining_until = 0.0
        self._stop_requests = 0
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None

    # Starting and stopping.

    def run(self) -> None:
        """Serve until `stop` is called. Raises if the journal fails; nothing is confirmed after that."""
        sys.setswitchinterval(SWITCH_S)
        self._journal_thread.start()
        keys = {"admin": self.access.admin_bind, "hub_key": self.access.book.hub_key} if self.access else {}
        event(logging.INFO, "hub ready", version=fabric.__version__, binds=",".join(self.binds), **keys)
        try:
            while self._serve():
                pass
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._close()

    def _serve(self) -> bool:
        """One round of the loop; False if it was the last."""
        try:
            if self._finished():
                return False
            if self.access is not None:
                self.access.require_handler()
            self.turn()
        except FabricError:
            raise
        except Exception as error:
            heard = self.counters["sessions_opened"] > self._opened
            time.sleep(self._faults.of_hub(error, time.monotonic(), heard=heard))
            self.counters["internal_errors"] += 1
            self._restore([])
        return True

    def stop(self) -> None:
        """Drain the hub and end it: no more publishes, all accepted ones on disk, a NOTICE to each client.

        A second call does not wait for outstanding acks.
        """
        self._stop_requests += 1
        with contextlib.suppress(OSError):  # the hub has ended already
            self._journal_thread.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def request_stop(self) -> None:
        """As `stop`, without waiting. For signal handlers."""
        self._stop_requests += 1
        self._journal_thread.wake()
        self.notifier.stopping(self._options.drain_s)

    def start(self) -> "Hub":
        self._thread = threading.Thread(target=self._run_in_thread, name="fabric-hub", daemon=True)
        self._thread.start()
        return self

    def _run_in_thread(self) -> None:
        try:
            self.run()
        except FabricError as error:
            event(logging.CRITICAL, "hub failed", error=str(error), hint=error.hint)

    def __enter__(self) -> "Hub":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # The loop.

    def turn(self) -> None:
        """One round of the loop: received frames, reports of the journal, timers, deliveries, and a commit."""
        ready = self._wait()
        received = self._socket.receive(*self._arrivals.room)
        now = time.monotonic()
        self._router.begin(time.time_ns() // 1000, now)
        self.counters["turns"] += 1
        has_reports = self._journal_thread.wake_fd in ready
        if has_reports and self._arrivals.count:  # confirmations leave before waiting commands are processed
            received = self._intake.take_first_publishes(received, now)
            self._commits.take_reports(now)
            self._send()
            has_reports = False
        self._intake.take(received, now)
        if self._socket.connections.fd in ready:
            self._socket.connections.read()
        if self._guard.is_crowded:
            self._guard.cut_excess(now)
        for peer in self._socket.lost():
            self._arrivals.drop_questions(peer)
            self._gone.append(peer)
        if self._gone:
            self._report_gone()
        if has_reports:
            self._commits.take_reports(now)
        self._commits.submit(now)  # the disk works while timers run and groups deliver
        self._router.tick(now)
        self._commits.submit(now)
        self._send()
        self._housekeeping(now)

    def _wait(self) -> list[object]:
        """Sleep until a frame arrives, the journal thread has reports, or a deadline; returns the ready descriptors."""
        deadline = self._router.next_deadline()
        if not self._commits.is_under_way:  # otherwise the journal thread wakes the hub, and no commit can begin before
            deadline = min(deadline, self._router.commit_deadline())
        deadline = min(deadline, self._arrivals.release_at, self.notifier.due_at)
        timeout_s = 0.0 if self._arrivals.is_ready else deadline - time.monotonic()
        poller = self._poller
        if self._socket.has_outboxes or self._socket.is_losing:
            timeout_s = min(timeout_s, OUTBOX_POLL_S)
        if self._arrivals.is_crowded:  # the socket surely has more frames, and few are received at a time
            timeout_s, poller = min(timeout_s, CROWDED_S), self._inner_poller
        return [source for source, _ in poller.poll(max(math.ceil(timeout_s * 1000), 0))]

    def _report_gone(self) -> None:
        """Tell the router which peers are gone, after all frames from them are processed."""
        gone, self._gone = self._gone, []
        for peer in gone:
            if self._arrivals.has(peer):
                self._gone.append(peer)
            else:
                self._arrivals.forget(peer)
                self._router.peer_gone(peer)

    def _take(self, peer: PeerId, frames: list[bytes], now: float) -> None:
        if self.access is not None and peer in self.access.turned_away:
            return
        try:
            message = wire.decode_command(frames)
        except ProtocolError as error:
            if self._router.last_heard(peer) is None:
                self.counters["dropped_junk"] += 1
                if self.access is not None and peer in self.access.watched:
                    self.access.turn_away(peer, self._router)
                return
            self._router.refuse(error, peer, *wire.request_id(frames))
            return
        except Exception as error:
            self._fault(error, peer, frames, is_decoded=False)
            return
        try:
            if self.access is None:
                self._router.step(message, peer, now)
            else:
                self._router.step(message, peer, now, self._socket.connections.identity_of(peer))
                if peer in self.access.watched:
                    self.access.turn_away(peer, self._router)
                if self.access.is_changed:  # by this command: a removed key has no effect from the next one on
                    self.access.apply(self._router)
        except Exception as error:
            self._fault(error, peer, frames)

    def _fault(self, error: Exception, peer: PeerId, frames: list[bytes], *, is_decoded: bool = True) -> None:
        """Answer a command that has raised an exception; restore the router if state may be half changed."""
        self._faults.of_command(error, frames)
        if not self._router.fail(peer, *wire.request_id(frames), is_decoded=is_decoded):
            self._restore(self._router.take_frames())

    def _send(self) -> None:
        if self._socket.has_outboxes:
            for peer in self._socket.flush():
                self._router.peer_blocked(peer, blocked=False)
        for peer in self._socket.send(self._router.take_frames()):
            self._router.peer_blocked(peer, blocked=True)

    def _housekeeping(self, now: float) -> None:
        self._signs.turned(time.monotonic() - now)
        self._guard.look(now, self._router, self._arrivals)
        if now >= self.notifier.due_at:
            self.notifier.tick(now, self.journal.last_seq)
        if now < self._space_at:
            return
        self._log.tick(now)
        if self.access is not None and self.access.tick(now, self._router):
            self._send()
        if self._draining_until:
            return
        self._space_at = now + SPACE_EVERY_S
        self.journal.hold(self._router.trim_limit)
        reason = self.journal.pressure()
        if (reason is not None) != self._router.is_refusing:
            event(logging.WARNING, "publishes refused" if reason else "publishes taken again", reason=reason or "")
        self._router.refuse_publishes(Refusal(Code.DISK_FULL, reason, 1000) if reason else None)
        if self._signs.is_due(now):
            vitals = self._signs.take(now, self.journal.space(), self._guard.memory_bytes())
            vitals = vitals._replace(memory_budget_bytes=self._options.memory_bytes, refusing=reason or "")
            if self.access is not None:
                vitals = vitals._replace(access_problem=self.access.book.problem)
            self.notifier.health = self._router.examine(vitals, self._options.thresholds, now)

    # After a fault.

    def _new_router(self, restored: Restored) -> Router:
        book = self.access.book if self.access is not None else None
        reached_at = {"binds": self.binds, "advertise": self._options.advertise}
        return restored_router(self.journal, restored, self.counters, self._log.hear, book, reached_at)

    def _restore(self, frames: Frames) -> None:
        """Go on with a new router that is restored from the journal, as after a crash.

        Turns that were sealed before the fault are written first, and `frames` are sent. What is not on disk then has
        not happened, and clients say HELLO again.
        """
        peers = list(self._router.peers())
        self._socket.send(frames)
        self._socket.send(self._commits.finish())
        self._router = self._new_router(self._journal_thread.ask(self.journal.load))
        self._commits.restored(self._router)
        self._intake.restored(self._router)
        self._signs.restored()
        self.counters["restored"] += 1
        self._opened, self._space_at = self.counters["sessions_opened"], 0.0
        if self._draining_until:
            self._router.drain(STOPPING)  # it has no sessions yet
        error = m.Err(0, 0, Code.NO_SESSION, "the hub has restored itself from its journal; say HELLO again", {})
        self._socket.send((peer, error) for peer in peers)
        event(logging.WARNING, "restored after a fault", sessions=len(peers))

    # The end.

    def _finished(self) -> bool:
        if not self._stop_requests:
            return False
        now = time.monotonic()
        if not self._draining_until:
            self._begin_drain(now)
        idle = self._commits.is_idle and not self._router.wants_commit(now)
        patient = now < self._draining_until and self._stop_requests == 1
        # Outboxes are waited for only as long as acks: a peer that never reads must not keep the hub from ending.
        owed = self._router.outstanding() > 0 or self._socket.has_outboxes or self._arrivals.count > 0
        return idle and not (patient and owed) and self._commits.is_all_written(now)

    def _begin_drain(self, now: float) -> None:
        event(logging.INFO, "draining", outstanding=self._router.outstanding())
        self._draining_until = now + self._options.drain_s
        self._router.drain(STOPPING)
        self._send()

    def _close(self) -> None:
        self._log.close()
        self._journal_thread.stop()
        self._socket.close()
        if self.access is not None:
            self.access.close()
        self._guard.close()
        if self.failure is None:
            self.journal.close()
            event(logging.INFO, "hub stopped", **{k: self.counters[k] for k in ("messages_in", "commits")})
        if self._owns_context:
            self.context.term()
