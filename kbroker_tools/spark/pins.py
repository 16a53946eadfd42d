"""Segments kept for a query by hard links, whatever a broker deletes or compacts meanwhile.

The links lie beside the log directory, in the same file system: nothing is copied, and no folder appears in the log
directory, where Apache Kafka would refuse to start on it. PySpark does not tell when a query is over, so the next query
that pins removes what is older than a day.
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
    """Between the plan and the pin: plan again."""


def pin(ranges: Sequence[FileRange]) -> list[FileRange]:
    """The same ranges, of links to their segments. SegmentChanged; OptionError where links cannot be made."""
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
    """Beside the log directory; beside the partition's own where that lies in no log directory."""
    if not partition.is_local:
        raise OptionError('pin', f'found hardlink with {partition}; hard links are there only for local paths')
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
        raise OptionError('pin', f'no hard links can be made in {directory.parent}: {error}') from None
    if each.is_sealed and (facts.st_size, facts.st_mtime_ns) != (each.segment.size_bytes, each.segment.modified_ns):
        raise SegmentChanged(each.path)
    return Storage(str(target))


def remove_expired(parent: Path, now_s: float | None = None) -> None:
    """Pins of other queries that were made more than a day ago."""
    oldest = (time.time() if now_s is None else now_s) - EXPIRY_S
    for directory in parent.glob(f'{PREFIX}*'):
        try:
            if directory.stat().st_mtime < oldest:
                shutil.rmtree(directory)
        except OSError:
            continue  # another query was faster, or may do what this one may not
