"""For a Java producer without KIP-890, the broker refuses late requests, and executes a request whose answer was lost
only once.
"""
import functools
import subprocess

import pytest
from support.clients.late_requests import LATE, check_of_lines
from support.kafka.apache_kafka import classpath
from support.runner.machine_requirements import JUDGES, fetching

pytestmark = [pytest.mark.jvm, pytest.mark.soak, pytest.mark.timeout(600)]

VERSION = '3.7.2'


@functools.cache
def command():
    """Return the command that runs the producer. The old client comes first in its class path."""
    directory = JUDGES / 'jvm'
    with fetching():
        if not (directory / f'kafka-clients-{VERSION}.jar').exists():
            subprocess.run(['mvn', '-q', '-B', 'dependency:copy', f'-DoutputDirectory={directory}',
                            f'-Dartifact=org.apache.kafka:kafka-clients:{VERSION}'], check=True,
                           stdin=subprocess.DEVNULL, timeout=500)
    return ['java', '-Xmx256m', '-Djava.net.preferIPv4Stack=true', '-Dorg.slf4j.simpleLogger.defaultLogLevel=off',
            '-cp', f'{directory}/kafka-clients-{VERSION}.jar:{classpath()}', 'kbroker.LineProducer']


@pytest.mark.parametrize('course', ['late', 'lost'])
@pytest.mark.parametrize('api_key', LATE, ids=lambda key: key.name)
def test_a_late_request_of_an_old_java_producer_is_refused(proxied, api_key, course):
    check_of_lines(*proxied, command(), api_key, course)
