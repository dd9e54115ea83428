"""`fabric completion`: prints the script that lets a shell complete commands, options and names."""

import click

from fabric.cli import COMPLETION
from fabric.cli.support.tables import usage

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS), required=False, metavar="SHELL")
@click.pass_context
def completion(context: click.Context, shell: str | None) -> None:
    """Print the script for SHELL that completes commands, options, and names of groups and topics.

    \b
    Examples:
      fabric completion bash > ~/.local/share/bash-completion/completions/fabric
      fabric completion zsh > ~/.zfunc/_fabric
      fabric completion fish > ~/.config/fish/completions/fabric.fish

    A new shell then completes. For zsh, ~/.zshrc needs 'fpath+=~/.zfunc' before 'autoload -Uz compinit && compinit'.
    For this shell alone, with bash: 'eval "$(fabric completion bash)"'. Names come from the hub: if it does not answer
    at once, none are offered.
    """
    if shell is None:
        usage(f"give the name of your shell: {', '.join(SHELLS)}")
    from click.shell_completion import get_completion_class  # late: other commands do not need it

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "fabric", COMPLETION).source())
