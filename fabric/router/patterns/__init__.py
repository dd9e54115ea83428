"""Patterns of topics, compiled."""
