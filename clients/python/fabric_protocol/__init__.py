"""What the hub and every client share: errors, names, bounds, messages, blocks and frames."""
