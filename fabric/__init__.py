"""Fabric: durable messaging over ZeroMQ with an LMDB journal."""

__version__ = "0.1.0"
