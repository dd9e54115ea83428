"""The schedules on disk, with the changes of turns that are not on disk yet laid over them.

The disk is a turn or two behind the router. Until a turn is committed, its new schedules are kept here with their
blocks, and the schedules that it removed are noted here, because they are still on disk.
"""

from collections import deque

from fabric.records import DropSchedule, SaveSchedule
from fabric.router.schedules.due_queue import Key, StoredSchedules

Change = SaveSchedule | DropSchedule


class Overlay:
    def __init__(self, stored: StoredSchedules) -> None:
        self._stored = stored
        self._fresh: dict[int, SaveSchedule] = {}
        self._gone: set[Key] = set()
        self._names: dict[tuple[str, str], Change] = {}  # the latest change of each owner and name
        self._turn: list[Change] = []
        self._sealed: deque[list[Change]] = deque()

    def saved(self, schedule: SaveSchedule) -> None:
        self._fresh[schedule.id] = schedule
        self._note(schedule)

    def dropped(self, drop: DropSchedule) -> None:
        self._fresh.pop(drop.id, None)
        self._gone.add((drop.due_us, drop.id))
        self._note(drop)

    def _note(self, change: Change) -> None:
        self._turn.append(change)
        if change.name:
            self._names[change.owner, change.name] = change

    def seal(self) -> None:
        self._sealed.append(self._turn)
        self._turn = []

    def committed(self) -> None:
        """The oldest sealed turn is on disk: drop its changes, unless a later turn has changed the schedule again."""
        for change in self._sealed.popleft():  # mostly none
            if isinstance(change, DropSchedule):
                self._gone.discard((change.due_us, change.id))
            elif self._fresh.get(change.id) is change:
                del self._fresh[change.id]
            if change.name and self._names.get((change.owner, change.name)) is change:
                del self._names[change.owner, change.name]

    # Reading.

    def keys(self) -> list[Key]:
        return [(schedule.due_us, schedule.id) for schedule in self._fresh.values()]

    def is_gone(self, key: Key) -> bool:
        return key in self._gone

    def read(self, keys: list[Key], bytes_max: int) -> list[SaveSchedule | str | None]:
        """The schedules of these keys, as of now: None when the schedule was removed."""
        on_disk = [key for key in keys if key[1] not in self._fresh and key not in self._gone]
        rows = dict(zip(on_disk, self._stored.read(on_disk, bytes_max), strict=False)) if on_disk else {}
        found: list[SaveSchedule | str | None] = []
        for key in keys:
            fresh = self._fresh.get(key[1])
            if fresh is not None:
                found.append(fresh if fresh.due_us == key[0] else None)
            elif key in self._gone:
                found.append(None)
            elif key in rows:
                found.append(rows[key])
            else:
                break  # the read from disk ended at its bound
        return found

    def find(self, number: int) -> SaveSchedule | str | None:
        if number in self._fresh:
            return self._fresh[number]
        return self._present(self._stored.find(number))

    def find_name(self, name: str, owner: str) -> SaveSchedule | str | None:
        match self._names.get((owner, name)):
            case SaveSchedule() as schedule:
                return schedule
            case DropSchedule():
                return None
        return self._present(self._stored.find_name(name, owner))

    def _present(self, found: SaveSchedule | str | None) -> SaveSchedule | str | None:
        if isinstance(found, SaveSchedule) and (found.due_us, found.id) in self._gone:
            return None
        return found
