"""kbroker-check ends each finding with advice, and the commands of the advice work."""
import re
import shutil

import pytest
from support.brokers.in_process_broker import InProcessBroker
from support.clients.promises import Client, Promises
from support.runner.command_runner import run_command, run_in_process

from kbroker.base.errors import LogDirectoryError
from kbroker.log.inventory import INVENTORY_FILE
from kbroker.record.batch import read_header

SETTINGS = {'log.index.interval.bytes': '200'}


@pytest.fixture
def stopped(tmp_path):
    """Return the directory of a cleanly stopped broker, with a partition of forty batches."""
    with InProcessBroker(tmp_path / 'data', SETTINGS) as broker:
        client = Client(broker, Promises())
        client.create_topic('orders', 1)
        client.init_idempotent()
        for number in range(40):
            client.produce({('orders', 0): [f'value {number}']})
    return tmp_path / 'data'


def log_of(directory):
    return directory / 'orders-0' / f'{0:020d}.log'


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def findings(directory):
    """Return (place, message, advice) of each finding that kbroker-check shows."""
    lines = run_in_process('check', directory).stdout.splitlines()[:-1]
    assert len(lines) % 3 == 0 and not any('None' in line for line in lines)
    found = []
    for place, message, advice in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        assert advice.startswith('         do: ')
        path = place.split()[1]
        assert path not in message, 'the file is named once'
        found.append((place, message.strip(), advice.removeprefix('         do: ')))
    return found


def run_advice(advice):
    """Run the command of an advice, which ends with a path."""
    command = re.search(r'kbroker-check((?: --[a-z-]+)+ /\S+)', advice)
    done = run_command('check', *command[1].split())
    assert done.returncode == 0, done


def test_a_flipped_bit_in_a_log_can_be_restored_or_accepted_and_not_repaired(stopped):
    size = read_header(log_of(stopped).read_bytes()).size_bytes
    flip(log_of(stopped), size + 65)
    with InProcessBroker(stopped, SETTINGS):
        pass        # notes the damage
    (checksum, _, first), (crc, message, second) = findings(stopped)
    assert checksum == f'error    {log_of(stopped)}' and 'restore the files of the last clean stop' in first
    assert crc == f'error    {log_of(stopped)} at {size}' and 'found CRC' in message
    assert 'restore the file from a backup' in second and '--repair cannot help' in second
    assert all(f'kbroker-check --accept {log_of(stopped).parent} ' in advice for advice in (first, second))
    assert f'kbroker-dump-log --print-data-log {log_of(stopped)}' in second
    run_advice(second)
    with InProcessBroker(stopped, SETTINGS) as broker:
        assert broker.topics.get('orders', 0).log_end_offset == 40
    assert findings(stopped) == []


def test_a_damaged_index_is_repaired_by_the_command_of_the_advice(stopped):
    (stopped / INVENTORY_FILE).unlink()
    path = log_of(stopped).with_suffix('.index')
    flip(path, 5)
    (place, _, advice), = findings(stopped)
    assert place.startswith(f'error    {path}') and advice == f'kbroker-check --repair --no-dry-run {path.parent}'
    run_advice(advice)
    assert findings(stopped) == []


def test_a_torn_tail_is_cut_by_the_command_of_the_advice(stopped):
    (stopped / INVENTORY_FILE).unlink()
    with open(log_of(stopped), 'ab') as file:
        file.write(b'torn' * 10)
    (_, message, advice), = findings(stopped)
    assert 'a torn tail' in message and '--repair --truncate-torn-tail --no-dry-run' in advice
    run_advice(advice)
    assert findings(stopped) == []


def test_an_index_beside_a_damaged_log_waits_for_the_log(stopped):
    (stopped / INVENTORY_FILE).unlink()
    flip(log_of(stopped), 700)
    flip(log_of(stopped).with_suffix('.timeindex'), 3)
    advices = {place.split()[1].rpartition('.')[2]: advice for place, _, advice in findings(stopped)}
    assert advices['timeindex'].startswith('mend the log of the partition first, then kbroker-check --repair')


def test_a_running_broker_has_to_stop_first(stopped):
    (stopped / INVENTORY_FILE).unlink()
    flip(log_of(stopped).with_suffix('.index'), 5)
    from kbroker.log.fs import ReadOnlyFileSystem
    from kbroker_tools.check.advice import Adviser
    from kbroker_tools.check.directory_check import DirectoryCheck, check_one
    check = DirectoryCheck(ReadOnlyFileSystem(), str(stopped))
    check.list_tasks()
    for task in check.tasks:
        check.add(task, check_one(check.fs, task))
    finding, = check.conclude()
    advice = Adviser(str(stopped), (), is_in_use=True).advice(finding)
    assert advice.endswith(f'{stopped}/orders-0 (once the broker is stopped)')


# ---- a log directory without the metadata log

@pytest.fixture
def second(stopped, tmp_path):
    """Return a directory like the second log directory of an Apache Kafka broker: it has partitions, but no metadata
    log."""
    shutil.copytree(stopped, tmp_path / 'second')
    shutil.rmtree(tmp_path / 'second' / '__cluster_metadata-0')
    (tmp_path / 'second' / INVENTORY_FILE).unlink()
    return tmp_path / 'second'


def refusal(directory):
    broker = InProcessBroker(directory, SETTINGS)
    with pytest.raises(LogDirectoryError) as raised:
        broker.take_directory()
        broker.open()
    broker.abandon()
    return str(raised.value)


def test_one_of_several_log_directories_is_recognized(second):
    """The start of kbroker once reported the missing metadata log as an empty log, and the command that it advised did
    nothing."""
    message = refusal(second)
    assert 'one of several log directories' in message and 'empty' not in message
    assert f'kbroker-check --accept {second}' in message
    (place, found, advice), = findings(second)
    assert place == f'warning  {second}/__cluster_metadata-0'
    assert 'one of several log directories of broker 1' in found and 'another one has the metadata log' in found
    assert advice.startswith('nothing, if another directory has it')
    done = run_command('check', '--accept', second)
    assert (done.returncode, done.stderr) == (0, f'{second}/__cluster_metadata-0: the next start takes it as it is\n')
    with InProcessBroker(second, SETTINGS) as broker:
        assert broker.topics.find('orders', 0) is None
    assert list(second.glob('orders-0*-stray'))


def test_a_metadata_log_that_kbroker_lost_is_an_error(stopped):
    shutil.rmtree(stopped / '__cluster_metadata-0')
    found = [(place, advice) for place, _, advice in findings(stopped) if '__cluster_metadata' in place]
    assert found[0][0] == f'error    {stopped}/__cluster_metadata-0'
    assert f'kbroker-check --accept {stopped}' in found[0][1]
