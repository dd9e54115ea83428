"""ADMIN: operations on groups, queues, dead letters and settings of the hub."""
