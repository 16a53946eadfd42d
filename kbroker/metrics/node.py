"""The broker itself: its release, its feature levels, its start, and its metadata."""
from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import suppress

from kbroker import __version__
from kbroker.metrics.rooms import Rooms
from kbroker.metrics.table import Metric, Sample

BUILD = Metric('kbroker_build_info', 'info', 'The release of kbroker, and of the Python that runs it.',
               labels=('version', 'python', 'cluster_id', 'node_id'))
FEATURE = Metric('kbroker_feature_level', 'gauge', 'The finalized level of a feature.', labels=('feature',),
                 series='features with a level')
START = Metric('kbroker_start_timestamp_seconds', 'gauge', 'The time at which the start of the broker began.',
               'seconds')
START_TOOK = Metric('kbroker_start_duration_seconds', 'gauge',
                    'The time from the lock of the log directory to the end of the recovery.', 'seconds')
CLEAN = Metric('kbroker_start_after_clean_stop', 'gauge',
               '1 if the stop before this start was clean, 0 if this start had to recover the logs.')
METADATA_END = Metric('kbroker_metadata_end_offset', 'gauge', 'The end offset of the metadata log.')
UNCOVERED = Metric('kbroker_metadata_uncovered_bytes', 'gauge',
                   'Bytes of the metadata log that no snapshot covers yet: the next start reads them.', 'bytes')
SNAPSHOT_AGE = Metric('kbroker_metadata_snapshot_age_seconds', 'gauge',
                      'The age of the newest snapshot of the metadata.', 'seconds', series='1 if there is a snapshot')


def snapshot_age_ms(rooms: Rooms) -> int | None:
    """Return the age of the newest snapshot of the metadata, or None if there is none, or it cannot be read."""
    with suppress(OSError):
        newest_ms = rooms.snapshots.newest_ms()
        return None if newest_ms is None else max(0, rooms.clock.wall_ms() - newest_ms)
    return None


def collect(rooms: Rooms) -> Iterator[Sample | None]:
    """Yield the samples of the broker itself."""
    yield BUILD, (__version__, platform.python_version(), rooms.metadata.cluster_id, str(rooms.config.node_id)), 1
    for feature, level in sorted(rooms.metadata.image.features.items()):
        yield FEATURE, (feature,), level
    yield START, (), rooms.started_ms / 1000
    yield START_TOOK, (), rooms.start_took_ms / 1000
    yield CLEAN, (), int(rooms.logs.clean_shutdown)
    yield METADATA_END, (), rooms.metadata.end_offset
    yield UNCOVERED, (), rooms.metadata.log.uncovered_bytes
    age_ms = snapshot_age_ms(rooms)
    if age_ms is not None:
        yield SNAPSHOT_AGE, (), age_ms / 1000
