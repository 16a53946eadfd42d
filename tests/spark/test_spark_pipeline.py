"""The pipeline of docs/spark.md copies from topic to topic exactly once, even if the last steps of its driver are
undone."""
import json

import pytest
from support.clients.committed_records import committed_records
from support.runner.pages import blocks

from kbroker.client import Admin, Producer
from kbroker.client.admin import NewTopic

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]


def pay(broker, amounts):
    with Producer(broker.address) as producer:
        producer.send_batch('payments', [json.dumps({'customer': 'c', 'cents': cents}).encode() for cents in amounts])


def large_payments(admin):
    return [json.loads(record.value)['cents'] for _, record in committed_records(admin, 'large-payments')]


def test_the_pipeline_of_the_page_writes_each_payment_once_after_any_repetition(spark, shared_broker, tmp_path):
    program, = blocks('docs/spark.md', 'python')
    program = (program.replace('localhost:9092', shared_broker.address).replace('localhost:9192', shared_broker.address)
               .replace('/data/', f'{tmp_path}/'))
    checkpoint = tmp_path / 'checkpoints' / 'large-payments'
    with Admin(shared_broker.address) as admin:
        assert not any(admin.create_topics([NewTopic(name, 1) for name in ('payments', 'large-payments')]).values())
        pay(shared_broker, [5, 100_000, 250_000])
        exec(program, {})
        assert large_payments(admin) == [100_000, 250_000]
        for path in (checkpoint / 'commits').iterdir():     # as if the driver had died before it wrote them
            path.unlink()
        pay(shared_broker, [300_000])
        exec(program, {})
        assert large_payments(admin) == [100_000, 250_000, 300_000]
