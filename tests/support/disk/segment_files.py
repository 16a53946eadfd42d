"""Two segments of a partition with all their files, and copies with damaged indexes and snapshots."""
import pathlib
import shutil
import struct

from kbroker.base.clock import ManualClock
from kbroker.log.append import Origin
from kbroker.log.fs import FileSystem
from kbroker.log.log import Log
from kbroker.record.batch import encode_batch
from kbroker.record.control import encode_end_txn_marker
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig

T = 1_700_000_000_000
SECOND = '00000000000000000044'


def two_segments(root: pathlib.Path) -> pathlib.Path:
    """Write the directory of a closed partition. It has committed, aborted and open transactions, and many index
    entries.
    """
    config = LogConfig(Config({}), {'index.interval.bytes': '300'})
    log = Log(FileSystem(), str(root / 'topic-0'), 'topic', 0, config, ManualClock(T))
    for segment in range(2):
        for number in range(10):
            timestamp_ms = T + segment * 100 + number
            log.append_batch(encode_batch([(timestamp_ms, b'key', b'v' * 200)] * 2), Origin.CLIENT, segment)
            log.append_batch(encode_batch([(timestamp_ms, b'key', b'v')] * 2, producer_id=number % 2 + 1,
                                    producer_epoch=segment, base_sequence=number // 2 * 2, transactional=True),
                       Origin.CLIENT, segment)
        for producer_id in (1, 2):
            log.append_batch(encode_end_txn_marker(
                commit=producer_id == 1, producer_id=producer_id, producer_epoch=segment, coordinator_epoch=0,
                timestamp_ms=T), Origin.COORDINATOR, segment)
        log.append_batch(encode_batch([(T, b'key', b'v')] * 2, producer_id=7, producer_epoch=segment, base_sequence=0,
                                transactional=True), Origin.CLIENT, segment)
        if segment == 0:
            log.roll()
    log.close()
    return pathlib.Path(log.directory)


def entries_of(path: pathlib.Path) -> list[tuple[int, int]]:
    layout = '>ii' if path.suffix == '.index' else '>qi'
    return list(struct.iter_unpack(layout, path.read_bytes()))


def write_entries(path: pathlib.Path, entries: list[tuple[int, int]]) -> None:
    layout = '>ii' if path.suffix == '.index' else '>qi'
    path.write_bytes(b''.join(struct.pack(layout, *entry) for entry in entries))


def damaged_copies(directory: pathlib.Path) -> list[pathlib.Path]:
    """Write damaged index files of the second segment, each in its own copy of the directory."""
    offsets, times = entries_of(directory / f'{SECOND}.index'), entries_of(directory / f'{SECOND}.timeindex')
    first_ms = times[0][0]
    contents = {
        'offsets-too-high.index': [(offset + 1, position) for offset, position in offsets],
        'equal-offsets.index': [(1, position) for _, position in offsets[:4]],
        'no-batch-begins-there.index': [(offsets[0][0], offsets[0][1] + 5)],
        'below-the-base.index': [*offsets, (-3, 0)],
        'zeros-behind.index': [*offsets, (0, 0), (0, 0)],
        'one-zero.index': [(0, 0)],
        'empty.index': [],
        'zeros-behind.timeindex': [*times, (0, 0), (0, 0)],
        'one-zero.timeindex': [(0, 0)],
        'empty.timeindex': [],
        'below-the-base.timeindex': [*times, (T, -3)],
        'wrong-times.timeindex': [(first_ms + 1, times[0][1]), (first_ms + 1, times[1][1]),
                                  (first_ms + 52, times[2][1] - 1), (first_ms + 3, times[3][1]), (T + 999_999, 5000)],
    }
    found = []
    for name, entries in contents.items():
        copy = directory.parent / name.replace('.', '-')
        shutil.copytree(directory, copy)
        path = copy / (SECOND + pathlib.Path(name).suffix)
        write_entries(path, entries)
        found.append(path)
    return found


def damaged_snapshots(directory: pathlib.Path) -> list[pathlib.Path]:
    """Write damaged producer snapshots, each with a different fault, next to the sound snapshots."""
    good = max(directory.glob('*.snapshot')).read_bytes()
    contents = [good[:2] + b'zzzz' + good[6:], b'\0\2' + good[2:], good + b'xx', good[:6] + b'\xff' * 4 + good[10:]]
    found = []
    for number, data in enumerate(contents):
        path = directory / f'{1000 + number:020d}.snapshot'
        path.write_bytes(data)
        found.append(path)
    return found
