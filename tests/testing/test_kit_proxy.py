"""kbroker.testing.Proxy: the kit's proxy in front of a broker."""
import os
import select
import subprocess
import sys

import pytest
from support.runner.pages import ROOT, blocks

from kbroker.client import Admin, NewTopic, Producer
from kbroker.testing import BrokerError, Proxy


@pytest.fixture
def proxy(shared_broker):
    with Proxy(shared_broker.address) as found:
        yield found


def test_a_test_sees_requests_and_loses_answers(proxy):
    with Admin(proxy.bootstrap_servers) as admin:
        admin.create_topics([NewTopic('seen', 1)])
    with proxy.drop('reply', api='Produce', occurrence=1) as dropped, Producer(
            proxy.bootstrap_servers, client_id='application') as producer:
        producer.send('seen', b'value', partition=0)
        producer.flush()
        dropped.wait()
    produced = proxy.requests(api='Produce', client_id='application', wait_s=1)
    assert [(each.topic, each.partition) for each in produced] == [('seen', 0)] * 2
    assert proxy.unmatched() == []


def test_virtual_brokers_stop_and_start(shared_broker):
    with Proxy(shared_broker.address, nodes=2) as proxy:
        proxy.stop_node(1)
        assert [each['is_running'] for each in proxy.nodes()] == [False, True]
        with Admin(proxy.bootstrap_servers) as admin:
            assert admin.create_topics([NewTopic('virtual', 2, 2)]) == {'virtual': None}
        proxy.start_node(1)
        proxy.move('virtual', 0, 2)
        with pytest.raises(BrokerError, match='expected one of 1, 2'):
            proxy.stop_node(3)


def test_a_proxy_without_a_broker_says_why_it_cannot_start():
    with pytest.raises(BrokerError, match=r'127\.0\.0\.1:1 cannot be reached'):
        Proxy('127.0.0.1:1')


def test_a_killed_test_leaves_no_proxy(shared_broker):
    program = (f'import time\nfrom kbroker.testing import Proxy\nproxy = Proxy({shared_broker.address!r})\n'
               'print(proxy._process.pid, flush=True)\ntime.sleep(600)\n')
    with subprocess.Popen([sys.executable, '-c', program], stdout=subprocess.PIPE, text=True) as test:
        ended = os.pidfd_open(int(test.stdout.readline()))
        test.kill()
    try:
        assert select.select([ended], [], [], 60)[0], 'the proxy still runs'
    finally:
        os.close(ended)


def test_the_program_of_the_page_prints_what_the_page_says():
    program, = blocks('docs/proxy.md', 'python')
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, timeout=180, check=True,
                          env=os.environ | {'PYTHONPATH': str(ROOT)})
    assert done.stdout == blocks('docs/proxy.md', 'text')[0]
