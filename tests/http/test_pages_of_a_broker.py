"""The page of a broker, and the pages with the output of commands, as a browser gets them."""
import contextlib
import json
import urllib.error
import urllib.parse
import urllib.request

import pytest
from support.runner.free_ports import free_port


def get(url):
    """Return (status, headers, text)."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


@pytest.fixture
def paged(start_broker):
    """Return the URL of the page of a broker on which the transaction of `pay <1>` holds back ten records."""
    confluent_kafka = pytest.importorskip('confluent_kafka')
    url = f'http://127.0.0.1:{free_port()}/'
    broker = start_broker({'metrics.listen': url.rstrip('/')})
    producer = confluent_kafka.Producer({'bootstrap.servers': broker.address, 'transactional.id': 'pay <1>'})
    producer.init_transactions()
    producer.begin_transaction()
    for _ in range(10):
        producer.produce('payments', b'x', partition=0)
    producer.flush()
    yield url
    with contextlib.suppress(confluent_kafka.KafkaException):
        producer.abort_transaction(5)


def test_the_page_says_who_is_open_and_what_waits_for_it(paged):
    status, headers, text = get(paged)
    assert status == 200
    assert "default-src 'none'" in headers['content-security-policy']
    assert 'pay &lt;1&gt;' in text
    assert 'why-stuck?topic=payments&amp;partition=0' in text
    assert get(f'{paged}page.css')[1]['content-type'] == 'text/css; charset=utf-8'
    assert get(f'{paged}page.js')[0] == 200


def test_the_reason_the_history_and_the_timeline_are_one_click_away(paged):
    reason = get(f'{paged}why-stuck?topic=payments&partition=0')[2]
    assert 'held back    10 offsets' in reason
    assert 'kbroker-transactions --bootstrap-server' in reason
    history = get(f'{paged}history?{urllib.parse.urlencode({"id": "pay <1>"})}')[2]
    assert 'transaction 1: open' in history
    assert 'payments: transactions' not in history
    assert '<title>payments-0: transactions</title>' in get(f'{paged}timeline?topic=payments&partition=0')[2]


@pytest.mark.parametrize(('path', 'status', 'text'), [
    ('timeline?topic=payments', 400, 'found the partition '),
    ('timeline?topic=payments&partition=-1', 400, 'found the partition '),
    ('why-stuck?topic=..%2F..%2Fetc&partition=0', 400, 'found the topic '),
    ('why-stuck?topic=--help&partition=0', 502, 'found no topic --help'),
    ('history', 400, 'found the id '), ('history?id=%00', 400, 'found the id '),
    ('history?id=--help', 502, 'found no row of '),
    ('timeline?topic=payments&partition=99', 502, 'found no partition 99')])
def test_a_page_of_a_command_takes_names_and_no_options(paged, path, status, text):
    found, _, body = get(f'{paged}{path}')
    assert found == status
    assert text in body
    assert 'Usage:' not in body


def test_the_metrics_of_a_busy_broker_have_no_doubles(paged):
    from prometheus_client.parser import text_string_to_metric_families

    seen = [(sample.name, json.dumps(sample.labels, sort_keys=True))
            for family in text_string_to_metric_families(get(f'{paged}metrics')[2]) for sample in family.samples]
    assert len(seen) == len(set(seen)) > 300
    assert ('kbroker_transactions_open', '{}') in seen
