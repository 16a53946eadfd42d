"""The records of files as text, from Kafka's dump tool and from kbroker's decoders."""
import re

from support.kafka.apache_kafka import run_tools

from kbroker.record.batch import iter_batches
from kbroker.record.records import decode_records
from kbroker_tools.rows.decoders import decoder

REASON = re.compile(r"(from (?:key|value)'s buffer due to: ).*")
OPTIONS = {'string': '--print-data-log', 'offsets': '--offsets-decoder', 'transaction': '--transaction-log-decoder',
           'share-group-state': '--share-group-state-decoder', 'cluster-metadata': '--cluster-metadata-decoder',
           'remote-log-metadata': '--remote-log-metadata-decoder'}


def kafkas_text(name, files):
    """Return the lines that Kafka prints for the records of the files, without the lines of batches."""
    done, = run_tools('org.apache.kafka.tools.DumpLogSegments', [
        OPTIONS[name], '--skip-record-metadata', '--files', ','.join(map(str, files))])
    assert done.code == 0, done.errors
    return [REASON.sub(r'\1', line) for line in done.output.split('\n') if line.startswith('| ')]


def our_text(name, files):
    decode = decoder(name).decode
    lines = []
    for path in files:
        for header, batch in iter_batches(path.read_bytes()):
            for record in [] if header.is_control else decode_records(batch):
                key, payload = decode(record.offset, record.key, record.value)
                parts = ([] if key is None else [f'key: {key}']) + ([] if payload is None else [f'payload: {payload}'])
                if parts:
                    lines.append(REASON.sub(r'\1', '| ' + ' '.join(parts)))
    return lines
