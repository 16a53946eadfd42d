"""The command-line companions of kbroker, for a live broker or offline for a log directory: one file per command."""
