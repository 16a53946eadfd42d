"""Frees brokers that only reference cycles keep alive, and closes files that tests left open."""
from __future__ import annotations

import gc
import os

import pytest

from kbroker.log.fs import shared_open_files

MOST_DESCRIPTORS = 256
"""The number of open files after a test above which garbage is collected. `select` cannot serve descriptors of 1,024
and above.
"""


def free(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Collect garbage after the last test of a file, and after a test that leaves many files open.

    Objects that survive the last test of a file are exempt from all later collections, so that each collection
    traverses only the objects of one file. Python's own collections would traverse all objects, and would run only when
    their number has grown by a quarter.

    An append that waits for a sync holds its producer by references that the collector does not see. A broker that a
    test drops before the sync is therefore never freed. Its files that wait for no sync are still closed.
    """
    ends = nextitem is None or nextitem.path != item.path
    if ends or len(os.listdir('/dev/fd')) > MOST_DESCRIPTORS:
        gc.collect()
        files = shared_open_files()
        files.release(len(files))
    if ends:
        gc.freeze()
