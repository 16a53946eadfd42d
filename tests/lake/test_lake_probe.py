"""A store is probed before the first commit. One that lets two commits of a version succeed is refused."""
from types import SimpleNamespace

import pytest
from support.lake.object_store import BUCKET, Fault

from kbroker_tools.spark.lake import leftovers
from kbroker_tools.spark.lake.probe import probe
from kbroker_tools.spark.lake.store import Store
from kbroker_tools.spark.lake.table_format import Attempt, TableUnavailable
from kbroker_tools.spark.ledger import IngestError

ATTEMPT = Attempt('job', 1, 'a' * 32)


@pytest.fixture
def table(object_store, tmp_path):
    """Yield what the probe needs of a Delta table in the store, which has faults only in one test."""
    uri = f'{BUCKET}/{tmp_path.name}'
    yield SimpleNamespace(markers='_kbroker', directory=lambda attempt: attempt.name,
                          put_decides=(f's3://{uri}', object_store.of_delta()),
                          store=Store(object_store.filesystem(), uri))
    object_store.have()


def test_a_store_that_lets_one_writer_win_passes_and_nothing_is_left(table, object_store, tmp_path):
    probe(table, ATTEMPT)
    assert object_store.keys(tmp_path.name) == []


def test_a_store_is_probed_once_in_a_process(table, object_store):
    probe(table, ATTEMPT)
    object_store.requests()
    probe(table, ATTEMPT)
    assert object_store.requests() == []


def test_a_store_that_ignores_the_condition_is_refused_in_one_line(table, object_store, tmp_path):
    object_store.have(Fault('PUT', 'unconditional', count=1000))
    for _ in range(2):      # A refusal is not remembered: the operator may repair the store.
        with pytest.raises(IngestError, match=r'^s3://lake/\S+: the store accepted \d writers of one object, '
                                              r'expected 1; it ignores the header If-None-Match, .*$'):
            leftovers.begin(table, ATTEMPT)
    assert object_store.keys(tmp_path.name) == []


def test_a_store_that_fails_is_not_taken_for_one_without_conditions(table, object_store):
    object_store.have(Fault('PUT.*_delta_log', 'fail', status='403 Forbidden', count=1000))
    with pytest.raises(TableUnavailable, match='403') as error:
        probe(table, ATTEMPT)
    assert '\n' not in str(error.value) and '\x1b' not in str(error.value)


def test_a_table_whose_catalog_decides_is_not_probed():
    probe(SimpleNamespace(name='lake.orders'), ATTEMPT)
