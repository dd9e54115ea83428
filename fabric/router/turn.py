"""Turn: all frames that the router sends and all rows that it writes between two seals. Each handler is given it.

    send      a frame that leaves at once
    notify    a frame that leaves before the next deliveries, to the connection that the session has then
    answer    a frame that leaves when this turn is on disk
    write     a row that is written with this turn
    advise    an advisory of topic $sys.…, for the hub's log and for subscriptions that match
    event     a row of what happened to deliveries

Frames have one order, which holds for each peer and for all peers together:

    1. Frames leave in the order of `send`, so frames of a command leave before frames of the next command. If a
       command fails, none of its frames leaves (`cut_back`).
    2. Notices (`notify`: of lost leases, of requests that have ended) leave in the order of `notify`, before groups
       deliver: in the tick that follows the command, or earlier.
    3. Advisories leave at the end of a tick, in the order of `advise`, because their ordinals are given there.
    4. When a turn is on disk, its answers leave in the order of `answer`, behind all frames that were sent before;
       PUBOKs are the last answers. Deliveries that the commit allows leave after them.

Rows have one order, too, which `Router.seal` follows part by part: blocks and producers, then rows in the order of
`write`, then rows that parts keep until the end of the turn, because only the last state counts. See `orders`.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fabric.records import Record
from fabric.router.access.sources import AUDIT, Told
from fabric.router.clock import Clock
from fabric.router.event_recorder import Events
from fabric.router.part import Part
from fabric.router.patterns.trie import Trie
from fabric.router.timers import NEVER
from fabric_protocol.messages import PeerId, ToClient

if TYPE_CHECKING:
    from fabric.router.sessions.session import Session

ADVISED_MAX: Final = 1_000  # advisories of one turn: bounds their memory

Frames = list[tuple[PeerId, ToClient]]
LogAdvisory = Callable[[str, Mapping[str, Any]], None]  # topic and fields of an advisory


class Turn(Part):
    __slots__ = (
        "_answers",
        "_counters",
        "_is_advising",
        "_log",
        "_records",
        "_told",
        "_trie",
        "advised",
        "notices",
        "recorder",
        "sends",
    )

    def __init__(
        self, trie: Trie[Any], recorder: Events, counters: Counter[str], log: LogAdvisory | None, clock: Clock
    ) -> None:
        # Other parts may look how many sends, notices and advisories there are; only the turn changes them.
        self.sends: Frames = []
        self.notices: list[tuple[Session, ToClient]] = []
        self._answers: Frames = []
        self._records: list[Record] = []
        self.advised: list[tuple[str, bytes]] = []  # topics and payloads
        self._trie = trie  # patterns of all groups
        self._counters = counters
        self._log = log  # gets all advisories, sent or not
        self._told = Told(clock)
        self._is_advising = True  # a setting of the hub
        self.recorder = recorder

    def send(self, peer: PeerId, message: ToClient) -> None:
        """Send a frame that leaves at once."""
        self.sends.append((peer, message))

    def send_all(self, frames: Frames) -> None:
        """Send frames that leave at once, in this order."""
        self.sends += frames

    def notify(self, session: "Session", message: ToClient) -> None:
        """Send a frame that leaves before the next deliveries, to the connection that the session has then."""
        self.notices.append((session, message))

    def answer(self, peer: PeerId, message: ToClient) -> None:
        """Send a frame that leaves when this turn is on disk."""
        self._answers.append((peer, message))

    def write(self, record: Record) -> None:
        """Write a row with this turn; rows keep their order."""
        self._records.append(record)

    def advise(self, topic: str, /, **fields: Any) -> None:
        """Log an advisory, and queue it if a subscription matches. `topic` starts with $sys."""
        if self._log is not None:
            self._log(topic, fields)
        if not self._is_advising or not self._trie.match(topic):
            return
        told: Mapping[str, Any] | None = self._told.admit(fields) if topic == AUDIT else fields
        if told is None or len(self.advised) >= ADVISED_MAX:
            self._counters["advisories_dropped"] += 1
            return
        self.advised.append((topic, json.dumps(told, ensure_ascii=False, default=str).encode()))

    def switch_advisories(self, on: bool) -> None:
        self._is_advising = on

    # What the router calls.

    @property
    def has_answers_or_rows(self) -> bool:
        """Whether a row or an answer waits for a commit."""
        return bool(self._records or self._answers)

    def cut_back(self, count: int) -> None:
        """Remove the frames that were sent after the first `count` ones."""
        del self.sends[count:]

    def send_notices(self) -> None:
        """Send the notices; groups deliver after this."""
        self.sends += [(session.peer, message) for session, message in self.notices]
        self.notices = []

    def next_deadline(self) -> float:
        return 0.0 if self.notices else NEVER

    def take_sends(self) -> Frames:
        taken, self.sends = self.sends, []
        return taken

    def take_answers(self) -> Frames:
        taken, self._answers = self._answers, []
        return taken

    def take_advised(self) -> list[tuple[str, bytes]]:
        """Topics and payloads of the queued advisories."""
        taken, self.advised = self.advised, []
        return taken

    def rows(self) -> list[Record]:
        """The rows of `write`."""
        taken, self._records = self._records, []
        return taken
