"""The parts of kbroker-groups: tables, lag, resets and deletions."""
