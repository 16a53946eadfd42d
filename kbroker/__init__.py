"""A single-node broker with Kafka's wire protocol and log format."""

import sys

__version__ = '1.0.0rc1'

if 't' in sys.abiflags:
    raise ImportError(f'found a free-threaded Python ({sys.executable}), expected one with the GIL: '
                      'kbroker is not tested without it')
