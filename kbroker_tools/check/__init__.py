"""Checks of a whole log directory: each partition is checked, and the files of the directory are compared with each
other."""
