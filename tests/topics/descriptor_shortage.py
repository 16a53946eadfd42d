"""Tests of a broker whose process has no free file descriptor. `run_alone` calls each of these functions in a separate
process."""
from __future__ import annotations

import logging
import os
import resource

from support.brokers.in_process_broker import InProcessBroker
from topics.produced import produce, record

from kbroker.base.clock import ManualClock
from kbroker.base.errors import ErrorCode
from kbroker.log.append import Origin
from kbroker.log.fs import shared_open_files
from kbroker.log.shortage import SHORTAGE_PAUSE_MS


class Hog:
    """A context manager that holds every free file descriptor of the process."""

    def __enter__(self):
        shared_open_files().release(len(shared_open_files()))
        self.limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, self.limits[1]))
        self.held = []
        while True:
            try:
                self.held.append(os.dup(0))
            except OSError:
                return self

    def __exit__(self, *_):
        for descriptor in self.held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, self.limits)


class Messages(logging.Handler):
    """A logging handler that collects the messages."""

    def __init__(self):
        super().__init__()
        self.lines = []
        logging.getLogger().addHandler(self)

    def emit(self, record):
        self.lines.append(record.getMessage())


def requests_are_refused_and_the_directory_stays_online(directory):
    messages = Messages()
    with InProcessBroker(directory, clock=ManualClock(1_700_000_000_000)) as broker:
        broker.topics.create('orders', 3, {})
        for number in range(3):
            assert produce(broker, number)() == ErrorCode.NONE
        with Hog():
            for _ in range(5):
                assert produce(broker, 0)() == ErrorCode.KAFKA_STORAGE_ERROR
            broker.logs.high_watermarks.begin()
            assert broker.logs.failure is None
        assert ''.join(messages.lines).count('Too many open files') == 1, messages.lines
        assert [produce(broker, number)() for number in range(3)] == [ErrorCode.NONE] * 3
        with Hog() as hog:      # files that can be opened again are closed
            os.close(hog.held.pop())
            assert [produce(broker, number)() for number in range(3)] == [ErrorCode.NONE] * 3
        assert broker.topics.get('orders', 0).log_end_offset == 3


def a_sync_is_made_later(directory):
    with InProcessBroker(directory, clock=ManualClock(1_700_000_000_000)) as broker:
        partition = broker.topics.create('orders', 1, {}).partitions[0]
        partition.append_batch(record(), Origin.CLIENT)      # its directory has to be opened for the sync
        with Hog():
            broker.turn()
            assert partition.high_watermark == 0 and broker.logs.failure is None
        broker.clock.advance(SHORTAGE_PAUSE_MS)
        broker.timers.run_due()
        assert partition.high_watermark == 1
