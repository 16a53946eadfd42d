"""The command-line tools of kbroker. They work on a live broker, or offline on a log directory. Each command has its
own file in `commands`."""
