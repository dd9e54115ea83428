"""Turn: all that the router says and all that it writes, from one seal to the next. Every handler is given it.

    send      a frame that leaves at once
    notify    a frame that leaves before the next deliveries, to where the session is by then
    answer    a frame that leaves when this turn is on disk
    write     a row that is written with this turn
    advise    an advisory of topic $sys.…, for the hub's log and for subscriptions that match
    event     something happened to deliveries

One order holds for frames, to each peer and over all of them:

    1. Frames leave in the order of `send`. What one command sends comes before what the next command sends. The frames
       of a command that fails are taken back as a whole (`mark`, `cut_back`).
    2. Notices (`notify`: of lost leases, of requests that have ended) leave in the order of `notify`, before groups
       deliver: in the tick that follows the command, or earlier.
    3. Advisories leave at the end of a tick, in the order of `advise`, because their ordinals are given there.
    4. When a turn is on disk, its answers leave in the order of `answer`, behind all that was sent before; PUBOKs are
       the last of them. After them leaves what the commit lets groups deliver.

and one order for rows, which `Router.seal` writes part by part: blocks and producers, then rows in the order of
`write`, then rows that parts have kept until the end of the turn, because only the last state of each counts.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fabric.records import Record
from fabric.router.event_recorder import Events
from fabric.router.part import Part
from fabric.router.patterns.trie import Trie
from fabric.router.timers import NEVER
from fabric_protocol.messages import PeerId, ToClient

if TYPE_CHECKING:
    from fabric.router.sessions.session import Session

ADVISED_MAX: Final = 1_000  # advisories of one turn; a storm of news must not become one of memory

Frames = list[tuple[PeerId, ToClient]]
Hear = Callable[[str, Mapping[str, Any]], None]  # the hub's log: topic and fields of an advisory


class Turn(Part):
    __slots__ = (
        "_advised",
        "_answers",
        "_counters",
        "_hear",
        "_is_advising",
        "_notices",
        "_records",
        "_sends",
        "_trie",
        "recorder",
    )

    def __init__(self, trie: Trie[Any], recorder: Events, counters: Counter[str], hear: Hear | None) -> None:
        self._sends: Frames = []
        self._notices: list[tuple[Session, ToClient]] = []
        self._answers: Frames = []
        self._records: list[Record] = []
        self._advised: list[tuple[str, bytes]] = []
        self._trie = trie  # patterns of all groups
        self._counters = counters
        self._hear = hear  # hears all advisories, sent or not
        self._is_advising = True  # a setting of the hub
        self.recorder = recorder

    def send(self, peer: PeerId, message: ToClient) -> None:
        """To leave at once."""
        self._sends.append((peer, message))

    def notify(self, session: "Session", message: ToClient) -> None:
        """To leave before the next deliveries, to the connection that the session has then."""
        self._notices.append((session, message))

    def answer(self, peer: PeerId, message: ToClient) -> None:
        """To leave when this turn is on disk."""
        self._answers.append((peer, message))

    def write(self, record: Record) -> None:
        """To be on disk with this turn, in this order."""
        self._records.append(record)

    def advise(self, topic: str, /, **fields: Any) -> None:
        """Tell the hub's log and subscriptions that match. `topic` starts with $sys."""
        if self._hear is not None:
            self._hear(topic, fields)
        if not self._is_advising or not self._trie.match(topic):
            return
        if len(self._advised) >= ADVISED_MAX:
            self._counters["advisories_dropped"] += 1
            return
        self._advised.append((topic, json.dumps(fields, ensure_ascii=False, default=str).encode()))

    def event(self, kind: int, group: str, client: str, attempt: int, first: int, last: int) -> None:
        """Something happened to deliveries of messages first..last."""
        if self.recorder.is_on:
            self.recorder.note(kind, group, client, attempt, first, last)

    def switch_advisories(self, on: bool) -> None:
        self._is_advising = on

    # What the router takes.

    @property
    def has_answers_or_rows(self) -> bool:
        """Whether something waits for a commit."""
        return bool(self._records or self._answers)

    @property
    def mark(self) -> int:
        """How many frames wait to leave at once."""
        return len(self._sends)

    def cut_back(self, mark: int) -> None:
        """Take back the frames that were sent after a mark."""
        del self._sends[mark:]

    def send_notices(self) -> None:
        """Groups are about to deliver."""
        if self._notices:
            self._sends += [(session.peer, message) for session, message in self._notices]
            self._notices = []

    def next_deadline(self) -> float:
        return 0.0 if self._notices else NEVER

    def take_sends(self) -> Frames:
        taken, self._sends = self._sends, []
        return taken

    def take_answers(self) -> Frames:
        taken, self._answers = self._answers, []
        return taken

    def take_advised(self) -> list[tuple[str, bytes]]:
        """Topics and payloads of advisories that a subscription matched."""
        if not self._advised:
            return self._advised
        taken, self._advised = self._advised, []
        return taken

    def rows(self) -> list[Record]:
        """The rows of `write`."""
        taken, self._records = self._records, []
        return taken
