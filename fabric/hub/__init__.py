"""The shell: sockets, clock and journal meet here, and only here."""

from fabric.hub.hub import Hub, HubOptions

__all__ = ["Hub", "HubOptions"]
