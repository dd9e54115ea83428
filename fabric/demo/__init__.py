"""The demo: kills a hub while messages flow, and counts lost messages."""
