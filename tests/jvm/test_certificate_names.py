"""kbroker prints the subject of a certificate as Java does, and maps it to a user name as Kafka does."""
import json

import pytest
from support.clients.certificate_names import MAPPINGS, NAMES, REFUSED
from support.kafka.apache_kafka import run_several_tools

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]


def judged(arguments):
    done, = run_several_tools([['kbroker.CertificateNames', *arguments]])
    assert done.code == 0, done.errors
    return json.loads(done.output)


def test_java_prints_the_texts_that_the_tests_expect():
    assert judged(name.hex() for name in NAMES.values()) == list(NAMES)


def test_kafka_maps_as_the_tests_expect():
    found = judged(f'{rules.encode().hex()}:{subject.encode().hex()}' for rules, subject, _ in MAPPINGS)
    assert found == [name for _, _, name in MAPPINGS]


def test_kafka_refuses_the_rules_that_are_refused():
    assert judged(f'{rules.encode().hex()}:78' for rules in REFUSED) == [None] * len(REFUSED)
