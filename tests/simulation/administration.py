"""The observer's knowledge of ADMIN: what an operation changes, and what it does not."""

from fabric import messages as m
from fabric.errors import Code
from tests.simulation.ledgers import Session
from tests.simulation.reads import Reads


class Administration(Reads):
    def admin(self, session: Session, message: m.Admin) -> int:
        fields = message.fields
        name, op = fields["group"], fields["op"]
        group = self.groups.get(name)
        if group is None:
            return Code.NOT_FOUND
        self.counts[op] += 1
        if fields.get("dry_run"):
            return 0  # nothing changes
        match op:
            case "group.pause" | "group.resume":
                self.undo.append((group.set_paused, group.paused))
                group.paused = op == "group.pause"
                session.expect(message.rid, self.turn, {"paused": group.paused})
            case "group.update":
                settings = group.settings._replace(**{k: v for k, v in fields.items() if k not in ("op", "group")})
                self.undo.append((group.change, group.settings))
                group.change(settings)
            case "group.seek":
                self.seek(group, fields["to"])
            case "group.delete":
                for sub in list(group.subs):
                    self.leave(sub, 0.0, lost=False)
                del self.groups[name]
                self.changed()
                self.undo.append((self.groups.__setitem__, name, group))
                for letter in [letter for letter in self.letters if letter[0] == name]:
                    self.dead.pop(letter, None)
            case "group.refresh":
                self.refresh(session, message.rid, group, fields["from"])
            case "dlq.redrive":
                self.redriving.add(name)
        return 0
