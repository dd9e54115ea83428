"""The threads of the blocking client: which of them polls the socket, and when.

One lock guards the session and the socket. *Caller runs*: the first caller that waits for the hub leads: it polls the
socket and runs the turns; other waiting callers follow, and are notified of every change. A background thread acts if
no caller leads: it keeps the deadlines (heartbeats, leases, verdicts, reconnects), and while publishes are in flight it
watches the socket, so that a confirm lets the next block be sent. A switch between threads costs more than a block of
messages, so the background thread sleeps while a caller leads.
"""

import atexit
import logging
import select
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

import zmq

from fabric_client.core.liveness import Liveness
from fabric_client.core.state import State
from fabric_client.core.subscription import FOREVER, VERDICT_DELAY_S, Subscription
from fabric_client.destination import Destination
from fabric_client.io.driver import Driver
from fabric_client.sync.waker import Waker
from fabric_protocol.errors import FabricError

log = logging.getLogger("fabric_client")

# This many messages in the open block before a confirm look like a tight loop: check for more after a moment.
BURST: Final = 32
STAND_BACK_S: Final = 0.0003
EXIT_S: Final = 5.0  # how long the end of the program waits for the confirms of all its clients
_POLL_S_MAX: Final = 60.0  # longest poll, also without a deadline


class CallerRuns(Driver):
    """A driver whose waiting callers run the session. Methods named `*_locked` need the lock held."""

    def __init__(
        self,
        to: Destination,
        name: str,
        producer: str | None,
        context: "zmq.Context[zmq.Socket[bytes]] | None",
        liveness: Liveness,
    ) -> None:
        super().__init__(to, name, producer, context, liveness)
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self._leading = False  # a caller polls the socket
        self._followers = 0
        self._leader_wake = Waker()
        self._standby_wake = Waker()
        self._standby_until = FOREVER  # when the background thread wakes by itself
        self._watching = False  # the background thread polls the socket too
        self._acked = False  # verdicts were given since the background thread last woke
        self._abandoned = False  # the program has dropped the client
        self._thread = threading.Thread(target=self._run, name="fabric-client", daemon=True)
        _drivers.add(self)

    # Waiting callers.

    def turn_locked(self) -> None:
        """Run a turn, and wake callers that wait for its outcome."""
        if self.turn():
            if self._followers:
                self._changed.notify_all()
            if self._leading:
                self._leader_wake.wake()

    def _socket_opened(self) -> None:
        """Wake the threads that poll the descriptors of the old socket."""
        self._standby_wake.wake()
        if self._leading:
            self._leader_wake.wake()

    def wait(self, ready: Callable[[], object], timeout: float | None) -> bool:
        """Run turns until `ready()`; False if the timeout comes first. Called without the lock."""
        deadline = FOREVER if timeout is None else time.monotonic() + timeout
        broken = False
        try:
            while True:
                poll: select.poll | None = None  # once it is set, this thread leads
                try:
                    with self.lock:
                        if broken:
                            self._check_monitor()
                        if self._stopped:
                            return bool(ready())
                        self.turn_locked()
                        if ready():
                            return True
                        now = time.monotonic()
                        if now >= deadline:
                            return False
                        if self._leading:
                            self._follow(min(deadline - now, _POLL_S_MAX))
                            continue
                        seconds = min(deadline, self.session.next_deadline()) - now
                        descriptors = self._poll(self._leader_wake.fd, self._dealer.fd, self._dealer.monitor_fd)
                        # A signal handler may raise between any two calls, but not between these two.
                        poll, self._leading = descriptors, True
                    events = poll.poll(_milliseconds(seconds))
                    broken = any(fd == self._dealer.monitor_fd for fd, _ in events)
                finally:
                    if poll is not None:
                        self._stop_leading()
        finally:
            with self.lock:
                self.hand_over_locked()

    def _stop_leading(self) -> None:
        try:
            self._leader_wake.clear()
        finally:
            self._leading = False

    def wake_waiters(self) -> None:
        """Let waiting callers check again. Called from any thread, without the lock."""
        with self.lock:
            self._changed.notify_all()
            if self._leading:
                self._leader_wake.wake()

    def _follow(self, seconds: float) -> None:
        self._followers += 1
        try:
            self._changed.wait(seconds)
        finally:
            self._followers -= 1

    def hand_over_locked(self) -> None:
        """Before the lock is released: wake a follower or the background thread if something is left to do."""
        if self._leading:
            return
        if self._followers:
            self._changed.notify()
        elif self.session.next_deadline() < self._standby_until or (
            self.session.publisher.waiting and not self._watching
        ):
            self._standby_wake.wake()

    @staticmethod
    def _poll(*fds: int) -> select.poll:
        poll = select.poll()
        for fd in fds:
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        return poll

    # The background thread.

    def _run(self) -> None:
        try:
            while self._stand_by():
                pass
        except Exception as error:
            # A bug of the client: no caller may wait for a thread that has ended.
            log.exception("the client's background thread failed")
            with self.lock:
                self.session.fail(FabricError(f"the client's background thread failed: {error!r}"))
                self._changed.notify_all()

    def _stand_by(self) -> bool:
        """One round of the background thread; False at its end."""
        with self.lock:
            if self._stopped:
                return False
            # Until the new deadline is known, every earlier deadline must wake this thread.
            self._standby_until = FOREVER
            self.turn_locked()
            session = self.session
            if self._abandoned and session.settled:
                self._end_locked()
                return False
            opening = session.state is State.OPENING  # otherwise the WELCOME would wait for the next deadline
            self._watching = not self._leading and (opening or session.publisher.busy)
            self._standby_until = session.next_deadline()
            if self._acked:
                # While verdicts are given, wake regularly instead of once for each of them.
                self._acked = False
                self._standby_until = min(self._standby_until, time.monotonic() + VERDICT_DELAY_S)
            full_blocks = session.publisher.full_blocks
            poll = self._poll(self._standby_wake.fd, self._dealer.monitor_fd, self._dealer.fd if self._watching else -1)
            seconds = self._standby_until - time.monotonic()
        events = poll.poll(_milliseconds(seconds))
        self._standby_wake.clear()
        if self._watching:
            self._stand_back(full_blocks)
        if any(fd == self._dealer.monitor_fd for fd, _ in events):
            with self.lock:
                self._check_monitor()
        return True

    def _stand_back(self, full_blocks: int) -> None:
        """Wait while a caller publishes in a tight loop: it sends full blocks and reads the confirms itself, and every
        turn of the background thread would seal a block early."""
        publisher = self.session.publisher
        while not self._stopped:
            gathered = publisher.gathered
            if publisher.full_blocks == full_blocks and gathered < BURST:
                return
            full_blocks = publisher.full_blocks
            time.sleep(STAND_BACK_S)
            if publisher.full_blocks == full_blocks and publisher.gathered <= gathered:
                return

    def verdicts(self, sub: Subscription, urgent: bool) -> None:
        """The hook of subscriptions. Called from any thread, without the lock."""
        if urgent:
            with self.lock:
                if not self._stopped:
                    self.session.flush(sub, time.monotonic())
                    self.turn_locked()
            return
        self._acked = True
        if sub.flush_at == FOREVER:
            sub.flush_at = time.monotonic() + VERDICT_DELAY_S
            if self._leading:
                self._leader_wake.wake()
            elif sub.flush_at < self._standby_until:
                self._standby_wake.wake()

    def drop(self, sub: Subscription) -> None:
        """Unsubscribe. May run in finalizers."""
        self._dropped.append(sub)
        self._turn_soon()

    def halt(self, sub: Subscription) -> None:
        """End the loop over a subscription at its next step. May run in signal handlers."""
        sub.stop()
        self._halted.append(sub)
        self._turn_soon()

    def _turn_soon(self) -> None:
        """Run a turn, now or in the background thread. This thread may hold the lock already, so it does not wait."""
        if self.lock.acquire(blocking=False):
            try:
                if not self._stopped:
                    self.turn_locked()
            finally:
                self.lock.release()
        else:
            self._standby_wake.wake()

    # The end.

    def stop(self) -> None:
        """Close the socket and end the background thread; waiting callers get Closed."""
        with self.lock:
            self._end_locked()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def abandon(self) -> None:
        """The program dropped the client without close(): the background thread waits for open confirms, then ends."""
        if not self._forked:  # in a child the waker would wake the parent's thread
            self._abandoned = True
            self._standby_wake.wake()

    def _end_locked(self) -> None:
        if not self._stopped:
            self._end()
            self._changed.notify_all()
            self._leader_wake.wake()
            self._standby_wake.wake()
            _drivers.discard(self)

    def forked(self) -> None:
        """In a child process: the other threads do not exist, and one of them may have held the lock."""
        super().forked()
        _drivers.discard(self)
        # Replaced, not released: a thread in the middle of acquire() has it while `locked()` is still False.
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)


def _milliseconds(seconds: float) -> int:
    return int(max(0.0, min(seconds, _POLL_S_MAX)) * 1000) + 1


_drivers: "weakref.WeakSet[CallerRuns]" = weakref.WeakSet()


def _at_exit() -> None:
    """Wait for the confirms of clients that were not closed, and log how many messages have none."""
    end = time.monotonic() + EXIT_S
    for driver in list(_drivers):
        left = max(0.0, end - time.monotonic())
        if not driver.wait(lambda session=driver.session: session.settled, left):  # type: ignore[misc]
            log.error("%d messages were not confirmed when the program ended", driver.session.publisher.unconfirmed)
        driver.stop()


atexit.register(_at_exit)
