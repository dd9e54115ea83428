"""`fabric producer …`: removes producers and numbered sources. There is no list, because the hub tells no names."""

import click

from fabric.cli.support.connect import asking_options, connect
from fabric.cli.support.noun import Noun
from fabric.cli.support.tables import confirm, output_options, say, yes_option


@click.group("producer", cls=Noun)
def producer() -> None:
    """Producers and numbered sources.

    \b
    Examples:
      fabric producer delete kafka:c1:orders:0
    """


@producer.command("delete")
@click.argument("name")
@yes_option
@output_options
@asking_options
def delete_command(name: str, yes: bool, as_json: bool, url: str, connect_timeout: float) -> None:
    """Remove a producer or a numbered source that is not connected. The next one of this name begins at 0: a source
    publishes everything again.

    \b
    Examples:
      fabric producer delete kafka:c1:orders:0
      fabric producer delete file:/var/log/old.log --yes
    """
    with connect(url, connect_timeout) as fab:
        confirm(f"delete producer {name}", yes)
        answer = fab.admin.producers.delete(name)
    kind = "source" if answer["jumps"] else "producer"
    say("fabric.producer.delete.v1", answer, f"{kind} {name}: deleted; it was at {answer['last_pseq']}", as_json)
