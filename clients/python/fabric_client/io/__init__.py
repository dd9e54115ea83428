"""The DEALER socket, and what both drivers do with it."""
