"""The lock of a key with a waiting suspect, when messages behind the lock expire."""

from fabric.router.groups.key_locks import Keys, Lock, ParkedMessage
from fabric.router.groups.redelivery import Pending
from fabric.router.ranges import Ranges


def suspected() -> tuple[Keys, Lock]:
    """A suspect, seq 5, and an earlier message of its key that was parked after it."""
    keys = Keys(Pending())
    lock = keys.lock(b"k")
    keys.park(lock, ParkedMessage(5, 3, 2, 0.0))
    keys.update_lock(lock)
    assert lock.suspected
    keys.park(lock, ParkedMessage(3, 2, 0, 0.0))
    return keys, lock


def test_a_message_before_the_suspect_expires() -> None:
    keys, lock = suspected()
    keys.drop(Ranges([(3, 3)]))
    assert lock.suspected
    assert [held.seq for held in lock.parked] == [5]
    keys.drop_suspect(5)
    assert not keys.locks


def test_a_suspect_that_is_not_the_first_expires() -> None:
    keys, lock = suspected()
    keys.drop(Ranges([(5, 5)]))
    assert not lock.suspected
    assert lock in keys.movable[None], "the message before it can go"
