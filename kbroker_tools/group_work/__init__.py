"""The parts of kbroker-groups and kbroker-share-groups: tables, lag, resets and deletions."""
