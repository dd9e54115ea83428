"""GET and INFO: reading without a group."""
