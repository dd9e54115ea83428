"""Writes the dead letters of a group, in steps: a lost consumer can leave tens of thousands.

A dead letter is appended in the turn that settles its message, so the disk has either the open message or the dead
letter. Until then the message is open on disk, and is delivered again after a crash.
"""

from typing import Final

from fabric.router.dead_letters.blocks import dead_letters
from fabric.router.groups.group import Group
from fabric.router.groups.lanes import REMOVED
from fabric.router.groups.lease import DeadLetter
from fabric.router.publish.publishing import Publishing
from fabric.router.rounds import LETTER_WORK
from fabric.router.turn import Turn
from fabric_protocol.block import Block
from fabric_protocol.names import DEAD

DEAD_LETTERS_PER_GO: Final = 512  # of one group: about 4 ms
DEAD_LETTERS_ALL: Final = 1 << 62


def write_dead_letters(group: Group, publishing: Publishing, turn: Turn, count: int) -> bool:
    """Write up to `count` dead letters of a group; True if the group has more. The dead letter of a message
    that is not open any more is written whatever the count."""
    dead, group.dead = group.dead, []
    for letter in dead:
        if group.open.holds(letter.first):
            if count <= 0:
                group.dead.append(letter)
                continue
            if letter.last - letter.first >= count:
                group.dead.append(letter._replace(first=letter.first + count))
                letter = letter._replace(last=letter.first + count - 1)
        size = letter.last - letter.first + 1
        count -= size
        group.shared.rounds.spent += LETTER_WORK * size
        _write(group, letter, publishing, turn)
    return bool(group.dead)


def _write(group: Group, letter: DeadLetter, publishing: Publishing, turn: Turn) -> None:
    shared, counters = group.shared, group.shared.counters
    first, last = max(letter.first, shared.removed_below), letter.last  # messages below were reported as a gap
    block = shared.block_store.at(last)  # a dead letter is of one delivery, so of one block
    if first > last:
        pass
    elif not isinstance(block, Block):  # retention has removed it, and the router does not know it yet
        group.lost(first, last, REMOVED if block is None else block.why, turn)
    elif block.topics[0].startswith(DEAD):  # a dead letter that dies gets no dead letter
        counters["dead_letters_discarded"] += last - first + 1
    else:
        for raw in dead_letters(group.name, letter, block, first, last):
            publishing.append(Block(raw), turn)
        counters["dead_letters"] += last - first + 1
    group.tally.dead += letter.last - letter.first + 1
    group.close(letter.first, last)
