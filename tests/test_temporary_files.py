"""The files that killed virtual machines leave are deleted when the test process ends."""
import pathlib

from support.kafka.apache_kafka import temporary_files
from support.runner.alone import run_alone


def leave_a_library(directory):
    """In a process that ends as a test process does, leave a file as a killed virtual machine does."""
    option, place = temporary_files().split('=')
    assert option == '-Djava.io.tmpdir'
    (pathlib.Path(place) / 'librocksdbjni.so').touch()
    (directory / 'place').write_text(place)


def test_what_a_killed_virtual_machine_leaves_is_deleted_with_the_process_that_ran_it(tmp_path):
    run_alone(leave_a_library, tmp_path)
    assert not pathlib.Path((tmp_path / 'place').read_text()).exists()
