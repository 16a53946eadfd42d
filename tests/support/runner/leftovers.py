"""Frees what tests leave behind: brokers that only cycles hold, and files that stay open."""
from __future__ import annotations

import gc
import os

import pytest

from kbroker.log.fs import shared_open_files

MOST_DESCRIPTORS = 256
"""A test that leaves more open behind is followed by a collection. `select` cannot serve numbers from 1,024."""


def free(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Collect garbage after the last test of a file, and after a test that leaves many files open.

    What survives the last test of a file is exempt from all later collections, so that each looks at the objects of
    one file. Python by itself would look at all of them, and only once they have grown by a quarter.

    An append that waits for a sync holds its producer where no collector sees it. So a broker that a test drops
    before the sync stays for good. Its files that await no sync are closed all the same.
    """
    ends = nextitem is None or nextitem.path != item.path
    if ends or len(os.listdir('/proc/self/fd')) > MOST_DESCRIPTORS:
        gc.collect()
        files = shared_open_files()
        files.release(len(files))
    if ends:
        gc.freeze()
