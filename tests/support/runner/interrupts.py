"""Lets tests end child processes with Ctrl-C although the test run itself ignores it."""
from __future__ import annotations

import signal


def give_children_the_default_interrupt() -> None:
    """Replace an ignored SIGINT by a handler that does nothing.

    The run itself still ignores SIGINT, as a run under `nohup` or in the background of a script must. A child process
    would inherit the ignored signal. It does not inherit the handler, but starts with the default action, so a test can
    end it with Ctrl-C.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, frame: None)
