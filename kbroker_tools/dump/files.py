"""The files to dump, and the position at which the dump of each file begins."""
from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from struct import Struct

    from kbroker_tools.dump.selection import Selection

LOG = '.log'
CHECKPOINT = '.checkpoint'
INDEX = '.index'
TIME_INDEX = '.timeindex'
CUT = '.cut'
"""The suffix of a file with the bytes that a recovery has cut off a log."""
BOOTSTRAP = 'bootstrap.checkpoint'

def suffix_of(path: str) -> str:
    """Return the suffix of a file name, with its dot. Return '' if the name has no dot."""
    name = os.path.basename(path)
    dot = name.rfind('.')
    return name[dot:] if dot >= 0 else ''


def as_java_shows(path: str) -> str:
    """Return a path as Java prints it: without double slashes and without a slash at the end."""
    while '//' in path:
        path = path.replace('//', '/')
    return path.rstrip('/') if len(path) > 1 else path


def base_offset_of(path: str) -> int | None:
    """Return the number at the beginning of a segment's file name. Return None if there is no number."""
    digits = os.path.basename(path).partition('.')[0]
    return int(digits) if digits.isascii() and digits.isdecimal() else None


def must_be_file(path: str) -> None:
    """Raise FileNotFoundError if a file is missing, and OSError if it is not a regular file. To open a pipe would
    block."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, 'found no regular file', path)


def expand(paths: list[str], suffixes: tuple[str, ...]) -> Iterator[str]:
    """Yield the files that the paths name, in the order of the paths. For a pattern or a directory, yield only files
    with these suffixes.

    Raise FileNotFoundError if a pattern matches no file, and OSError if a directory cannot be read.
    """
    for path in paths:
        if os.path.isdir(path):
            yield from files_in(path, suffixes)
        elif any(sign in path for sign in '*?[') and not os.path.exists(path):
            from glob import glob
            found = sorted(glob(path))
            if not found:
                raise FileNotFoundError(2, 'no file matches this pattern', path)
            yield from expand(found, suffixes)
        else:
            yield path


def files_in(directory: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return the segment files of a partition directory, sorted by offset. For a log directory, return the segment
    files of each partition in turn.

    Raise FileNotFoundError if there are no segment files.
    """
    found = _segment_files(directory, suffixes)
    if not found:
        partitions = [entry.name for entry in os.scandir(directory) if entry.is_dir()]
        for name in sorted(partitions, key=_partition_order):
            found += _segment_files(os.path.join(directory, name), suffixes)
    if not found:
        raise FileNotFoundError(2, f'no {" or ".join(suffixes)} files in this directory', directory)
    return found


def _segment_files(directory: str, suffixes: tuple[str, ...]) -> list[str]:
    return [os.path.join(directory, name) for name in sorted(os.listdir(directory))
            if suffix_of(name) in suffixes and base_offset_of(name) is not None]


def _partition_order(name: str) -> tuple[str, int]:
    topic, _, partition = name.rpartition('-')
    return topic, int(partition) if partition.isdecimal() else -1


def next_segment(path: str) -> str | None:
    """Return the path of the `.log` that follows in the same partition. Return None if this one is the last."""
    directory = os.path.dirname(path)
    base_offset = base_offset_of(path)
    if base_offset is None:
        return None
    later = [name for name in os.listdir(directory or '.')
             if suffix_of(name) == LOG and (base_offset_of(name) or 0) > base_offset]
    return os.path.join(directory, min(later)) if later else None


# ---- the position at which a dump begins

def ends_before(path: str, selection: Selection) -> bool:
    """Return whether all offsets of the segment are below the first selected offset. That is so if the next segment
    begins at or below the first selected offset."""
    if base_offset_of(path) is None:
        return False
    following = next_segment(path)
    return following is not None and (base_offset_of(following) or 0) <= selection.first_offset


def begins_after(path: str, selection: Selection) -> bool:
    """Return whether all offsets of the segment are above the last selected offset."""
    base_offset = base_offset_of(path)
    return base_offset is not None and base_offset > selection.last_offset


def start_position(path: str, selection: Selection) -> int:
    """Return a position in the `.log` that is not after the first selected record. The indexes have this position.
    Return 0 if there is no index."""
    base_offset = base_offset_of(path)
    if base_offset is None or suffix_of(path) != LOG:
        return 0
    from kbroker.log.formats import OFFSET_ENTRY, TIME_ENTRY  # not at the top: most dumps do not need it
    stem = path.removesuffix(LOG)
    offset = selection.first_offset - base_offset
    try:
        if selection.first_timestamp_ms > 0:
            offset = max(offset, _search(stem + TIME_INDEX, TIME_ENTRY, 1, selection.first_timestamp_ms - 1))
        if offset <= 0:
            return 0
        return _search(stem + INDEX, OFFSET_ENTRY, 0, offset)
    except OSError:
        return 0


def _search(path: str, layout: Struct, offset_field: int, target: int) -> int:
    """Return the second field of the last index entry whose first field is at most `target`. Return 0 if there is no
    such entry. This is a binary search in the file.

    `offset_field` is the index of the field with the relative offset: 0 or 1.
    """
    with open(path, 'rb', buffering=0) as file:
        def entry(number: int) -> tuple[int, int]:
            data = os.pread(file.fileno(), layout.size, number * layout.size)
            key, value = layout.unpack(data.ljust(layout.size, b'\0'))     # a broker may trim the file while it is read
            return key, value

        entries = os.fstat(file.fileno()).st_size // layout.size
        # The index of an active segment ends with zeros, which are not entries.
        used = _first(entries, lambda number: number > 0 and entry(number)[offset_field] == 0)
        number = _first(used, lambda number: entry(number)[0] > target) - 1
        return max(entry(number)[1], 0) if number >= 0 else 0


def _first(count: int, holds: Callable[[int], bool]) -> int:
    """Return the first number below `count` for which `holds` is true. Return `count` if there is no such number.
    `holds` must be true for all larger numbers too."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
