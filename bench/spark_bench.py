"""A Spark session with its brokers, and the cost of a job: its wall time, and the processor time of each kind of
process."""
from __future__ import annotations

import importlib.util
import os
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'tests'), str(ROOT / 'bench')]

from broker import TICKS_PER_S, machine_cpu_s, process_cpu_s  # noqa: E402
from support.brokers.broker_process import BrokerProcess  # noqa: E402
from support.kafka.apache_kafka import KafkaProcess  # noqa: E402

CORES = 2


@dataclass
class Measurement:
    seconds: float
    jvm_cpu_s: float
    python_cpu_s: float
    brokers_cpu_s: float
    others_share: float


class Bench:
    """One Spark session and its brokers: kbroker, and Apache Kafka if it is compared."""

    def __init__(self, stack: ExitStack, work: pathlib.Path, with_kafka: bool, sources: Sequence[type]):
        """Start the brokers and the session. `sources` are the data sources in Python to register in the session."""
        self.work = work
        self.spark = session(work, sources)
        stack.callback(self.spark.stop)
        self.kbroker = BrokerProcess(work / 'kbroker', {'kbroker.durability': 'page-cache'})
        self.kafka = KafkaProcess(work / 'kafka')
        self.brokers = [self.kbroker, self.kafka] if with_kafka else [self.kbroker]
        for broker in self.brokers:
            stack.callback(broker.kill9)
            broker.start()
        self.jvm = self.spark.sparkContext._gateway.proc.pid

    def measured(self, run: Callable[[], object]) -> Measurement:
        before, began = self._cpu_s(), time.perf_counter()
        run()
        seconds = time.perf_counter() - began
        jvm, python, brokers, known, busy = (now - then for now, then in zip(self._cpu_s(), before, strict=True))
        available_s = seconds * (os.cpu_count() or 1)
        return Measurement(seconds, jvm, python, brokers, max(0.0, busy - known) / available_s)

    def _cpu_s(self) -> tuple[float, float, float, float, float]:
        """Return the CPU seconds of the JVM, its Python processes, the brokers, the whole bench, and the machine."""
        jvm = process_cpu_s(self.jvm)
        python = sum(map(process_and_ended_children_cpu_s, descendants(self.jvm))) + ended_children_cpu_s(self.jvm)
        brokers = sum(process_cpu_s(broker.pid) for broker in self.brokers)
        user, nice, system, _idle, _io_wait, irq, soft_irq, *_ = machine_cpu_s()
        return jvm, python, brokers, jvm + python + brokers + sum(os.times()[:2]), user + nice + system + irq + soft_irq

    def most_memory_mb(self) -> float:
        """Return the peak memory of any running Python worker."""
        return max(map(peak_mb, descendants(self.jvm)), default=0.0)


def session(work: pathlib.Path, sources: Sequence[type]) -> Any:
    from pyspark.sql import SparkSession
    os.environ['PYTHONPATH'] = os.pathsep.join([str(ROOT), str(ROOT / 'kbroker_tools/spark/autoload'),
                                                 str(ROOT / 'bench')])
    os.environ['PYSPARK_PYTHON'] = sys.executable
    os.environ['SPARK_LOCAL_IP'] = '127.0.0.1'
    settings = {
        'spark.ui.enabled': 'false', 'spark.ui.showConsoleProgress': 'false', 'spark.driver.memory': '3g',
        'spark.local.dir': str(work / 'local'), 'spark.sql.warehouse.dir': str(work / 'warehouse'),
        'spark.python.unix.domain.socket.enabled': 'true', 'spark.jars': ','.join(connector_jars()),
        'spark.driver.extraJavaOptions': f'-Dlog4j2.configurationFile={ROOT / "kbroker_tools/spark/log4j2.properties"}'}
    builder = SparkSession.builder.master(f'local[{CORES}]').appName('bench')
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for source in sources:
        spark.dataSource.register(source)
    return spark


def connector_jars() -> list[str]:
    """Return the connector's jars, which the tests in tests/spark download."""
    place = ROOT / 'tests' / 'spark' / 'conftest.py'
    spec = importlib.util.spec_from_file_location('spark_conftest', place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    jars: list[str] = module.connector_jars()
    return jars


# ---- processes

def descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in os.listdir('/proc'):
        if entry.isdecimal():
            try:
                parents.setdefault(int(_stat(int(entry))[1]), []).append(int(entry))
            except FileNotFoundError:
                continue
    found, waiting = [], [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name: state, parent, ..."""
    with open(f'/proc/{pid}/stat') as file:
        return file.read().rpartition(')')[2].split()


def ended_children_cpu_s(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[13]) + int(fields[14])) / TICKS_PER_S


def process_and_ended_children_cpu_s(pid: int) -> float:
    try:
        return process_cpu_s(pid) + ended_children_cpu_s(pid)
    except FileNotFoundError:
        return 0.0


def peak_mb(pid: int) -> float:
    try:
        with open(f'/proc/{pid}/status') as file:
            return next((int(line.split()[1]) / 1024 for line in file if line.startswith('VmHWM')), 0.0)
    except FileNotFoundError:
        return 0.0
