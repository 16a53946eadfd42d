"""Checks of a log directory as a whole, beyond its single partitions."""
