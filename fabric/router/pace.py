"""Pace: when a pass over the journal pauses between two steps, so that other work of the hub goes on.

The router measures no time, so the work of a step is counted in topics of the blocks that it has read: to count a topic
takes some microseconds. Most blocks have one topic, and a pass over them does not pause. A block may have 4,096 topics.
If a command arrives after a step with such a block, a pause of about three times the length of the step follows. A hub
without commands does not pause. All passes have one pace, and the pass that comes first in a tick goes on first.
"""

from collections.abc import Iterable
from typing import Final

from fabric_protocol.block_contents import Contents

TOPICS_PER_STEP: Final = 512  # about two milliseconds
PAUSE_S: Final = 10e-6  # for each topic: a step takes about 3 µs for a topic
TURN_S: Final = 0.001  # the next step is in another turn, so that frames are received before it


class Pace:
    __slots__ = ("_topics", "due", "heard")

    def __init__(self) -> None:
        self.due = 0.0  # when the next step may begin; 0: at once
        self.heard = False  # a command has arrived since the last step began
        self._topics = 0  # of the last step

    def begin(self, now: float) -> bool:
        """Begin a step; False while the pass pauses."""
        if now < self.due:
            return False
        is_pause = self.heard and self._topics >= TOPICS_PER_STEP
        self.due = now + self._topics * PAUSE_S if is_pause else 0.0
        self.heard, self._topics = False, 0
        return not is_pause

    def goes_on(self, found: Iterable[Contents], now: float) -> bool:
        """Count what the step has read; False if the step is over."""
        self._topics += sum(len(contents.topics) for contents in found)
        if self._topics < TOPICS_PER_STEP:
            return True
        self.due = now + TURN_S
        return False
