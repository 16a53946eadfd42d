"""A program for callgrind that starts a broker and ends as soon as the broker is ready.

    PYTHONPATH=. python tests/gates/started_broker.py DIRECTORY

The program prints the names of the imported modules.
"""
from __future__ import annotations

import os
import sys

from kbroker.daemon.main import keeping_everything
from kbroker.settings.config import Config

if __name__ == '__main__':
    with keeping_everything():
        from kbroker.daemon.broker import Broker  # inside, as in `kbroker serve`

        broker = Broker(Config({'log.dirs': sys.argv[1], 'listeners': 'PLAINTEXT://127.0.0.1:0'}))
        broker.start()
    print(*sorted(sys.modules), flush=True)
    os._exit(0)
