"""franz-go and sarama on the virtual brokers of kbroker-proxy: their transactions go on when nodes stop."""
from contextlib import closing

import pytest
from support.clients.line_producer import LineProducer
from support.proxies.virtual_cluster import VirtualCluster, committed_values, fail_over
from test_go_late_requests import program

from kbroker.client import Admin, NewTopic

pytestmark = [pytest.mark.go, pytest.mark.soak, pytest.mark.timeout(600)]


@pytest.mark.parametrize('library', ['franz-go', 'sarama'])
def test_transactions_go_on_when_nodes_stop(shared_broker, library):
    with closing(VirtualCluster(shared_broker.address)) as nodes:
        with Admin(shared_broker.address) as admin:
            assert admin.create_topics([NewTopic(library, 6)]) == {library: None}
        with LineProducer([program(), library, nodes.proxy.address, library]) as producer:
            expected = fail_over(nodes, producer, library, library)
        assert committed_values(shared_broker.address, library, len(expected)) == expected
