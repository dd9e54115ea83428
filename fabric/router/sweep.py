"""What the router does twice a second: silent sessions end, and parts drop what is over."""

from typing import TYPE_CHECKING

from fabric.router.timers import NEVER
from fabric.router.turn import Turn

if TYPE_CHECKING:
    from fabric.router.router import Router


def sweep(router: "Router", now: float, turn: Turn) -> None:
    """End sessions that were silent for too long, and let the parts drop what is over."""
    over, suspect = router.session_table.silent(now)
    for session in over:
        router.end(session, turn, lost=True)
    # The client may be stopped or cut off: other consumers get deliveries that are not begun.
    for session in suspect:
        session.grace_until = NEVER
        router.counters["sessions_silent"] += 1
    router.members.detach(suspect, turn)
    for session in [session for session in router.members.away if now >= session.grace_until]:
        for sub in list(session.channels.values()):
            router.leave(sub, turn, lost=True)
        del router.members.away[session]
    router.session_table.forget_producers()
    router.ids.sweep()
    router.pulse.sweep(now)  # before the dispatcher, which forgets which groups have changed
    router.dispatcher.sweep(now, turn)
    router.topics.sweep(turn)
    router.session_table.adjust_window(turn)
