"""A Spark data source that reads and writes Kafka's log: `spark.read.format("kbroker")`, `df.write.format("kbroker")`.

`KafkaLogDataSource` is what PySpark registers; `spark.dataSource.register(KafkaLogDataSource)` does so by hand. It is
imported when it is first used, since parts of the package work without PySpark.
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
