"""The module that makes Spark find the data source. Spark imports every installed module whose name begins with
`pyspark_`, and registers its `DefaultSource`."""
from kbroker_tools.spark import KafkaLogDataSource as DefaultSource

__all__ = ['DefaultSource']
