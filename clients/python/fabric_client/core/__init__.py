"""The client without sockets, clocks and threads: sessions, publishes, subscriptions, verdicts."""
