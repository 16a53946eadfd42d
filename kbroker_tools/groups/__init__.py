"""The modules of kbroker-groups, kbroker-share-groups and kbroker-streams-groups: tables, lag, offset resets and
deletions."""
