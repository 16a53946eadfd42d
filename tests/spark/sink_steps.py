"""The steps of a driver and its tasks with the sink, without Spark: plan, task and commit, in this process."""
import pickle
from types import SimpleNamespace

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from kbroker.client import Admin, Consumer
from kbroker.client.admin import LATEST, NewTopic
from kbroker_tools.spark import KafkaLogDataSource
from kbroker_tools.spark.sink import writer
from kbroker_tools.spark.sink.writer import BATCH_ID, QUERY_ID

VALUE = StructType([StructField('value', BinaryType())])


def batch(**columns):
    return pa.RecordBatch.from_pydict(columns)


def create(admin, topic, partitions=2, **configs):
    assert admin.create_topics([NewTopic(topic, partitions, 1, configs={
        name.replace('_', '.'): text for name, text in configs.items()})])[topic] is None


def options(broker, topic, **more):
    return {'kafka.bootstrap.servers': broker.address, 'topic': topic, 'transactionalIdPrefix': topic, **more}


def planned(given):
    """Return a stream's writer as the tasks have it."""
    return pickle.loads(pickle.dumps(KafkaLogDataSource(given).streamWriter(VALUE, False)))


def staged(monkeypatch, task, number, *values, partition=0, attempt=0):
    """Return the result of a task of micro-batch `number`."""
    found = {BATCH_ID: str(number), QUERY_ID: 'q'}
    monkeypatch.setattr(writer, 'TaskContext', SimpleNamespace(get=lambda: SimpleNamespace(
        getLocalProperty=found.get, partitionId=lambda: partition, taskAttemptId=lambda: attempt)))
    return task.write(iter([batch(value=list(values))] if values else []))


def commit(given, number, *results):
    """Commit as another process does, with a writer that has no plan."""
    KafkaLogDataSource(given).streamWriter(VALUE, False).commit(list(results), number)


def values_in(broker, topic):
    """Return the committed values. A commit is answered before its markers are written, so the end is the log's end."""
    found = []
    with Admin(broker.address) as admin:
        end = end_offset(admin, topic)
    with Consumer(broker.address, isolation_level='read_committed', auto_offset_reset='earliest') as consumer:
        consumer.assign([(topic, 0)])
        while (consumer.position(topic, 0) or 0) < end:
            found += [record.value for each in consumer.poll(500) for record in each.records()]
    return found


def end_offset(admin, topic):
    return admin.list_offsets({(topic, 0): LATEST})[topic, 0].offset
