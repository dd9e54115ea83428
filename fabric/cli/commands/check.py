"""`fabric check`: a plug-in for monitoring systems. It prints one line and ends with 0 OK, 1 WARNING, 2 CRITICAL or
3 UNKNOWN."""

from typing import TYPE_CHECKING, Any

import click

from fabric.cli.support import completion
from fabric.cli.support.check_result import Figure, Result, judged, line_of
from fabric.cli.support.connect import all_rows, checking_options, connect
from fabric.cli.support.tables import plural
from fabric.cli.support.values import Duration, Text
from fabric_protocol.errors import FabricError

if TYPE_CHECKING:
    from fabric_client import Client

Bounds = tuple[float | None, float | None]


class Plugin(click.Command):
    """A command that ends wrong usage with exit code 3, UNKNOWN, because 2 means CRITICAL."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*args, **extra)
        except click.UsageError as error:
            error.exit_code = Result.UNKNOWN  # type: ignore[misc]  # a class variable in click
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; without an address, such as that of a context that does not exist, the result is UNKNOWN."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            error.exit_code = Result.UNKNOWN  # type: ignore[misc]  # as above
            raise
        except FabricError as error:
            click.echo(line_of(Result.UNKNOWN, [str(error)]))
            return Result.UNKNOWN


@click.command("check", cls=Plugin)
@click.option(
    "--group",
    "names",
    type=Text(),
    multiple=True,
    metavar="NAME",
    shell_complete=completion.groups,
    help="Only this group; can be repeated.",
)
@click.option("--warn-oldest", type=Duration(), help="WARNING: a group has an unsettled message of this age.")
@click.option("--crit-oldest", type=Duration(), help="CRITICAL: a group has an unsettled message of this age.")
@click.option("--warn-lag", type=click.IntRange(min=1), help="WARNING: this many messages wait for a group.")
@click.option("--crit-lag", type=click.IntRange(min=1), help="CRITICAL: this many messages wait for a group.")
@click.option("--warn-dead", type=click.IntRange(min=1), help="WARNING: this many dead letters.")
@click.option("--crit-dead", type=click.IntRange(min=1), help="CRITICAL: this many dead letters.")
@click.option("--alive", is_flag=True, help="End with 0 if the hub answers, whatever its health: for restart probes.")
@checking_options
def check(
    names: tuple[str, ...],
    warn_oldest: float | None,
    crit_oldest: float | None,
    warn_lag: int | None,
    crit_lag: int | None,
    warn_dead: int | None,
    crit_dead: int | None,
    alive: bool,
    url: str,
    connect_timeout: float,
) -> int:
    """Check the hub and its groups, for a monitoring system: one line with performance data, and an exit code.

    \b
    Examples:
      fabric check
      fabric check --warn-oldest 5m --crit-oldest 1h
      fabric check --group billing --warn-lag 1000 --crit-lag 100000
      fabric check --warn-dead 1 --timeout 5s
      fabric check --alive

    Exit codes: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN. The health of the hub counts as well: DEGRADED is WARNING,
    UNHEALTHY is CRITICAL. A hub that does not answer is CRITICAL. Wrong usage is UNKNOWN. With --alive the
    command looks at no group, and ends with 0 if the hub answers: a restart does not help a hub with a full disk.
    """
    import fabric_client

    oldest, lag, dead = (warn_oldest, crit_oldest), (warn_lag, crit_lag), (warn_dead, crit_dead)
    try:
        with connect(url, connect_timeout) as fab:
            health = fab.info("health")
            figures, summary = ([], "it answers") if alive else _looked_at(fab, names, oldest, lag, dead)
    except (fabric_client.ConnectionLost, fabric_client.Timeout, fabric_client.TimedOut) as error:
        click.echo(line_of(Result.CRITICAL, [f"the hub at {url} does not answer: {error}"]))
        return Result.CRITICAL
    except FabricError as error:
        click.echo(line_of(Result.UNKNOWN, [str(error)]))
        return Result.UNKNOWN
    result, line = judged(health, figures, summary)
    click.echo(line)
    return Result.OK if alive else result


def _looked_at(
    fab: "Client", names: tuple[str, ...], oldest: Bounds, lag: Bounds, dead: Bounds
) -> tuple[list[Figure], str]:
    """The figures of the groups, and what they are of."""
    groups = _groups(fab, names)
    figures = _figures(groups, oldest, lag)
    figures.append(Figure("dead", _letters(fab, names), "", *dead))
    return figures, plural(len(groups), "group")


def _groups(fab: "Client", names: tuple[str, ...]) -> list[dict[str, Any]]:
    if names:
        return [fab.info("group", name) for name in names]
    return [row for row in all_rows(fab, "groups", "groups") if row["durable"]]


def _letters(fab: "Client", names: tuple[str, ...]) -> int:
    if not names:
        total = fab.info("hub").get("dead_letters")  # absent if the role may not read numbers of the whole hub
        return int(total if total is not None else sum(row["count"] for row in all_rows(fab, "dlq", "groups")))
    return sum(int(fab.info("group", name)["dead_letters"]) for name in names)


def _figures(groups: list[dict[str, Any]], oldest: Bounds, lag: Bounds) -> list[Figure]:
    """The age of the oldest unsettled message and the lag of the groups: of each group with a name, or of the worst."""
    ages = {row["group"]: row["oldest_age_ms"] / 1000 for row in groups} if any(oldest) else {}
    figures = [Figure(f"oldest {name}", round(age_s, 3), "s", *oldest) for name, age_s in ages.items()]
    figures += [Figure(f"ready {row['group']}", row["ready"], "", *lag) for row in groups]
    worst: dict[str, Figure] = {}
    for figure in figures:
        kind = figure.label.partition(" ")[0]
        if figure.result or kind not in worst or figure.value > worst[kind].value:
            worst[figure.label if figure.result else kind] = figure
    return figures if len(groups) <= 10 else list(dict.fromkeys(worst.values()))
