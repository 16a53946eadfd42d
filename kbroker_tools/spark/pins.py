"""Hard links that keep the segments of a query when a broker deletes or compacts them.

The links are in a directory next to the log directory, in the same file system, so nothing is copied. They are not
inside the log directory, because Apache Kafka does not start if it finds an unknown folder there. PySpark does not
report the end of a query. The next query that pins segments therefore removes links that are more than a day old.
"""
from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kbroker_tools.spark.file_ranges import FileRange
from kbroker_tools.spark.options import OptionError
from kbroker_tools.spark.partition_files import SegmentFiles
from kbroker_tools.spark.storage import Storage

PREFIX = 'kbroker-pin-'
EXPIRY_S = 24 * 3600
LOG_DIRECTORY_FILE = 'meta.properties'


class SegmentChanged(Exception):
    """A segment changed after the plan and before the pin. The caller must plan again."""


def pin(ranges: Sequence[FileRange]) -> list[FileRange]:
    """Return the same ranges with links to their segments. Raise SegmentChanged if a segment has changed since the
    plan, and OptionError if hard links are not possible."""
    directories: dict[Path, Path] = {}
    linked: dict[tuple[Storage, SegmentFiles], Storage] = {}
    for each in ranges:
        at = (each.storage, each.segment)
        if at not in linked:
            parent = _beside(each.storage)
            if parent not in directories:
                remove_expired(parent)
                directories[parent] = parent / f'{PREFIX}{uuid.uuid4().hex}'
            linked[at] = _link(each, directories[parent])
    return [replace(each, storage=linked[each.storage, each.segment]) for each in ranges]


def _beside(partition: Storage) -> Path:
    """Return the directory for the links. It is next to the log directory, or next to the partition directory if the
    partition is not in a log directory."""
    if not partition.is_local:
        raise OptionError('pin', f'found hardlink with {partition}, but only local paths have hard links')
    directory = Path(partition.location).resolve()
    return directory.parent.parent if (directory.parent / LOG_DIRECTORY_FILE).exists() else directory.parent


def _link(each: FileRange, directory: Path) -> Storage:
    name = each.segment.name('log')
    target = directory / each.storage.name
    try:
        target.mkdir(parents=True, exist_ok=True)
        os.link(Path(each.storage.location) / name, target / name)
        facts = (target / name).stat()
    except FileNotFoundError as error:
        raise SegmentChanged(str(error)) from None
    except OSError as error:
        raise OptionError('pin', f'cannot make hard links in {directory.parent}: {error}') from None
    if each.is_sealed and (facts.st_size, facts.st_mtime_ns) != (each.segment.size_bytes, each.segment.modified_ns):
        raise SegmentChanged(each.path)
    return Storage(str(target))


def remove_expired(parent: Path, now_s: float | None = None) -> None:
    """Remove the pins of earlier queries that are more than a day old."""
    oldest = (time.time() if now_s is None else now_s) - EXPIRY_S
    for directory in parent.glob(f'{PREFIX}*'):
        try:
            if directory.stat().st_mtime < oldest:
                shutil.rmtree(directory)
        except OSError:
            continue  # another query has removed it, or this query has no right to
