"""TracedDisk attributes each recorded system call to the right file and the right moment."""
import random

import pytest
from traced_disk import TracedDisk


def hexed(text):
    return ''.join(f'\\x{byte:02x}' for byte in str(text).encode())


@pytest.fixture
def disk(tmp_path):
    return TracedDisk(tmp_path / 'data')


@pytest.fixture
def opened(tmp_path):
    """A function that returns the line that strace writes when a process opens a file in the directory."""
    def line(name, descriptor, flags):
        path = hexed(tmp_path / 'data' / name)
        return f'openat(AT_FDCWD<{hexed(tmp_path)}>, "{path}", {flags}) = {descriptor}<{path}>'
    return line


@pytest.fixture
def trace(tmp_path):
    """A function that writes the given lines as a trace of a process. It replaces the words ROOT, PATH and DATA by what
    strace would write.
    """
    def write(name, *calls):
        path, data = hexed(tmp_path / 'data' / 'a'), hexed('one')
        lines = [call.replace('PATH', path).replace('DATA', f'"{data}"').replace('ROOT', hexed(tmp_path / 'data'))
                 for call in calls]
        (tmp_path / name).write_text(''.join(f'100 {number}.000000 {line}\n' for number, line in enumerate(lines)))
        return tmp_path / name
    return write


def test_a_descriptor_that_was_a_file_and_became_an_event_changes_no_file(disk, trace, opened, tmp_path):
    disk.add(trace('trace', 'mkdir("ROOT", 0777) = 0', opened('a', 5, 'O_RDWR|O_CREAT, 0666'),
                   'write(5<PATH>, DATA, 3) = 3', f'write(5<{hexed("anon_inode:[eventfd]")}>, DATA, 3) = 3'))
    disk.rebuild(tmp_path / 'rebuilt')
    assert {path.name: path.read_bytes() for path in (tmp_path / 'rebuilt').iterdir()} == {'a': b'one'}


def test_the_first_sync_of_a_process_makes_durable_what_the_process_before_it_wrote(disk, trace, opened, tmp_path):
    disk.add(trace('first', 'mkdir("ROOT", 0777) = 0', opened('a', 5, 'O_RDWR|O_CREAT, 0666'),
                   opened('', 6, 'O_RDONLY'), 'fsync(6<ROOT>) = 0', 'write(5<PATH>, DATA, 3) = 3'))
    disk.add(trace('second', opened('a', 5, 'O_RDWR'), 'fsync(5<PATH>) = 0'))
    for seed in range(20):
        disk.cut(len(disk.times_s) - 1, tmp_path / f'cut{seed}', random.Random(seed))
        assert (tmp_path / f'cut{seed}' / 'a').read_bytes() == b'one'


def test_a_write_without_a_sync_is_kept_torn_or_lost(disk, trace, opened, tmp_path):
    disk.add(trace('trace', 'mkdir("ROOT", 0777) = 0', opened('a', 5, 'O_RDWR|O_CREAT, 0666'),
                   opened('', 6, 'O_RDONLY'), 'fsync(6<ROOT>) = 0', 'write(5<PATH>, DATA, 3) = 3'))
    for seed in range(200):
        disk.cut(len(disk.times_s) - 1, tmp_path / f'cut{seed}', random.Random(seed))
    found = {(tmp_path / f'cut{seed}' / 'a').read_bytes() for seed in range(200)}
    assert found == {b'', b'o', b'on', b'one'}
