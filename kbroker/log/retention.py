"""Removes segments from a log: because of age or size, because they are below the log start offset, or because the
cleaner replaced them.

The files get the suffix `.deleted` immediately, and are unlinked after file.delete.delay.ms. The opening of a log
removes all files with this suffix.
"""
from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from kbroker.log.removals import remove
from kbroker.log.segment import SEGMENT_SUFFIXES, Segment, file_name
from kbroker.log.swap import CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX, rename_files

if TYPE_CHECKING:
    from kbroker.log.log import Log

logger = logging.getLogger(__name__)


def expired_segments(log: Log, high_watermark: int, now_ms: int) -> list[Segment]:
    """Return the segments to delete, oldest first. All of them are entirely below the high watermark. An empty last
    segment is never deleted.
    """
    config = log.config
    deletes = 'delete' in config.cleanup_policy
    excess_bytes = log.segments.size_bytes - config.retention_bytes if deletes and config.retention_bytes >= 0 else 0
    expired = []
    for segment in log.segments:
        if segment.next_offset > high_watermark or (segment.size_bytes == 0 and segment is log.segments[-1]):
            break
        if segment.next_offset <= log.log_start_offset:
            reason = f'below the log start {log.log_start_offset}'
        elif deletes and config.retention_ms >= 0 and now_ms - _newest_ms(segment) > config.retention_ms:
            reason = f'older than retention.ms {config.retention_ms}'
        elif excess_bytes >= segment.size_bytes > 0:
            reason = f'{excess_bytes} bytes above retention.bytes {config.retention_bytes}'
        else:
            break
        excess_bytes -= segment.size_bytes
        logger.info('%s: deleting offsets %d to %d: %s', log.directory, segment.base_offset, segment.next_offset - 1,
                    reason)
        expired.append(segment)
    return expired


def _newest_ms(segment: Segment) -> int:
    return segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else segment.last_modified_ms()


def delete_segments(log: Log, segments: list[Segment]) -> None:
    """Remove the files of segments, and the snapshots at their base offsets, from the directory of a log."""
    bases = {segment.base_offset for segment in log.segments}
    for segment in segments:
        rename_files(log.fs, log.directory, segment.base_offset, '', DELETED_SUFFIX)
        paths = [segment.path(kind) + DELETED_SUFFIX for kind in SEGMENT_SUFFIXES]
        if segment.base_offset in log.snapshots.offsets and segment.base_offset not in bases:
            log.snapshots.remove(segment.base_offset)
        _unlink_later(log, paths)


def replace_segments(log: Log, old: list[Segment], new: list[Segment]) -> list[Segment]:
    """Replace the segments `old` by the cleaned segments `new` (see `swap` for the steps). Return the new segments
    under their final names.

    First remove the snapshots of the old segments. A snapshot may contain an open transaction whose marker compaction
    has dropped. If an opening loaded this snapshot, the transaction would stay open forever.
    """
    fs, directory = log.fs, log.directory
    end_offset = old[-1].next_offset
    for offset in [offset for offset in log.snapshots.offsets if old[0].base_offset <= offset < end_offset]:
        log.snapshots.remove(offset)
    fs.sync_directory(directory)
    for segment in reversed(new):
        rename_files(fs, directory, segment.base_offset, CLEANED_SUFFIX, SWAP_SUFFIX)
    fs.sync_directory(directory)
    for segment in old:
        rename_files(fs, directory, segment.base_offset, '', DELETED_SUFFIX)
    opened = []
    for segment, next_offset in zip(new, [*(segment.base_offset for segment in new[1:]), end_offset], strict=True):
        rename_files(fs, directory, segment.base_offset, SWAP_SUFFIX, '')
        opened.append(_reopen(log, segment.base_offset, next_offset))
    fs.sync_directory(directory)
    for segment in old:
        _unlink_later(log, [segment.path(kind) + DELETED_SUFFIX for kind in SEGMENT_SUFFIXES])
    return opened


def _reopen(log: Log, base_offset: int, next_offset: int) -> Segment:
    paths = {kind: os.path.join(log.directory, file_name(base_offset, kind)) for kind in SEGMENT_SUFFIXES}
    sizes = {kind: log.fs.size(path) for kind, path in paths.items() if log.fs.exists(path)}
    segment = Segment(log.fs, log.directory, base_offset, log.config, log.clock.wall_ms(), file_sizes=sizes)
    segment.check_indexes()
    segment.set_next_offset(next_offset)
    return segment


def _unlink_later(log: Log, paths: list[str]) -> None:
    if log.options.removals is not None:
        log.options.removals.after(log.config.file_delete_delay_ms, paths)
        return
    for path in paths:
        remove(log.fs, path)
