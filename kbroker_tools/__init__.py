"""The command-line tools of kbroker. They work on a live broker, or offline on a log directory. Each command has its
own file in `commands`.

PYTEST_DONT_REWRITE: pytest rewrites the assertions in packages of its plugins. Where kbroker is installed, Python
imports this package at its start, before pytest does. Without this word, pytest would warn about it in each run.
"""
