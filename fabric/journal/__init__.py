"""The memory: bytes on disk, in LMDB. No sockets, no routing decisions.

`store.Journal` writes, `reader.Reader` reads; `check`, `backup` and `compact` serve the operator. An error of LMDB
never leaves this room: it becomes a JournalError that says what to do.
"""
