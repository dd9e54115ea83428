"""The shared part of hub and clients: errors, names, bounds, messages, blocks and frames."""

__version__ = "0.1.0"
