"""Fixtures: one Spark session for the whole run, because its JVM takes seconds to start, and log files."""
import hashlib
import os
import pathlib
import subprocess
import sys

import pytest
from support.brokers.broker_process import ROOT
from support.runner.machine_requirements import JUDGES, fetching
from support.spark.spark_machine import quick_start

HERE = pathlib.Path(__file__).parent
CACHE = JUDGES / 'spark'
MAVEN_LIMIT_S = 900


def connector_jars():
    """Return the paths of the jars of Spark's own connector. Download them if the pom has changed."""
    pom = HERE / 'pom.xml'
    listing = CACHE / hashlib.sha256(pom.read_bytes()).hexdigest()[:16]
    with fetching():
        if not listing.exists():
            CACHE.mkdir(parents=True, exist_ok=True)
            done = subprocess.run(['mvn', '-q', '-B', '-f', str(pom), 'dependency:build-classpath',
                                   f'-Dmdep.outputFile={listing}'], capture_output=True, text=True,
                                  timeout=MAVEN_LIMIT_S, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
    return listing.read_text().strip().split(':')


def protobuf_jars():
    """Return the paths of the jars of Spark's Protobuf package, separated by commas. The tests do not download these
    jars."""
    return [path for path in os.environ.get('KBROKER_SPARK_PROTOBUF_JAR', '').split(',') if path]


@pytest.fixture
def log(tmp_path):
    """Return a log directory with one partition, whose files the test writes."""
    from spark_rows import LogFiles
    return LogFiles(tmp_path / 'logs')


@pytest.fixture(scope='session')
def spark(tmp_path_factory):
    """Yield a Spark session on two cores. Its Python workers can import kbroker and `support`, so `format("kbroker")`
    works without registration."""
    from pyspark.sql import SparkSession
    work = tmp_path_factory.mktemp('spark')
    os.environ['PYTHONPATH'] = os.pathsep.join(map(str, (ROOT, ROOT / 'tests', ROOT / 'kbroker_tools/spark/autoload')))
    os.environ['PYSPARK_PYTHON'] = os.environ['PYSPARK_DRIVER_PYTHON'] = sys.executable
    os.environ['SPARK_LOCAL_IP'] = '127.0.0.1'
    os.environ.update(quick_start())
    log_settings = work / 'log4j2.properties'
    log_settings.write_text('rootLogger.level = off\n')
    settings = {
        'spark.ui.enabled': 'false', 'spark.sql.shuffle.partitions': '2', 'spark.driver.memory': '1g',
        'spark.sql.warehouse.dir': str(work / 'warehouse'), 'spark.local.dir': str(work / 'local'),
        'spark.sql.session.timeZone': 'UTC', 'spark.ui.showConsoleProgress': 'false',
        'spark.task.maxFailures': '1', 'spark.jars': ','.join([*connector_jars(), *protobuf_jars()]),
        'spark.driver.extraJavaOptions': f'-Dlog4j2.configurationFile={log_settings}',
    }
    builder = SparkSession.builder.master('local[2]').appName('tests')
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()
