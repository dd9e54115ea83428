"""The demo: a hub that is killed while messages flow, and a count of what was lost."""
