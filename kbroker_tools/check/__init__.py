"""Checks of a whole log directory: of each partition, and of the files that must agree with each other."""
