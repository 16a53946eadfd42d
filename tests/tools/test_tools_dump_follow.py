"""--follow shows batches and segments that are written after its start. The test acts whenever the command would
wait."""
import pytest
from support.disk.segment_corpus import T
from test_tools_dump_log import dumped, offsets, segment

from kbroker.base.errors import CorruptLogError
from kbroker.record.batch import encode_batch
from kbroker_tools.dump.options import DumpOptions
from kbroker_tools.dump.run import dump


def batch(offset):
    return bytes(encode_batch([(T, b'k', b'v')], base_offset=offset))


def followed(tmp_path, path, *steps, **options):
    """Follow a file while the steps run. Return the output before each step and after the last step."""
    shown, steps = [], list(steps)
    file = tmp_path / 'dumped'

    def wait():
        shown.append(file.read_text())
        if not steps:
            raise KeyboardInterrupt
        steps.pop(0)()

    with open(file, 'wb') as out, pytest.raises(KeyboardInterrupt):
        dump(DumpOptions([str(path)], follow=True, deep_iteration=True, **options), out.fileno(), wait)
    return shown


def append(path, data):
    with open(path, 'ab') as file:
        file.write(data)


def test_batches_are_shown_when_they_are_whole(tmp_path):
    path = segment(tmp_path / 't-0', batch(0))
    shown = followed(tmp_path, path, lambda: append(path, batch(1)), lambda: append(path, batch(2)[:30]),
                     lambda: append(path, batch(2)[30:] + batch(3)))
    assert [offsets(text) for text in shown] == [[0], [0, 1], [0, 1], [0, 1, 2, 3]]
    assert 'invalid bytes' not in shown[-1]


def test_new_segments_are_gone_on_with(tmp_path):
    path = segment(tmp_path / 't-0', batch(0))

    def roll():
        append(path, batch(1))
        segment(tmp_path / 't-0', batch(2), base_offset=2)
        segment(tmp_path / 't-0', base_offset=3)

    shown = followed(tmp_path, tmp_path / 't-0', roll, lambda: segment(tmp_path / 't-0', batch(3), base_offset=3))
    assert [offsets(text) for text in shown] == [[0], [0, 1, 2], [0, 1, 2, 3]]
    assert shown[-1].count('Dumping') == 3


def test_a_choice_is_followed_too(tmp_path):
    path = segment(tmp_path / 't-0', batch(0))
    shown = followed(tmp_path, path, lambda: append(path, batch(1) + batch(2)), where='offset>1')
    assert [offsets(text) for text in shown] == [[], [2]]


def test_json_can_be_followed(tmp_path):
    path = segment(tmp_path / 't-0', batch(0))
    shown = followed(tmp_path, path, lambda: append(path, batch(1)), json=True)
    assert [text.count('\n') for text in shown] == [1, 2]


def test_a_file_that_shrinks_below_what_was_shown_ends_it(tmp_path):
    path = segment(tmp_path / 't-0', batch(0), batch(1))
    with pytest.raises(CorruptLogError, match='it was truncated'):
        dumped(tmp_path, path, follow=True, wait=lambda: path.write_bytes(batch(0)))
