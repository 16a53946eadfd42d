"""In a container, `kbroker serve` warns about variables and a missing volume, and awaits an address."""
import logging

import pytest

from kbroker.daemon import container

MOUNTS = """\
22 1 0:20 / / rw,relatime master:1 - overlay overlay rw,lowerdir=/l
23 22 0:21 / /proc rw - proc proc rw
24 22 8:1 /volumes/k /var/lib/kbroker rw - ext4 /dev/sda1 rw
25 22 0:22 / /var/lib/in\\040memory rw - tmpfs tmpfs rw
26 22 0:23 / /run rw - tmpfs tmpfs rw
27 26 8:1 /other /run/deeper rw - ext4 /dev/sda1 rw
"""


@pytest.mark.parametrize(('directory', 'expected'), [
    ('/data', '/data is on no volume: its records are lost when the container is removed; '
              'to keep them, mount a volume: -v kbroker:/data'),
    ('/var/lib/in memory', '/var/lib/in memory is in memory (tmpfs): its records are lost when the container stops; '
                           'to keep them, mount a volume: -v kbroker:/var/lib/in memory'),
    ('/run/kbroker', '/run/kbroker is in memory (tmpfs): its records are lost when the container stops; '
                     'to keep them, mount a volume: -v kbroker:/run/kbroker'),
    ('/run/deeper/kbroker', None),
    ('/var/lib/kbroker', None),
    ('/var/lib/kbroker/inner', None)])
def test_records_that_go_with_the_container_are_announced_in_one_line(tmp_path, monkeypatch, directory, expected):
    (tmp_path / 'mountinfo').write_text(MOUNTS)
    monkeypatch.setattr(container, 'MOUNTS', tmp_path / 'mountinfo')
    assert list(container.warnings_in_a_container({}, directory)) == ([] if expected is None else [expected])


def test_settings_in_the_manner_of_kafkas_images_are_named_as_without_effect():
    variables = {'KAFKA_NUM_PARTITIONS': '3', 'KBROKER_DURABILITY': 'disk', 'KAFKA_OPTS': '', 'KBROKER_CONFIG': '/f',
                 'KBROKER_PORT': 'tcp://10.0.0.1:9092', 'KBROKER_SERVICE_HOST': '10.0.0.1', 'PATH': '/bin'}
    assert {name: container.setting_of(name) for name in variables if container.setting_of(name)} == {
        'KAFKA_NUM_PARTITIONS': 'num.partitions', 'KBROKER_DURABILITY': 'kbroker.durability'}
    first, *_ = container.warnings_in_a_container(variables, '/proc')
    assert first == ('the variable KAFKA_NUM_PARTITIONS has no effect: set KBROKER_SET=num.partitions=VALUE, or mount '
                     'a file of settings')


def test_the_address_for_clients_is_awaited_until_its_file_has_a_text(tmp_path, monkeypatch, caplog):
    """The file does not exist at first, and is empty when it is created."""
    file = tmp_path / 'advertise'
    texts = iter(['', 'localhost:49153\n'])
    monkeypatch.setattr(container.time, 'sleep', lambda seconds: file.write_text(next(texts)))
    with caplog.at_level(logging.INFO):
        assert container.await_text(file) == 'localhost:49153'
    assert caplog.messages == [f'waiting for the address for clients, HOST:PORT, in {file}']
