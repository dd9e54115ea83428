"""Delayed and repeated publishes."""
