"""Errors of the journal and of snapshots. Errors of the protocol are in `fabric_protocol.errors`."""

from fabric_protocol.errors import FabricError


class JournalError(FabricError):
    """The journal cannot be opened, read or written."""


class JournalDamaged(JournalError):
    """Bytes on disk do not match their checksum or the format's rules."""


class SnapshotError(FabricError):
    """A snapshot cannot be created, found or read."""


class SnapshotDamaged(SnapshotError):
    """The files of a snapshot do not match its manifest."""
