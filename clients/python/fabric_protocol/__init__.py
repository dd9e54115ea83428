"""What the hub and every client share: errors, names, bounds, messages, blocks and frames."""

__version__ = "0.1.0"
