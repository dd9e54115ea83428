"""`fabric demo`: shows a hub that survives kill -9."""

import logging

import click

from fabric.cli.support.connect import sigterm_interrupts
from fabric.cli.support.values import Duration


@click.command()
@click.option("--seconds", type=Duration(), default=8.0, show_default="8s", help="How long the producer publishes.")
@click.option("--rate", type=click.IntRange(1, 50_000), default=5_000, show_default=True, help="Messages a second.")
@click.option("--kills", type=click.IntRange(0, 10), default=1, show_default=True, help="How often the hub is killed.")
@click.option("--plain", is_flag=True, help="Print lines instead of a live view.")
def demo(seconds: float, rate: int, kills: int, plain: bool) -> int:
    """Watch a hub survive kill -9.

    \b
    Examples:
      fabric demo
      fabric demo --kills 3 --seconds 20s --rate 20000

    The demo runs a hub in a temporary folder, a producer and two groups of two consumers. It kills the hub with -9 and
    starts it again. At the end each confirmed message must have reached both groups; otherwise the exit code is 1.
    """
    from fabric.demo.run import Demo
    from fabric.demo.view import PlainView, summary, view_for_terminal

    logging.getLogger("fabric_client").setLevel(logging.CRITICAL)  # the demo prints lost connections itself
    view = PlainView(click.echo) if plain else view_for_terminal()
    with sigterm_interrupts(), view:
        verdict = Demo(seconds=seconds, rate=rate, kills=kills, show=view.show, tell=view.tell).run()
    for line in summary(verdict):
        click.echo(line)
    return 0 if verdict.passed else 1
