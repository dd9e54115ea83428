"""Names of settings that people know from other brokers, and what each of them does here.

An alias is a name in a configuration file, an environment variable, or both. It sets an option of the hub, is for a
program that this version does not have, has no effect, or is refused with the reason. Most of the variables have
general names such as PORT or DATA_DIR, which other programs use, too: the loader reads them only if it is asked to.
Variables that begin with QB_ belong to one broker and are always read.
"""

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from fabric.cli.support.config_file import shown
from fabric.cli.support.values import seconds, size_bytes

PORT_MAX: Final = 65_535
ALWAYS: Final = "QB_"  # variables that are read without being asked for
# The brokers, by what they are.
PYTHON: Final = "Python broker"
TREE: Final = "tree of brokers"
REST: Final = "REST broker"
SOCKET: Final = "WebSocket broker"
TEXT: Final = "text broker"

HUB: Final = "hub"
GATEWAY: Final = "the HTTP gateway"
WORKER: Final = "the worker"
NONE: Final = "none"
# Address and port are two names there and one option here.
HOST: Final = "host"
PORT: Final = "port"
DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORTS: Final = {PYTHON: "9999", TREE: "9092"}  # of a broker whose host alone is given

_HOST: Final = re.compile(r"[A-Za-z0-9.:_%*-]{1,255}")
_LEVELS: Final = {"trace": "debug", "warn": "warning", "critical": "error", "fatal": "error"}


def same(text: str) -> str:
    return text


def port(text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,5}", text.strip()) or not 1 <= int(text) <= PORT_MAX:
        raise ValueError(f"{text!r} is not a port; write a number of 1..{PORT_MAX}")
    return str(int(text))


def host(text: str) -> str:
    if not _HOST.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not a host; write an address such as 127.0.0.1")
    word = text.strip()
    return DEFAULT_HOST if word == "localhost" else f"[{word}]" if ":" in word else word


def level(text: str) -> str:
    word = text.strip().lower()
    return _LEVELS.get(word, word)


def hours(text: str) -> str:
    try:
        return f"{seconds(f'{float(text):f}h'):.0f}s"
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a number of hours; write 24") from None


def message_size(text: str) -> str:
    from fabric_protocol.block import BLOCK_BYTES_MAX  # late: few starts need it

    if size_bytes(text) > BLOCK_BYTES_MAX:
        raise ValueError(f"{text!r} is too much: a message has at most {BLOCK_BYTES_MAX >> 20} MiB here")
    return text


def backend(text: str) -> str:
    if text.strip().lower() not in ("memory", "lmdb"):
        raise ValueError(
            f"{text!r} is not possible: the hub stores messages in its own journal (LMDB, in --data) and needs no "
            "other database; remove the setting"
        )
    return text


def transport(text: str) -> str:
    if text.strip().lower() != "tcp":
        raise ValueError(f"{text!r} is not possible: the hub listens at tcp:// and ipc:// addresses; see --bind")
    return text


class Alias(NamedTuple):
    """`name` is the name in a file, with dots, `variable` the one in the environment; one of them may be empty.
    `target` is an option of the hub, HOST or PORT. `check` returns the value for it; it raises ValueError."""

    broker: str
    name: str
    variable: str
    reader: str
    target: str = ""
    note: str = ""
    check: Callable[[str], str] = same
    secret: bool = False

    @property
    def shown(self) -> str:
        return self.name or self.variable

    def effect(self) -> str:
        """What the alias does, in words."""
        if self.reader == HUB:
            return "--bind" if self.target in (HOST, PORT) else f"--{self.target}"
        if self.reader == NONE:
            return f"no effect: {self.note}"
        return f"no effect: for {self.reader}, which this version does not have" + (
            f"; {self.note}" if self.note else ""
        )


_IN_GROUP: Final = "of 'fabric group create' and 'fabric queue create'"
_ONE_JOURNAL: Final = "the journal is one LMDB file"
_ON_DISK: Final = "the journal is on disk; for a hub without a disk, --data can be a folder in memory (tmpfs)"

ALIASES: Final = (
    Alias(PYTHON, "server.host", "QB_SERVER_HOST", HUB, HOST, check=host),
    Alias(PYTHON, "server.port", "QB_SERVER_PORT", HUB, PORT, check=port),
    Alias(PYTHON, "server.heartbeat_interval", "", NONE, note="client and hub agree on it"),
    Alias(PYTHON, "client.heartbeat_interval", "", NONE, note="client and hub agree on it"),
    Alias(PYTHON, "client.request_timeout", "", NONE, note="an argument of the calls of a client"),
    Alias(PYTHON, "storage.data_dir", "QB_DATA_DIR", HUB, "data"),
    Alias(
        PYTHON, "storage.fsync_on_write", "", NONE, note="the hub always syncs; a publish may ask for level received"
    ),
    Alias(PYTHON, "", "QB_LOG_LEVEL", HUB, "log-level", check=level),
    Alias(TREE, "broker.node.id", "NODE_ID", NONE, note="a hub is known by its journal"),
    Alias(TREE, "broker.storage.data_dir", "DATA_DIR", HUB, "data"),
    Alias(TREE, "broker.storage.type", "", NONE, note=_ONE_JOURNAL),
    Alias(TREE, "broker.storage.segment_size", "", NONE, note=_ONE_JOURNAL),
    Alias(TREE, "broker.network.type", "", NONE, note="it is tcp", check=transport),
    Alias(TREE, "broker.network.port", "BROKER_PORT", HUB, PORT, check=port),
    Alias(TREE, "broker.threads.boss", "", NONE, note="ZeroMQ has its own threads"),
    Alias(TREE, "broker.threads.worker", "", NONE, note="ZeroMQ has its own threads"),
    Alias(TREE, "broker.registry.url", "REGISTRY_URL", NONE, note="this release has no registry"),
    Alias(TREE, "broker.registry.poll_interval", "", NONE, note="this release has no registry"),
    Alias(TREE, "broker.pipe.poll_interval", "", NONE, note="this release has no links between hubs"),
    Alias(TREE, "broker.pipe.batch_size", "", NONE, note="this release has no links between hubs"),
    Alias(TREE, "broker.http.port", "HTTP_PORT", GATEWAY),
    Alias(TREE, "", "CONSUMER_TYPE", WORKER),
    Alias(TREE, "", "CONSUMER_TOPIC", WORKER, note="'fabric sub' has an argument for it"),
    Alias(TREE, "", "CONSUMER_GROUP", WORKER, note="'fabric sub --group' has the same meaning"),
    Alias(TREE, "", "CONSUMER_PORT", WORKER),
    Alias(TREE, "", "BROKER_HOST", WORKER, note="clients use FABRIC_URL"),
    Alias(TREE, "", "STORAGE_DATA_DIR", WORKER),
    Alias(REST, "", "APP_HOST", GATEWAY),
    Alias(REST, "", "APP_PORT", GATEWAY),
    Alias(REST, "", "APP_ENV", NONE, note="there is one way to run a hub"),
    Alias(REST, "", "AUTH_MODE", GATEWAY),
    Alias(REST, "", "API_KEY", GATEWAY, secret=True),
    Alias(REST, "", "JWT_SECRET", GATEWAY, secret=True),
    Alias(REST, "", "CORS_ORIGINS", GATEWAY),
    Alias(REST, "", "STORE_BACKEND", NONE, note=f"{_ON_DISK}; redis and postgres are refused", check=backend),
    Alias(REST, "", "REDIS_URL", NONE, note=_ONE_JOURNAL, secret=True),
    Alias(REST, "", "VISIBILITY_TIMEOUT_SEC", GATEWAY, note=f"--lease {_IN_GROUP}"),
    Alias(REST, "", "MAX_RETRIES", GATEWAY, note=f"--attempts {_IN_GROUP}"),
    Alias(REST, "", "BACKOFF_STRATEGY", GATEWAY, note=f"--backoff {_IN_GROUP}"),
    Alias(REST, "", "BACKOFF_BASE_MS", GATEWAY, note=f"--backoff-base {_IN_GROUP}"),
    Alias(REST, "", "DLQ_SUFFIX", GATEWAY, note="the hub knows <group>.DLQ"),
    Alias(SOCKET, "", "PORT", GATEWAY),
    Alias(SOCKET, "", "PERSISTENCE_ENABLED", NONE, note=_ON_DISK),
    Alias(SOCKET, "", "RETENTION_HOURS", HUB, "max-age", check=hours),
    Alias(SOCKET, "", "MAX_MESSAGE_SIZE", GATEWAY, note="a message of the hub has at most 16 MiB", check=message_size),
    Alias(
        SOCKET,
        "",
        "MAX_QUEUE_SIZE",
        GATEWAY,
        note="--max-messages of 'fabric topic create'",
    ),
    Alias(TEXT, "server.host", "", HUB, HOST, check=host),
    Alias(TEXT, "server.port", "", HUB, PORT, check=port),
    Alias(TEXT, "storage.data_dir", "", HUB, "data"),
)
NAMES: Final = {alias.name: alias for alias in reversed(ALIASES) if alias.name}
ROOTS: Final = frozenset(name.partition(".")[0] for name in NAMES)


def text(value: Any) -> str:
    """A value of a file as the text that a variable would have. Raises ValueError."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int | float) and (isinstance(value, float) or value.bit_length() < 1024):
        return str(value)
    raise ValueError(f"{shown(value)} is not allowed; allowed is a text, a number, true or false")
