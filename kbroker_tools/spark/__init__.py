"""A Spark data source that reads Kafka's log: `spark.read.format("kbroker")`.

`KafkaLogDataSource` is what PySpark registers; `spark.dataSource.register(KafkaLogDataSource)` does so by hand.
"""
from kbroker_tools.spark.datasource import KafkaLogDataSource

__all__ = ['KafkaLogDataSource']
