"""The codec decodes the rows and metadata records in directories of Kafka 4.2 to 4.4, and encodes them to the same
bytes."""
import pathlib
import tarfile

import pytest

from kbroker.protocol import messages
from kbroker.protocol.metadata_records import decode_metadata_record, encode_metadata_record
from kbroker.protocol.rows import decode_row_key, decode_row_value, encode_row_key, encode_row_value
from kbroker.record.batch import iter_batches
from kbroker.record.records import decode_records

DIRECTORIES = sorted((pathlib.Path(__file__).parents[1] / 'data' / 'kafka-directories').glob('*.tgz'))


def records_of(archive: pathlib.Path, topic: str):
    """Yield (key, value) for every data record in the segments and snapshots of a topic."""
    with tarfile.open(archive) as tar:
        for member in tar:
            path = pathlib.PurePath(member.name)
            if path.suffix in ('.log', '.checkpoint') and path.parent.name.rpartition('-')[0] == topic:
                for header, batch in iter_batches(tar.extractfile(member).read()):
                    if not header.is_control:
                        yield from ((record.key, record.value) for record in decode_records(batch))


@pytest.mark.parametrize('archive', DIRECTORIES, ids=lambda path: path.stem)
def test_every_metadata_record_is_read_and_written_back(archive):
    seen = 0
    for _, value in records_of(archive, '__cluster_metadata'):
        record, version = decode_metadata_record(value)
        assert encode_metadata_record(record, version) == value
        seen += 1
    assert seen > 5


@pytest.mark.parametrize('topic', ['__consumer_offsets', '__transaction_state'])
def test_every_row_is_read_and_written_back(topic):
    for archive in DIRECTORIES:
        for key, value in records_of(archive, topic):
            row_key = decode_row_key(topic, key)
            assert encode_row_key(row_key) == key
            if value is not None:
                value_class = getattr(messages, type(row_key).__name__.removesuffix('Key') + 'Value')
                row_value = decode_row_value(value_class, value)
                assert encode_row_value(row_value, int.from_bytes(value[:2], 'big')) == value
