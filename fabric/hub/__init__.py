"""The hub: connects the router to the socket, the clock and the journal."""

from fabric.hub.hub import Hub, HubOptions

__all__ = ["Hub", "HubOptions"]
