"""The collectors of state in the text forms of Prometheus and OpenMetrics: each name, unit and label is accepted."""
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from support.brokers.in_process_broker import InProcessBroker
from support.clients.tv1_producer import InProcessPeer, Tv1Producer, create_topics
from support.messages.message_builder import build

from kbroker.metrics import groups, log, node, partitions, share, transactions
from kbroker.metrics.exposition import OPENMETRICS, PROMETHEUS, text_of

ODD_NAME = 'odd "name"\\\n{}\u202e'


def test_both_text_forms_have_the_same_samples_also_with_odd_names(tmp_path):
    with InProcessBroker(tmp_path / 'data', {'offsets.topic.num.partitions': '2'}) as broker:
        peer = InProcessPeer(broker)
        create_topics(peer, orders=2)
        producer = Tv1Producer(peer, ODD_NAME)
        producer.add('orders', 0)
        producer.write('orders', 0)
        peer.ask('FindCoordinator', key_type=0, coordinator_keys=['any'])
        broker.ask(build('OffsetCommitRequest', group_id=ODD_NAME, generation_id_or_member_epoch=-1, topics=[
            dict(name='orders', partitions=[dict(partition_index=0, committed_offset=0)])]), 9)
        found = {}
        for form, families in (OPENMETRICS, openmetrics_families), (PROMETHEUS, text_string_to_metric_families):
            samples = (sample for room in (groups, log, node, partitions, share, transactions)
                       for sample in room.collect(broker))
            text = b''.join(part or b'' for part in text_of(samples, form)).decode()
            found[form] = {(sample.name, *sorted(sample.labels.items())): sample.value
                           for family in families(text) for sample in family.samples}
        plain = found[PROMETHEUS]
        assert found[OPENMETRICS] == plain
        assert plain['kbroker_group_lag', ('group', ODD_NAME)] == 1
        assert plain['kbroker_transactions_begun_total',] == 1
        assert plain['kbroker_partition_last_stable_offset_distance', ('partition', '0'), ('topic', 'orders')] == 1
        assert any(name == 'kbroker_build_info' for name, *_ in plain)
