"""The steps of a driver and its tasks with the sink, in this process and without Spark: plan, task and commit."""
import pickle

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructField, StructType
from support.clients.committed_records import committed_records

from kbroker.client import Admin
from kbroker.client.admin import LATEST, NewTopic
from kbroker_tools.spark import KafkaLogDataSource
from kbroker_tools.spark.sink.writer import BATCH_ID, QUERY_ID, PlanError

VALUE = StructType([StructField('value', BinaryType())])


def batch(**columns):
    return pa.RecordBatch.from_pydict(columns)


def create(admin, topic, partitions=2, **configs):
    assert admin.create_topics([NewTopic(topic, partitions, 1, configs={
        name.replace('_', '.'): text for name, text in configs.items()})])[topic] is None


def options(broker, topic, **more):
    return {'kafka.bootstrap.servers': broker.address, 'topic': topic, 'transactionalIdPrefix': topic, **more}


def planned(given):
    """Make the plan of a stream, and return its writer in the form that tasks receive. Raise the error with which a
    plan fails."""
    try:
        pickled = pickle.dumps(KafkaLogDataSource(given).streamWriter(VALUE, False))
    except PlanError as error:
        raise error.__cause__ from None
    return pickle.loads(pickled)


def staged(monkeypatch, task, number, *values, partition=0, attempt=0):
    """Let a task of micro-batch `number` write the values, and return its result."""
    monkeypatch.setattr(TaskContext, '_taskContext', None)
    context = TaskContext()
    context._localProperties = {BATCH_ID: str(number), QUERY_ID: 'q'}
    context._partitionId, context._taskAttemptId = partition, attempt
    return task.write(iter([batch(value=list(values))] if values else []))


def commit(given, number, *results):
    """Commit the results of a micro-batch, with a writer that has no plan: Spark commits in another process than it
    plans."""
    KafkaLogDataSource(given).streamWriter(VALUE, False).commit(list(results), number)


def values_in(broker, topic):
    with Admin(broker.address) as admin:
        return [record.value for _, record in committed_records(admin, topic)]


def end_offset(admin, topic):
    return admin.list_offsets({(topic, 0): LATEST})[topic, 0].offset
