"""Functions that print files as text with Kafka's dump tool, and decode their records with kbroker's decoders.

Both print the text of one release. By default, it is the release whose text kbroker's tools print by default.
"""
import re

from support.kafka.apache_kafka import dump_log, run_tools

from kbroker.record.batch import iter_batches
from kbroker.record.records import decode_records
from kbroker_tools.rows.decoders import decoder
from kbroker_tools.rows.releases import NEWEST

REASON = re.compile(r"(from (?:key|value)'s buffer due to: ).*")
OPTIONS = {'string': '--print-data-log', 'offsets': '--offsets-decoder', 'transaction': '--transaction-log-decoder',
           'share-group-state': '--share-group-state-decoder', 'cluster-metadata': '--cluster-metadata-decoder',
           'remote-log-metadata': '--remote-log-metadata-decoder'}


def run_dump_tool(files, *options, release=NEWEST):
    """Run Kafka's dump tool. Raise no error if it fails."""
    done, = run_tools('org.apache.kafka.tools.DumpLogSegments', [*options, '--files', ','.join(map(str, files))],
                      release=release)
    return done


def sections(report):
    """Return the sorted parts of the dump tool's final report. The tool prints them in the order of a hash map."""
    found = []
    for line in report.splitlines():
        if not line.startswith(('  ', 'Indexed')):
            found.append([])
        found[-1].append(line)
    return sorted(found)


def sound_dump(files):
    """Return the output of Kafka's dump tool. Check that it finds no error in the files."""
    text = dump_log(*files)
    assert text.count('Dumping ') == len(files)
    assert 'isvalid: false' not in text
    for trouble in ('Mismatches', 'mismatch', 'out of order', 'not found', 'invalid bytes', 'Exception'):
        assert trouble not in text
    return text


def kafkas_text(name, files):
    """Return the lines that Kafka's dump tool prints for the records of the files, without its lines for batches."""
    done = run_dump_tool(files, OPTIONS[name], '--skip-record-metadata')
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
