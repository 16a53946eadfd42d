"""Iceberg's sink for Kafka Connect, for bench/lake_peers.py. Maven Central has its jar and no distribution. So this
module puts it on the class path of Kafka's Connect, with the jars on which both depend."""
from __future__ import annotations

import json
import pathlib
import subprocess
import time
from dataclasses import dataclass

from broker import process_cpu_s
from lake_topics import filled
from spark_bench import peak_mb
from support.brokers.broker_process import BrokerProcess
from support.runner.free_ports import free_port

COMMIT_INTERVAL_S = 5
FLUSH_INTERVAL_MS = 1000
"""Connect calls a sink when records have arrived, and otherwise after this time. The sink needs such calls to join the
group of its control topic, and to commit. With Connect's default of one minute, it takes minutes for a topic that gets
no more records."""
LIMIT_S = 300
LOOK_S = 0.2
FAILED = 'uncaught and unrecoverable exception'
LOGGING = '''rootLogger.level=warn
rootLogger.appenderRefs=console
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
'''


@dataclass
class Sunk:
    """A topic that is in the table."""

    seconds: float
    """From the start of Java to the last commit."""
    rate: float | None
    """Rows per second from the first commit to the last. None if there was one."""
    cpu_s: float
    memory_mb: float


def sink(broker: BrokerProcess, topic: str, count: int, jars: pathlib.Path, place: pathlib.Path) -> Sunk:
    """Run the sink until all rows of the topic are in the table. Raise RuntimeError with the end of its log if it
    stops, or takes too long."""
    place.mkdir()
    control = f'control-{topic}-{place.name}'
    filled(broker.address, control, 0, 100, 1)
    (place / 'log4j2.properties').write_text(LOGGING)
    (place / 'worker.properties').write_text(_text({
        'bootstrap.servers': broker.address, 'listeners': f'http://127.0.0.1:{free_port()}',
        'key.converter': 'org.apache.kafka.connect.storage.StringConverter',
        'value.converter': 'org.apache.kafka.connect.json.JsonConverter', 'value.converter.schemas.enable': 'false',
        'offset.storage.file.filename': f'{place}/offsets', 'offset.flush.interval.ms': str(FLUSH_INTERVAL_MS)}))
    (place / 'sink.properties').write_text(_text({
        'name': f'sink-{place.name}', 'connector.class': 'org.apache.iceberg.connect.IcebergSinkConnector',
        'tasks.max': '2', 'topics': topic, 'iceberg.tables': 'lake.orders', 'iceberg.control.topic': control,
        'iceberg.control.commit.interval-ms': str(COMMIT_INTERVAL_S * 1000), 'iceberg.catalog.type': 'hadoop',
        'iceberg.catalog.warehouse': (place / 'warehouse').as_uri()}))
    _create(place / 'warehouse/lake/orders')
    with open(place / 'log', 'w+') as log:
        began_s, began = time.time(), time.perf_counter()
        process = subprocess.Popen(
            ['java', '-Xmx2g', '-cp', f'{jars}/*', f'-Dlog4j2.configurationFile={place}/log4j2.properties',
             'org.apache.kafka.connect.cli.ConnectStandalone', f'{place}/worker.properties',
             f'{place}/sink.properties'], stdout=log, stderr=subprocess.STDOUT)
        try:
            while True:
                commits = _commits(place / 'warehouse/lake/orders/metadata')
                if commits and commits[-1][1] >= count:
                    break
                has_failed = process.poll() is not None or FAILED in (place / 'log').read_text()
                if has_failed or time.perf_counter() > began + LIMIT_S:
                    log.seek(0)
                    raise RuntimeError(f"Iceberg's sink has committed {commits[-1:]} of {count}: {log.read()[-2000:]}")
                time.sleep(LOOK_S)
            cpu_s, memory_mb = process_cpu_s(process.pid), peak_mb(process.pid)
        finally:
            process.kill()
            process.wait()
    (first_s, first), (last_s, last) = commits[0], commits[-1]
    return Sunk(last_s - began_s, (last - first) / (last_s - first_s) if last > first else None, cpu_s, memory_mb)


def _create(location: pathlib.Path) -> None:
    """Create the table, as Iceberg's catalog in a directory has it. If two tasks of the sink create it at the same
    time, one of them fails."""
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import new_table_metadata
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
    from pyiceberg.types import LongType, NestedField, StringType
    columns = Schema(NestedField(1, 'id', LongType()), NestedField(2, 'cents', LongType()),
                     NestedField(3, 'token', StringType()), NestedField(4, 'note', StringType()))
    metadata = new_table_metadata(columns, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, location.as_uri(),
                                  {'write.parquet.compression-codec': 'zstd'})
    (location / 'metadata').mkdir(parents=True)
    (location / 'metadata/v1.metadata.json').write_text(metadata.model_dump_json())
    (location / 'metadata/version-hint.text').write_text('1')


def _text(properties: dict[str, str]) -> str:
    return ''.join(f'{name}={value}\n' for name, value in properties.items())


def _commits(directory: pathlib.Path) -> list[tuple[float, int]]:
    """Return (time, number of rows in the table) of each commit."""
    files = sorted(directory.glob('v*.metadata.json'), key=lambda path: int(path.name.split('.')[0][1:]))
    if not files:
        return []
    found = json.loads(files[-1].read_text())
    return [(each['timestamp-ms'] / 1000, int(each['summary']['total-records'])) for each in found.get('snapshots', [])]
