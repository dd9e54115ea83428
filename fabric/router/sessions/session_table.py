"""All sessions, by connection and by secret: HELLO, claims of producers, silent sessions, and the publish window.

A session belongs to the principal that has opened it: for all others it does not exist.
"""

from collections import Counter
from collections.abc import Callable
from itertools import count
from operator import itemgetter
from typing import Any, Final, NamedTuple

from fabric.router.access.identity import Identity
from fabric.router.access.principal import Principal, Principals
from fabric.router.access.producer_names import PRINCIPAL_CHARS_MAX, internal_name, owner_of
from fabric.router.access.sources import AUDIT
from fabric.router.change import Change
from fabric.router.fields import bounded, is_number, text
from fabric.router.publish.producers import WINDOW_BLOCKS, Producer
from fabric.router.publish.publishing import PENDING_BYTES_MAX, WINDOW_BYTES, WINDOW_BYTES_MIN, Publishing
from fabric.router.publish.sources import new_producer
from fabric.router.sessions.session import CHANNELS_MAX, SILENT_BEATS, Session
from fabric.router.turn import Turn
from fabric_protocol import messages as m
from fabric_protocol.block import BLOCK_BYTES_MAX, COUNT_MAX, TOPIC_BYTES_MAX
from fabric_protocol.bounds import EPOCH_MAX, HEARTBEAT_MS, TTL_MS
from fabric_protocol.errors import Code, ProtocolError

SESSIONS_MAX: Final = 20_000  # a connection costs about 28 KB inside ZeroMQ
NAME_CHARS_MAX: Final = 128
EPOCH_JUMP_BYTES: Final = 4
PRODUCERS_MAX: Final = 50_000  # remembered; each costs about half a kilobyte
SOURCES_MAX: Final = 10_000  # of these; they are never forgotten, because their cursors would be lost
# The longest name of a source that we know of: kafka, the id of a cluster (22), a topic (249), a partition.
SOURCE_CHARS_MAX: Final = 300
# A name in the journal: that of a principal, a slash, and the name that its client gives.
PRODUCER_CHARS_MAX: Final = PRINCIPAL_CHARS_MAX + 1 + SOURCE_CHARS_MAX
SOURCES_PER_PRINCIPAL_MAX: Final = SOURCES_MAX // 4  # one principal must not take the room of all others
# Sessions of keys that are not known yet, and how long they live without a command: joining takes a second.
GUESTS_MAX: Final = 100
GUESTS_OF_ADDRESS_MAX: Final = 10  # one machine must not keep others from joining
GUEST_TTL_S: Final = 10.0

Seen = list[tuple[int, int]]  # (channel, last ordinal seen)


class Greeting(NamedTuple):
    """The answer to a HELLO."""

    welcome: m.Welcome
    session: Session
    seen: Seen | None  # the deliveries that the client of a resumed session has seen; None for a new session
    is_claim: bool  # the HELLO starts a new epoch of a producer: WELCOME leaves after the commit


class _Claim(NamedTuple):
    producer: Producer
    name: str  # that the client gives
    epoch: int
    is_new: bool  # fences older sessions of the name, so it must be on disk before the WELCOME


class SessionTable:
    def __init__(
        self,
        token: Callable[[], bytes],
        publishing: Publishing,
        change: Change,
        about: dict[str, Any],
        principals: Principals,
    ) -> None:
        self._token = token
        self._publishing = publishing
        self._change = change
        self._principals = principals
        self._about = about  # hub version, journal uuid and epoch: the same in every WELCOME
        self.sessions: dict[bytes, Session] = {}
        self._by_peer: dict[m.PeerId, Session] = {}
        self._guests: dict[Session, None] = {}  # sessions of keys that are not known
        self._numbers = count(1)
        # Numbered sources by the text before the first slash of their names, which is a principal's if it has one.
        self._sources = Counter(_prefix(name) for name, producer in publishing.producers.items() if producer.jumps)
        self.window = (WINDOW_BLOCKS, WINDOW_BYTES)

    def find(self, peer: m.PeerId) -> Session | None:
        return self._by_peer.get(peer)

    def session_of(self, peer: m.PeerId) -> Session:
        try:
            return self._by_peer[peer]
        except KeyError:
            raise ProtocolError(
                Code.NO_SESSION, "this connection has no session: send HELLO first; the command was not processed"
            ) from None

    def greet(self, hello: m.Hello, peer: m.PeerId, identity: Identity, now: float, turn: Turn) -> Greeting:
        """Open or resume a session."""
        fields = hello.fields
        if peer in self._by_peer:
            raise ProtocolError(Code.SESSION_EXISTS, "this connection has a session already: send HELLO once")
        proto = fields.get("proto")
        if type(proto) is not int or proto != m.PROTOCOL_VERSION:
            raise ProtocolError(
                Code.UNSUPPORTED_VERSION,
                f"protocol {proto!r:.60} is not supported; this hub has version {m.PROTOCOL_VERSION}",
            )
        principal = self._principals.find(identity.name)
        if principal is None or (principal.is_guest and fields.get("enrol") is not True):
            raise ProtocolError(Code.AUTH_FAILED, "the key of this connection is not known to the hub")
        old, seen = self._resumable(fields.get("resume"))
        if old is not None and not _is_of(old, principal, identity):
            self._audit_resume(old, fields, identity, turn)
            old = None
        claim = self._claim(fields.get("producer"), principal, old)
        if old is None:
            session = self._open(fields, peer, principal, identity, now)
        else:
            session = old
            self._move(session, peer, identity, turn)
        session.last_seen = now
        if claim is not None:
            self._admit(session, claim)
        welcome = self._welcome(hello.rid, session, old is not None)
        return Greeting(welcome, session, None if old is None else seen, claim is not None and claim.is_new)

    def _open(self, fields: Any, peer: m.PeerId, principal: Principal, identity: Identity, now: float) -> Session:
        if len(self.sessions) >= SESSIONS_MAX:
            raise ProtocolError(
                Code.BUSY, f"a hub has at most {SESSIONS_MAX} sessions: connect again later", retry_ms=1000
            )
        principal.usage.require_session()
        if principal.is_guest:
            self._require_place_for_guest(identity.address)
        client = text(fields, "client", "", NAME_CHARS_MAX)
        hb_ms = bounded(fields, "hb_ms", *HEARTBEAT_MS)
        ttl_s = bounded(fields, "ttl_ms", *TTL_MS) / 1000
        self._change.begin()
        if principal.is_guest:
            ttl_s = min(ttl_s, GUEST_TTL_S)
        session = Session(self._token(), peer, client, hb_ms / 1000, ttl_s, now)
        session.principal, session.connected_as = principal, identity
        principal.usage.sessions += 1
        if principal.is_guest:
            self._guests[session] = None
        session.number = next(self._numbers)
        self.sessions[session.id] = self._by_peer[peer] = session
        return session

    def _require_place_for_guest(self, address: str) -> None:
        of_address = sum(guest.connected_as.address == address for guest in self._guests)
        if len(self._guests) >= GUESTS_MAX or of_address >= GUESTS_OF_ADDRESS_MAX:
            raise ProtocolError(
                Code.BUSY,
                f"a hub has at most {GUESTS_MAX} sessions of unknown keys, and {GUESTS_OF_ADDRESS_MAX} of one address: "
                "try again later",
                retry_ms=1000,
            )

    def _resumable(self, resume: Any) -> tuple[Session | None, Seen]:
        """The session that HELLO resumes, if the hub has it, and the deliveries that its client has seen."""
        if resume is None:
            return None, []
        subs = resume.get("subs", []) if isinstance(resume, dict) else None
        if not isinstance(subs, list) or not all(
            isinstance(row, list) and len(row) == 2 and all(map(is_number, row)) for row in subs
        ):
            raise ProtocolError(Code.BAD_OPTION, "resume is {session, subs: [[chan, last ordinal seen], …]}")
        secret = resume.get("session")
        session = self.sessions.get(secret) if isinstance(secret, bytes) else None
        return session, [(chan, ordinal) for chan, ordinal in subs]

    def _audit_resume(self, session: Session, fields: Any, identity: Identity, turn: Turn) -> None:
        """Note that a principal has named the secret of another principal's session."""
        turn.advise(
            AUDIT,
            kind="refused",
            verb="HELLO",
            code=Code.FORBIDDEN.name,
            why=f"resume of session {session.number}, which belongs to principal {session.principal.name!r}",
            principal=identity.name,
            address=identity.address,
            client=f"{fields.get('client', '')!s:.{NAME_CHARS_MAX}}",
        )

    def _move(self, session: Session, peer: m.PeerId, identity: Identity, turn: Turn) -> None:
        """Move a resumed session to another connection."""
        self._change.begin()
        if self._by_peer.pop(session.peer, None) is not None:
            turn.send(session.peer, m.Notice("taken_over", {}))
        session.peer, session.connected_as = peer, identity
        session.suspect = session.blocked = False
        self._by_peer[peer] = session

    def _claim(self, wish: Any, principal: Principal, resumed: Session | None) -> _Claim | None:
        """The producer that HELLO names and its epoch. Changes nothing. A guest has none, because it cannot publish."""
        if wish is None or principal.is_guest:
            return None
        name, jumps = _producer_wish(wish)
        internal = internal_name(principal, name, self._principals)
        known = self._publishing.producers.get(internal)
        producer = known or self._new_producer(internal, name, jumps)
        if producer.jumps is not jumps:
            kinds = ("numbers its messages without gaps", "is a numbered source")
            raise ProtocolError(
                Code.CONFLICT,
                f"producer {name!r} {kinds[producer.jumps]}, and this session asks for jumps: {str(jumps).lower()}; "
                "use another name, because a producer keeps its kind",
            )
        epoch = wish.get("epoch")
        if resumed is not None:
            if known is None or resumed.producer is not known:
                raise ProtocolError(
                    Code.BAD_OPTION, f"a resumed session keeps its producer, which is not {name!r}: open a new session"
                )
            epoch = resumed.producer_epoch if epoch is None else epoch
        elif epoch is None:
            # A random step: a hub that was restored from a backup does not know later claims, and must not give one of
            # their epochs to another session.
            jump = int.from_bytes(self._token()[-EPOCH_JUMP_BYTES:], "big")
            return _Claim(producer, name, producer.epoch + 1 + jump, is_new=True)
        # The epoch of the hub may be above EPOCH_MAX, because it adds to the highest epoch of a claim.
        if type(epoch) is not int or not 1 <= epoch <= max(EPOCH_MAX, producer.epoch):
            raise ProtocolError(
                Code.BAD_OPTION, f"producer.epoch is the epoch of an earlier WELCOME, not {epoch!r:.60}"
            )
        if epoch < producer.epoch:
            raise ProtocolError(
                Code.FENCED,
                f"producer {name!r} was claimed by a newer session (epoch {producer.epoch}): claim it without an epoch",
            )
        if resumed is not None and epoch != resumed.producer_epoch:
            raise ProtocolError(
                Code.BAD_OPTION, f"producer.epoch of this session is {resumed.producer_epoch}, not {epoch}"
            )
        # A name that the hub does not know fences no session. Its row is written with its first publish.
        return _Claim(producer, name, epoch, is_new=known is not None and epoch > known.epoch)

    def _new_producer(self, internal: str, name: str, jumps: bool) -> Producer:
        if jumps and self._sources[_prefix(internal)] >= SOURCES_PER_PRINCIPAL_MAX and internal != name:
            raise ProtocolError(
                Code.BAD_OPTION,
                f"a hub remembers at most {SOURCES_PER_PRINCIPAL_MAX} numbered sources of a principal, and {name!r} is "
                "not among them: publish under the name of one of them, or let an administrator delete one",
            )
        if jumps and self._sources.total() >= SOURCES_MAX:
            raise ProtocolError(
                Code.BAD_OPTION,
                f"a hub remembers at most {SOURCES_MAX} numbered sources, and {name!r} is not among them: publish "
                "under the name of one of them, or delete one that is not used any more with producer.delete",
            )
        return new_producer(internal, jumps)

    def _admit(self, session: Session, claim: _Claim) -> None:
        producer = claim.producer
        producer.label = claim.name
        if producer.jumps and producer.name not in self._publishing.producers:
            self._sources[_prefix(producer.name)] += 1
        self._publishing.producers[producer.name] = producer
        if claim.epoch != producer.epoch:
            producer.claim(claim.epoch)
        if claim.is_new:
            self._publishing.save(producer)
        session.producer, session.producer_epoch = producer, claim.epoch

    def _welcome(self, rid: int, session: Session, resumed: bool) -> m.Welcome:
        fields: dict[str, Any] = {
            "proto": m.PROTOCOL_VERSION,
            **self._about,
            "session": session.id,
            "resumed": resumed,
            "hb_ms": int(session.hb_s * 1000),
            "ttl_ms": int(session.ttl_s * 1000),
            "limits": {
                "block_bytes": BLOCK_BYTES_MAX,
                "count": COUNT_MAX,
                "topic_bytes": TOPIC_BYTES_MAX,
                "meta_bytes": m.META_BYTES_MAX,
                "channels": CHANNELS_MAX,
            },
            "flow": list(self.window),
            "subs": [],
        }
        if session.producer is not None:
            producer = session.producer
            fields["producer"] = {
                "epoch": producer.epoch,
                "last_pseq": producer.last_pseq,
                "last_seq": producer.last_seq,
            }
            if producer.jumps:
                fields["producer"]["jumps"] = True
        return m.Welcome(rid, fields)

    def dismiss(self, session: Session) -> None:
        del self.sessions[session.id]
        session.principal.usage.sessions -= 1
        self._guests.pop(session, None)
        if self._by_peer.get(session.peer) is session:
            del self._by_peer[session.peer]

    def silent(self, now: float) -> tuple[list[Session], list[Session]]:
        """Sessions that were silent for their time to live, and sessions that are suspect from now on."""
        over, suspect = [], []
        for session in self.sessions.values():
            quiet_s = now - session.last_seen
            if quiet_s > session.ttl_s:
                over.append(session)
            elif quiet_s > SILENT_BEATS * session.hb_s and not session.suspect:
                session.suspect = True
                suspect.append(session)
        return over, suspect

    def forget_producers(self) -> None:
        """Bound the memory for producers: forget producers without a session, the longest silent first, of the
        principals that have most of them."""
        producers = self._publishing.producers
        if len(producers) > PRODUCERS_MAX:
            here = {session.producer for session in self.sessions.values()}
            # A source would store everything again without its cursor.
            away = sorted(
                (p for p in producers.values() if not p.jumps and p not in here), key=lambda p: p.seen_us, reverse=True
            )
            later: Counter[str] = Counter()  # of each principal, so far
            ranked = []
            for producer in away:
                owner = owner_of(producer.name, self._principals)
                later[owner] += 1
                ranked.append((later[owner], producer))
            ranked.sort(key=itemgetter(0), reverse=True)
            for _, producer in ranked[: len(producers) - PRODUCERS_MAX * 9 // 10]:
                del producers[producer.name]

    def delete_producer(self, name: str) -> Producer:
        """Remove a producer that no session has, by its name in the journal, and return it. Raises when there is none,
        or a session has it."""
        producer = self._publishing.producers.get(name)
        if producer is None:
            raise ProtocolError(Code.NOT_FOUND, f"there is no producer {name!r:.400}")
        held = [session for session in self.sessions.values() if session.producer is producer]
        if held:
            raise ProtocolError(
                Code.CONFLICT,
                f"session {held[0].number} of client {held[0].client!r} publishes as {name!r}: let it end, or end it "
                "with session.kick, then delete the producer",
            )
        self._change.begin()
        self._sources[_prefix(name)] -= producer.jumps
        self._publishing.drop(producer)
        return producer

    def adjust_window(self, turn: Turn) -> None:
        """Share the memory for unconfirmed publishes among the sessions with a producer."""
        publishing = sum(1 for s in self.sessions.values() if s.producer is not None) or 1
        size = min(max(PENDING_BYTES_MAX // 2 // publishing, WINDOW_BYTES_MIN), WINDOW_BYTES)
        if not self.window[1] // 2 < size < self.window[1] * 2:
            self.window = (WINDOW_BLOCKS, size)
            for session in self.sessions.values():
                turn.answer(
                    session.peer, m.Flow(*self.window)
                )  # an answer, so that it follows a WELCOME that waits for the commit


def _is_of(session: Session, principal: Principal, identity: Identity) -> bool:
    """Whether a session belongs to the principal of a connection. All unknown keys share one principal."""
    return session.principal is principal and (not principal.is_guest or session.connected_as.key == identity.key)


def _prefix(internal: str) -> str:
    return internal.partition("/")[0]


def _producer_wish(wish: Any) -> tuple[str, bool]:
    """The name of the producer that HELLO asks for, and whether its numbers may jump."""
    if not isinstance(wish, dict):
        raise ProtocolError(Code.BAD_OPTION, f"producer is {{name, epoch?, jumps?}}, not {wish!r:.60}")
    jumps = wish.get("jumps", False)
    if type(jumps) is not bool:
        raise ProtocolError(Code.BAD_OPTION, f"producer.jumps is true or false, not {jumps!r:.60}")
    name = text(wish, "name", "", SOURCE_CHARS_MAX if jumps else NAME_CHARS_MAX)
    if not name:
        raise ProtocolError(Code.BAD_OPTION, "producer.name is missing")
    return name, jumps
