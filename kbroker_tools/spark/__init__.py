"""A Spark data source that reads and writes Kafka's log: `spark.read.format("kbroker")`, `df.write.format("kbroker")`.

PySpark registers the class `KafkaLogDataSource` automatically. A program can also call
`spark.dataSource.register(KafkaLogDataSource)`. The class is imported at its first use, because parts of the package
work without PySpark.
"""
from typing import TYPE_CHECKING

__all__ = ['KafkaLogDataSource']

if TYPE_CHECKING:
    from kbroker_tools.spark.datasource import KafkaLogDataSource
else:
    def __getattr__(name):
        if name != 'KafkaLogDataSource':
            raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
        from kbroker_tools.spark.datasource import KafkaLogDataSource
        globals()[name] = KafkaLogDataSource
        return KafkaLogDataSource
