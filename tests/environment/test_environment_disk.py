"""A real file system becomes full or read-only under a broker. The broker reports errors, logs one clear line and loses
no committed transaction.

Covers promise 1 of docs/design.md.
"""
import os
import subprocess

import pytest
from support.brokers.broker_process import PROMPT, BrokerProcess
from support.clients.committed_records import committed_records
from support.runner.machine_requirements import do_without

from kbroker.client import Admin, KafkaError, Producer
from kbroker.client.admin import NewTopic

SIZE_BYTES = 32 << 20
VALUE = b'x' * 8000
MOST = 5000
"""More transactions than fit the disk."""
SETTINGS = PROMPT | {'offsets.topic.num.partitions': '1', 'transaction.state.log.num.partitions': '1'}
IMPATIENT = {'delivery_timeout_ms': 1000, 'request_timeout_ms': 1000, 'max_block_ms': 1000, 'linger_ms': 0}


class SmallDisk:
    """An ext4 file system in an image file."""

    def __init__(self, directory):
        self.directory = directory / 'disk'
        self.directory.mkdir()
        self._image = directory / 'image'
        self._image.touch()
        os.truncate(self._image, SIZE_BYTES)
        self._run('mkfs.ext4', '-q', '-F', self._image)
        self.mount()

    def _run(self, *words):
        try:
            done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            do_without('mount', f'{error.filename} not found')
        if done.returncode != 0:
            do_without('mount', f'{words[0]}: {done.stderr.strip()}')

    def mount(self):
        self._run('mount', '-o', 'loop', self._image, self.directory)

    def unmount(self):
        subprocess.run(['umount', '-l', str(self.directory)], capture_output=True, check=False)

    def fill(self):
        with open(self.directory / 'filler', 'wb', buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(1 << 16))
            except OSError:
                os.fsync(filler.fileno())

    def make_room(self):
        (self.directory / 'filler').unlink()

    def refuse_writes(self):
        """Refuse writes as the kernel does after an error of the device. Bytes that were not synced are lost."""
        self._run('mount', '-o', 'remount,abort', self.directory)

    def mount_again(self):
        self._run('umount', self.directory)
        self.mount()


@pytest.fixture
def disk(tmp_path):
    disk = SmallDisk(tmp_path)
    yield disk
    disk.unmount()


@pytest.mark.parametrize(('fault', 'mend', 'reason'), [
    (SmallDisk.fill, SmallDisk.make_room, 'No space left on device'),
    (SmallDisk.refuse_writes, SmallDisk.mount_again, 'error: |Read-only file system')])
def test_transactions_survive_a_disk_that_refuses_writes(disk, fault, mend, reason):
    broker = BrokerProcess(disk.directory / 'data', SETTINGS)
    broker.start()
    try:
        acknowledged, doubtful = write_until_offline(broker, lambda: fault(disk))
        assert broker.is_running
        broker.stop()
        lines = offline_lines(broker)
        assert len(lines) == 1 and any(each in lines[0] for each in reason.split('|')), lines
        mend(disk)
        broker.start()
        check(broker, acknowledged, doubtful)
        broker.stop()
    finally:
        broker.kill9()
    assert broker.tracebacks() == []


def write_until_offline(broker, fail):
    """Write transactions over two partitions. Return the numbers of the committed ones, and of those with an unknown
    outcome."""
    with Admin(broker.address) as admin:
        assert admin.create_topics([NewTopic('t', 2, 1)])['t'] is None
    acknowledged, doubtful = list(range(10)), []
    with Producer(broker.address, transactional_id='x') as producer:
        for number in acknowledged:
            transact(producer, number)
    fail()
    numbers = iter(range(10, MOST))
    while not offline_lines(broker):
        number = next(numbers)
        try:
            # A producer retries while the log directory is offline. This producer gives up soon, also on a busy
            # machine.
            with Producer(broker.address, transactional_id='x', **IMPATIENT) as impatient:
                while True:
                    transact(impatient, number)
                    acknowledged.append(number)
                    number = next(numbers)
        except (KafkaError, OSError):
            doubtful.append(number)
    return acknowledged, doubtful


def offline_lines(broker):
    return [line for line in broker.lines if 'offline until the next start' in line]


def transact(producer, number):
    with producer.transaction():
        for partition in (0, 1):
            producer.send('t', b'%d' % number + VALUE, b'%d' % number, partition=partition)


def check(broker, acknowledged, doubtful):
    """Check that each committed transaction is complete and occurs once, and that another transaction succeeds."""
    with Admin(broker.address) as admin, Producer(broker.address, transactional_id='x') as producer:
        producer.init_transactions()
        for following in ([], [MOST]):
            for number in following:
                transact(producer, number)
            found = sorted((int(record.key), partition) for partition, record in committed_records(admin, 't', 2))
            numbers = sorted({number for number, _ in found})
            assert found == [(number, partition) for number in numbers for partition in (0, 1)]
            assert [number for number in numbers if number not in doubtful] == acknowledged + following
