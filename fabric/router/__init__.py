"""The core: decides, never does. No sockets, no disk, no clock; a message and the time in, effects out."""
