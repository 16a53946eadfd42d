"""The output of a partition's files as text."""
