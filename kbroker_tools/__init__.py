"""Command-line companions of kbroker: one file a command, against a live broker or offline on a log directory."""
