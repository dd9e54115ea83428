"""Planted bugs of ownership: what belongs to one principal is found by another."""

from collections.abc import Callable
from typing import Any, Final

from fabric.records import SaveSchedule
from fabric.router.access.identity import LOCAL_NAME
from fabric.router.access.principal import Principal
from fabric.router.schedules.overlay import Overlay
from fabric.router.sessions import session_table
from tests.simulation.mutants import Mutant
from tests.simulation.mutations import always
from tests.simulation.people import TENANTS
from tests.simulation.plan import Act, Bias

TENANTS_MEET: Final = Bias(swarm={"tenants": True}, weights={Act.INTRUDE: 8})
TENANTS_CLAIM: Final = Bias(swarm={"tenants": True, "shared_producer": True}, weights={Act.PUBLISH: 30})
TENANTS_WAIT: Final = Bias(swarm={"tenants": True}, weights={Act.PUBLISH_LATER: 30, Act.INTRUDE: 8, Act.CANCEL: 4})


def find_any(original: Callable[..., Any]) -> Callable[..., Any]:
    """A name is looked for among the schedules of all principals."""

    def found(self: Overlay, name: str, owner: str) -> SaveSchedule | str | None:
        rows = (original(self, name, other) for other in (owner, *TENANTS, LOCAL_NAME))
        return next((row for row in rows if row is not None), None)

    return found


TENANCY: Final = {
    "a session is resumed by another principal": Mutant(session_table, "_is_of", always(True), TENANTS_MEET),
    "a name of a producer is that of all principals": Mutant(
        session_table, "internal_name", lambda principal, name, principals: name, TENANTS_CLAIM
    ),
    "a schedule is cancelled by another principal": Mutant(Principal, "may_administer", always(True), TENANTS_WAIT),
    "a name of a schedule is that of all principals": Mutant(
        Overlay, "find_name", find_any(Overlay.find_name), TENANTS_WAIT
    ),
}
