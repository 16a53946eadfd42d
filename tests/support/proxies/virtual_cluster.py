"""Three virtual brokers in front of a broker, in the process of the test."""
import threading

from kbroker.client import Consumer
from kbroker.client.config import ClientConfig
from kbroker.client.connection import Connection
from kbroker.protocol import messages as m
from kbroker_tools.proxy import serving
from kbroker_tools.proxy.nodes import TRANSACTION
from kbroker_tools.proxy.traffic import Traffic

LIMIT_S = 60


class VirtualCluster:
    """Three virtual brokers in front of a broker, in this process."""

    def __init__(self, address):
        self.config = ClientConfig.load(address)
        known = serving.ask_cluster(self.config)
        self.nodes = serving.virtual_brokers(3, known)
        self.traffic = Traffic(known.names, None, self.nodes)
        self.proxy = serving.open_proxy(self.config, serving.Options('127.0.0.1', 0), known, self.traffic, self.nodes,
                                        own_thread=True)
        self.connections = {}
        self.ports = {node: self.proxy.node_port(node) for node in self.nodes.ids}
        self.address = ','.join(f'127.0.0.1:{port}' for port in self.ports.values())
        """The addresses of all virtual brokers: a client that starts while one of them is stopped uses another."""

    def do(self, change):
        """Run a change in the thread of the proxy, and return its result."""
        done, results = threading.Event(), []

        def run():
            try:
                results.append(change())
            except ValueError as error:
                results.append(error)
            done.set()

        self.proxy.command(run)
        assert done.wait(LIMIT_S)
        if isinstance(results[0], Exception):
            raise results[0]
        return results[0]

    def at(self, node):
        """Return a connection to a virtual broker."""
        if node not in self.connections or not self.connections[node].is_open:
            self.connections[node] = Connection('127.0.0.1', self.ports[node], self.config)
        return self.connections[node]

    def metadata(self, *topics, node=1):
        wanted = [m.MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
        return self.at(node).call(m.MetadataRequest(topics=wanted))

    def leaders(self, topic, node=1):
        """Return {partition: (leader, epoch)} of Metadata."""
        found, = self.metadata(topic, node=node).topics
        return {each.partition_index: (each.leader_id, each.leader_epoch) for each in found.partitions}

    def close(self):
        for connection in self.connections.values():
            connection.close()
        self.proxy.close()

    # changes, each from the thread of the test

    def stop(self, node):
        self.do(lambda: self.traffic.stop_node(node))

    def start(self, node):
        self.do(lambda: self.traffic.start_node(node))

    def move(self, topic, partition, to):
        self.do(lambda: self.nodes.move(topic, partition, to))

    def leader(self, topic, partition):
        return self.do(lambda: self.nodes.place(topic, partition).leader)

    def coordinator(self, key_type, key):
        return self.do(lambda: self.nodes.coordinator(key_type, key))

    @property
    def running(self):
        return self.do(lambda: sorted(self.nodes.running))


def fail_over(nodes, producer, topic, transactional_id, partitions=6):
    """Write three transactions of a LineProducer, while nodes stop, start, and lose a partition. The second one is
    aborted. Return the values that are committed."""
    def send(start):
        for number in range(start, start + partitions):
            producer.send(topic, number % partitions, f'v{number}')

    producer.begin()
    send(0)
    coordinator = nodes.coordinator(TRANSACTION, transactional_id)
    nodes.stop(coordinator)
    send(partitions)
    producer.commit()
    nodes.start(coordinator)
    producer.begin()
    send(2 * partitions)
    leader = nodes.leader(topic, 0)
    nodes.move(topic, 0, next(each for each in nodes.running if each != leader))
    producer.abort()
    stopped = nodes.leader(topic, 0)
    nodes.stop(stopped)
    producer.begin()
    send(3 * partitions)
    nodes.start(stopped)
    producer.commit()
    return sorted(f'v{number}' for number in (*range(2 * partitions), *range(3 * partitions, 4 * partitions)))


def committed_values(address, topic, count, partitions=6):
    """Read committed values until there are `count`, and none is left. Return them in order of their texts."""
    with Consumer(address, isolation_level='read_committed', auto_offset_reset='earliest') as consumer:
        consumer.assign([(topic, partition) for partition in range(partitions)])
        found = []
        while len(found) < count or consumer.poll(200):
            found += [record.value.decode() for batch in consumer.poll(1000) for record in batch.records()]
    return sorted(found)
