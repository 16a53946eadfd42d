"""Replaces old segments by cleaned ones. After a crash at any point, a start ends with either all old or all new
segments.

The steps of a swap are:

1. The cleaner completes and syncs the `.cleaned` files.
2. The log renames them to `.swap`, the segment with the highest base offset first. After these renames, a start keeps
   the new segments.
3. The log renames the files of the old segments to `.deleted`, removes the suffix `.swap` from the new files, and syncs
   the directory.

A start removes all `.cleaned` files. It also removes the `.swap` files at or above the lowest `.cleaned` file, because
the renames of step 2 were not finished. For each remaining `.swap` file, it removes the normal files in the same
offset range, then removes the suffix `.swap`.
"""
import logging
import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from kbroker.log.batch_walk import read_batches
from kbroker.log.fs import FileSystem
from kbroker.log.segment import LOG_SUFFIX, SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX, file_name

DELETED_SUFFIX = '.deleted'
CLEANED_SUFFIX = '.cleaned'
SWAP_SUFFIX = '.swap'

FILE_NAME = re.compile(r'(\d+)(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(\.deleted|\.cleaned|\.swap|)')

logger = logging.getLogger(__name__)


class SegmentFileName(NamedTuple):
    """The parts of a name: `00000000000000000042.index.swap` is (42, '.index', '.swap')."""

    offset: int
    kind: str
    state: str


def parse_file_name(name: str) -> SegmentFileName | None:
    """Parse the name of a file of a segment, or of a snapshot. Return None for any other name."""
    match = FILE_NAME.fullmatch(name)
    return SegmentFileName(int(match[1]), match[2], match[3]) if match else None


def rename_files(fs: FileSystem, directory: str, base_offset: int, old_state: str, new_state: str) -> None:
    """Rename the existing files of a segment.

    If the new suffix is `.deleted`, rename the log file first, otherwise last. So neither a start after a crash nor a
    reader of the directory finds a log file without its transaction index, which hides aborted records.
    """
    for kind in SEGMENT_SUFFIXES if new_state == DELETED_SUFFIX else reversed(SEGMENT_SUFFIXES):
        old = os.path.join(directory, file_name(base_offset, kind))
        if fs.exists(old + old_state):
            fs.rename(old + old_state, old + new_state)


def finish_swaps(fs: FileSystem, directory: str, names: Iterable[str]) -> bool:
    """Complete or undo a swap that a crash interrupted, and remove `.deleted` files. `names` has the names of all files
    in the directory. Return whether files were changed.
    """
    names = list(names)
    if not any(name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names):
        return False
    found = [(name, parsed) for name in names if (parsed := parse_file_name(name))]
    cleaned = [parsed.offset for _, parsed in found if parsed.state == CLEANED_SUFFIX]
    lowest_cleaned = min(cleaned) if cleaned else None
    swaps = set()
    for name, parsed in found:
        if parsed.state in (DELETED_SUFFIX, CLEANED_SUFFIX):
            fs.unlink(os.path.join(directory, name))
        elif parsed.state == SWAP_SUFFIX:
            if lowest_cleaned is not None and parsed.offset >= lowest_cleaned:
                fs.unlink(os.path.join(directory, name))
            else:
                swaps.add(parsed.offset)
    for base_offset in sorted(swaps):
        _finish_swap(fs, directory, base_offset, [parsed for _, parsed in found if parsed.state == ''])
    fs.sync_directory(directory)
    return True


def _finish_swap(fs: FileSystem, directory: str, base_offset: int, normal: list[SegmentFileName]) -> None:
    log_path = os.path.join(directory, file_name(base_offset, LOG_SUFFIX) + SWAP_SUFFIX)
    if fs.exists(log_path):
        file = fs.open(log_path)
        next_offset = base_offset + 1
        for header, _ in read_batches(file, 0, file.size()):
            next_offset = header.last_offset + 1
        logger.info('%s: finishing the swap of offsets %d to %d', directory, base_offset, next_offset - 1)
        for name in normal:
            path = os.path.join(directory, file_name(name.offset, name.kind))
            if base_offset <= name.offset < next_offset and name.kind != SNAPSHOT_SUFFIX and fs.exists(path):
                fs.unlink(path)
    rename_files(fs, directory, base_offset, SWAP_SUFFIX, '')
