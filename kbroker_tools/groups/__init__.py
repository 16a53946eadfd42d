"""The parts of kbroker-groups, kbroker-share-groups and kbroker-streams-groups: tables, lag, resets and deletions."""
