"""Copies of directories share blocks where the file system can, and have the same bytes and holes everywhere."""
import errno
import os

import pytest

from kbroker.base import clone
from kbroker.base.clone import clone_directory, clone_file

HOLE_BYTES = 1 << 20


def sparse(path):
    """Write a file with data, a hole, data, and a hole at its end."""
    with open(path, 'wb') as file:
        file.write(b'first')
        file.seek(HOLE_BYTES)
        file.write(b'second')
        file.truncate(2 * HOLE_BYTES)
    return path.read_bytes()


@pytest.mark.parametrize('code', [None, errno.EOPNOTSUPP, errno.EXDEV])
def test_a_copy_has_the_same_bytes_mode_and_holes(tmp_path, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    if code is not None:
        monkeypatch.setattr(clone.fcntl, 'ioctl', refuse)
    if code == errno.EXDEV:
        monkeypatch.setattr(clone.os, 'copy_file_range', refuse)
    wanted = sparse(tmp_path / 'a')
    (tmp_path / 'a').chmod(0o640)
    assert clone_file(str(tmp_path / 'a'), str(tmp_path / 'b')) == len(wanted)
    assert (tmp_path / 'b').read_bytes() == wanted
    assert (tmp_path / 'b').stat().st_mode == (tmp_path / 'a').stat().st_mode
    assert (tmp_path / 'b').stat().st_blocks <= (tmp_path / 'a').stat().st_blocks


def test_an_error_of_the_disk_is_raised(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(clone.fcntl, 'ioctl', fail)
    sparse(tmp_path / 'a')
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        clone_file(str(tmp_path / 'a'), str(tmp_path / 'b'))


def test_a_directory_is_copied_with_its_wanted_files(tmp_path):
    (tmp_path / 'a' / 'inner').mkdir(parents=True)
    (tmp_path / 'a' / 'inner' / 'x').write_bytes(b'12345')
    (tmp_path / 'a' / 'y').write_bytes(b'678')
    (tmp_path / 'a' / 'unwanted').write_bytes(b'9')
    assert clone_directory(str(tmp_path / 'a'), str(tmp_path / 'b'), lambda name: name != 'unwanted') == 8
    assert sorted(path.name for path in (tmp_path / 'b').rglob('*')) == ['inner', 'x', 'y']


def test_a_file_that_disappears_meanwhile_is_left_out(tmp_path, monkeypatch):
    (tmp_path / 'a').mkdir()
    (tmp_path / 'a' / 'gone').touch()
    monkeypatch.setattr(clone, 'clone_file', lambda source, target: os.unlink(source) or os.stat(source))
    assert clone_directory(str(tmp_path / 'a'), str(tmp_path / 'b')) == 0
