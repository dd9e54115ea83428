"""Role: the rights that an access file gives to principals, as plain data. Patterns are canonical."""

from typing import Final, NamedTuple

# What commands need beyond the rights to topics and groups. `info` reads all lists and counters; `links` publishes
# messages under their origin in another journal.
ADMIN_RIGHTS: Final = ("groups", "topics", "dlq", "schedules", "sessions", "hub", "keys", "links", "info")


class Limits(NamedTuple):
    """What all sessions of one principal may use together; 0: no limit."""

    rate: int = 0  # messages that are published or requested in a second
    bytes: int = 0  # of these, in a second
    sessions: int = 0
    inflight: int = 0  # bytes of publishes that are not confirmed yet, and of requests that wait for a responder
    groups: int = 0  # durable groups of the hub with names that it may use; at the limit it creates none


class Role(NamedTuple):
    """The rights of a role. A right that is not given is refused."""

    name: str
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()  # names of groups, with * for any characters
    request: tuple[str, ...] = ()
    respond: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()  # wins over all of the above
    producers: tuple[str, ...] = ()  # names that producers share with other principals, with * for any characters
    admin: frozenset[str] = frozenset()  # of ADMIN_RIGHTS
    limits: Limits = Limits()


ALL_TOPICS: Final = ("#", "$sys.#", "$dlq.#")
EVERYTHING: Final = Role(
    "everything", ("#",), ALL_TOPICS, ("*",), ("#",), ("#",), (), ("*",), frozenset(ADMIN_RIGHTS), Limits()
)
NOTHING: Final = Role("nothing")
