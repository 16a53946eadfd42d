"""For sound and damaged index and snapshot files, kbroker-dump-log prints every line and the final report as
kafka-dump-log does.
"""
import io

import pytest
from decoded import run_dump_tool, sections
from support.disk.segment_files import damaged_copies, damaged_snapshots, two_segments

from kbroker.base.errors import CorruptLogError
from kbroker_tools.dump.error_report import ErrorReport
from kbroker_tools.dump.index import (
    IndexOptions,
    dump_index,
    dump_snapshot,
    dump_time_index,
    dump_transaction_index,
)

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

DUMPS = {'.index': dump_index, '.timeindex': dump_time_index, '.txnindex': dump_transaction_index,
         '.snapshot': dump_snapshot}


def ours(files, **options):
    out, err, report = io.StringIO(), io.StringIO(), ErrorReport()
    for path in files:
        out.write(f'Dumping {path}\n')
        try:
            DUMPS[path.suffix](str(path), IndexOptions(**options), out, report)
        except CorruptLogError as error:
            err.write(f'{error}\n')
    report.print(err)
    return 0, out.getvalue(), err.getvalue()


@pytest.fixture
def files(tmp_path):
    directory = two_segments(tmp_path)
    sound = sorted(path for path in directory.iterdir() if path.suffix in DUMPS)
    return sound, [*damaged_copies(directory), *damaged_snapshots(directory)]


def test_entries_and_the_report_are_kafkas_to_the_letter(files):
    sound, damaged = files
    for options, keywords in (([], {}), (['--verify-index-only'], {'verify_index_only': True})):
        expected = run_dump_tool([*sound, *damaged], *options)
        found = ours([*sound, *damaged], **keywords)
        assert found[:2] == expected[:2]
        assert sections(found[2]) == sections(expected[2])
    assert 'Mismatches in :' in expected[2]


def test_the_sanity_check_is_kafkas_to_the_letter(files):
    sound, damaged = files
    refused = [path for path in damaged if path.parent.name in ('below-the-base-index', 'below-the-base-timeindex',
                                                                'zeros-behind-timeindex')]
    passed = [path for path in [*sound, *damaged] if path not in refused]
    assert ours(passed, index_sanity_check=True) == run_dump_tool(passed, '--index-sanity-check')
    for path in refused:        # Kafka prints a stack trace that begins with the text
        code, out, err = run_dump_tool([path], '--index-sanity-check')
        assert code == 1
        assert ours([path], index_sanity_check=True)[1:] == (out, err.partition('CorruptIndexException: ')[2]
                                                             .partition('\n')[0] + '\n')
