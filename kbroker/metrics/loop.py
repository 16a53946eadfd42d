"""The loop and the process."""
from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from kbroker.base.turn_watch import TurnWatch
from kbroker.metrics.table import Metric, Sample

TURNS = Metric('kbroker_loop_turns', 'counter',
               'Turns of the loop: calls of a handler, a timer or a part of long work.')
LONG_TURNS = Metric(
    'kbroker_loop_long_turns', 'counter',
    'Turns that held the loop for 100 ms or longer; with kbroker.measure.turns, for 10 ms of processor time.')
LONGEST_TURN = Metric(
    'kbroker_loop_longest_turn_seconds', 'gauge',
    'The longest turn since the start, among those of 100 ms or longer. The clock has steps of a few milliseconds.',
    'seconds')
LONGEST_TICK = Metric(
    'kbroker_loop_longest_tick_seconds', 'gauge',
    'The longest tick of the loop since the start, in steps of a few milliseconds.', 'seconds')
CPU = Metric('kbroker_process_cpu_seconds', 'counter', 'Processor time of the process, all threads together.',
             'seconds')
RESIDENT = Metric('kbroker_process_resident_memory_bytes', 'gauge', 'Memory of the process.', 'bytes')
MOST_RESIDENT = Metric('kbroker_process_max_resident_memory_bytes', 'gauge',
                       'The most memory that the process has had.', 'bytes')
OPEN_FILES = Metric('kbroker_process_open_fds', 'gauge', 'Open file descriptors.')
MOST_FILES = Metric('kbroker_process_max_fds', 'gauge', 'The most file descriptors that the process may open.')

METRICS = (TURNS, LONG_TURNS, LONGEST_TURN, LONGEST_TICK, CPU, RESIDENT, MOST_RESIDENT, OPEN_FILES, MOST_FILES)
STATM = Path('/proc/self/statm')
DESCRIPTORS = '/proc/self/fd'
DESCRIPTORS_AT_ONCE = 500


def collect(watch: TurnWatch) -> Iterator[Sample | None]:
    """Yield the samples of the loop and of the process. Without /proc, some of them are missing."""
    yield TURNS, (), watch.turns
    yield LONG_TURNS, (), watch.long_turns
    yield LONGEST_TURN, (), watch.longest_turn_us / 1e6
    yield LONGEST_TICK, (), watch.longest_tick_us / 1e6
    yield CPU, (), time.process_time()
    most_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    try:
        resident_bytes = int(STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        pass
    else:
        most_bytes = max(most_bytes, resident_bytes)        # the kernel updates the maximum less often
        yield RESIDENT, (), resident_bytes
    yield MOST_RESIDENT, (), most_bytes
    yield from _open_files()
    yield MOST_FILES, (), resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _open_files() -> Iterator[Sample | None]:
    """Yield the number of open descriptors. Kernels before 6.2 can only list them, which is done in parts."""
    try:
        number = os.stat(DESCRIPTORS).st_size
        if not number:
            with os.scandir(DESCRIPTORS) as entries:
                for number, _ in enumerate(entries):        # the listing itself has one more
                    if number % DESCRIPTORS_AT_ONCE == DESCRIPTORS_AT_ONCE - 1:
                        yield None
    except OSError:
        return
    yield OPEN_FILES, (), number
