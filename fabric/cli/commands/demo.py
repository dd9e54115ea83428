"""`fabric demo`: see it work, and see it survive."""

import logging

import click

from fabric.cli.support.connect import sigterm_interrupts
from fabric.cli.support.values import Duration


@click.command()
@click.option("--seconds", type=Duration(), default=8.0, show_default="8s", help="How long the producer works.")
@click.option("--rate", type=click.IntRange(1, 50_000), default=5_000, show_default=True, help="Messages a second.")
@click.option("--kills", type=click.IntRange(0, 10), default=1, show_default=True, help="How often the hub is killed.")
@click.option("--plain", is_flag=True, help="Lines instead of a live view.")
def demo(seconds: float, rate: int, kills: int, plain: bool) -> int:
    """Watch a hub survive kill -9.

    \b
    Examples:
      fabric demo
      fabric demo --kills 3 --seconds 20s --rate 20000

    A hub in a temporary folder, a producer and two groups of two consumers. In the middle the hub is killed with -9
    and started again. At the end every message that was confirmed must have reached both groups; exit code 1 if not.
    """
    from fabric.demo.run import Demo
    from fabric.demo.view import PlainView, summary, view_for_terminal

    logging.getLogger("fabric_client").setLevel(logging.CRITICAL)  # the demo tells of lost connections itself
    view = PlainView(click.echo) if plain else view_for_terminal()
    with sigterm_interrupts(), view:
        verdict = Demo(seconds=seconds, rate=rate, kills=kills, show=view.show, tell=view.tell).run()
    for line in summary(verdict):
        click.echo(line)
    return 0 if verdict.passed else 1
