"""Ingests a topic by Spark's own connector and a table format's own writer, for bench/lake_peers.py.

    python bench/lake_peer_writer.py JARS BROKER TOPIC DIR

It runs on a version of PySpark for which the jars exist, so it imports nothing of kbroker. For each line of its input,
`Iceberg` or `Delta`, it writes all records of the topic into a new table, and prints (seconds, rows) as JSON.
"""
import json
import sys
import time

from pyspark.sql import SparkSession

CORES = 2


def main() -> None:
    jars, broker, topic, directory = sys.argv[1:]
    settings = {
        'spark.jars': jars, 'spark.ui.enabled': 'false', 'spark.ui.showConsoleProgress': 'false',
        'spark.driver.memory': '3g', 'spark.sql.session.timeZone': 'UTC', 'spark.sql.parquet.compression.codec': 'zstd',
        'spark.sql.warehouse.dir': f'{directory}/warehouse', 'spark.local.dir': f'{directory}/local',
        'spark.sql.extensions': 'org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions,'
                                'io.delta.sql.DeltaSparkSessionExtension',
        'spark.sql.catalog.spark_catalog': 'org.apache.spark.sql.delta.catalog.DeltaCatalog',
        'spark.sql.catalog.lake': 'org.apache.iceberg.spark.SparkCatalog', 'spark.sql.catalog.lake.type': 'hadoop',
        'spark.sql.catalog.lake.warehouse': f'{directory}/iceberg'}
    builder = SparkSession.builder.master(f'local[{CORES}]').appName('peers')
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel('ERROR')
    for number, line in enumerate(sys.stdin):
        rows = spark.read.format('kafka').options(**{
            'kafka.bootstrap.servers': broker, 'subscribe': topic, 'startingOffsets': 'earliest',
            'kafka.isolation.level': 'read_committed'}).load()
        began = time.perf_counter()
        if line.strip() == 'Iceberg':
            rows.writeTo(f'lake.db.orders{number}').create()
        else:
            rows.write.format('delta').save(f'{directory}/delta/orders{number}')
        seconds = time.perf_counter() - began
        table = (spark.table(f'lake.db.orders{number}') if line.strip() == 'Iceberg'
                 else spark.read.format('delta').load(f'{directory}/delta/orders{number}'))
        print(json.dumps([seconds, table.count()]), flush=True)
    spark.stop()


if __name__ == '__main__':
    main()
