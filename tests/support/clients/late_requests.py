"""The steps of a test in which the network delays a request of a client until the client's next transaction.

Each client library has a test, which supplies the producer and a function that sends offsets.
"""
from contextlib import closing, contextmanager

from support.brokers.broker_process import PROMPT, BrokerProcess
from support.brokers.in_process_broker import read_answer
from support.clients.line_producer import LineProducer
from support.proxies.holding_proxy import HoldingProxy

from kbroker.base.errors import ErrorCode
from kbroker.client import Admin, Consumer
from kbroker.client.admin import NewTopic
from kbroker.daemon.status import read_status
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey

LATE = {ApiKey.END_TXN: ErrorCode.NOT_COORDINATOR, ApiKey.ADD_PARTITIONS_TO_TXN: ErrorCode.NOT_COORDINATOR,
        ApiKey.ADD_OFFSETS_TO_TXN: ErrorCode.NOT_COORDINATOR, ApiKey.TXN_OFFSET_COMMIT: ErrorCode.NOT_COORDINATOR,
        ApiKey.PRODUCE: ErrorCode.NOT_LEADER_OR_FOLLOWER}
"""The requests that may arrive late, and the errors with which the broker refuses them."""

CACHED_BATCHES = 5
"""The number of a producer's last batches that a log recognizes when they are repeated."""


@contextmanager
def broker_behind_proxy(directory, settings=None):
    """Run a broker whose clients connect through a HoldingProxy. Yield (broker, proxy)."""
    with closing(HoldingProxy()) as proxy:
        broker = BrokerProcess(directory, PROMPT | {
            'advertised.listeners': f'PLAINTEXT://{proxy.address}', 'transaction.state.log.num.partitions': '1',
            'offsets.topic.num.partitions': '1', **(settings or {})})
        broker.start()
        try:
            proxy.target = broker.address
            yield broker, proxy
        finally:
            broker.kill9()


def refused(broker):
    return read_status(str(broker.directory))['refused_stale_requests']


def create_topic(address, topic):
    with Admin(address) as admin:
        assert admin.create_topics([NewTopic(topic, 1, 1)]) == {topic: None}


def error_of(api_key, version, answer):
    """Return the error code of the answer to a request. The answer has only one."""
    name = api_key.name.title().replace('_', '')
    found = read_answer(getattr(messages, f'{name}Request')(), version, answer)
    if api_key is ApiKey.ADD_PARTITIONS_TO_TXN:
        return found.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
    if api_key is ApiKey.TXN_OFFSET_COMMIT:
        return found.topics[0].partitions[0].error_code
    if api_key is ApiKey.PRODUCE:
        return found.responses[0].partition_responses[0].error_code
    return found.error_code


def run_transaction(producer, topic, numbers, send_offsets):
    """Begin a transaction, write each number in its own batch, and send the offset that follows the last number. The
    transaction stays open.
    """
    producer.begin()
    for number in numbers:
        producer.send(topic, 0, f'v{number}')
        producer.flush()
    send_offsets(producer, numbers.stop)


def check_late_request(broker, proxy, producer, topic, send_offsets, api_key):
    """Delay a request of transaction 1 until transaction 2 has begun. Check that the broker refuses the late request,
    and that the request affects neither transaction. Afterwards the values of transactions 1 and 3 are committed:
    transaction 2 is aborted, and 3 commits.
    """
    before = refused(broker)
    proxy.hold(api_key)
    run_transaction(producer, topic, range(2), send_offsets)
    producer.commit()                   # the client repeats what was held, on a new connection
    run_transaction(producer, topic, range(2, 2 + CACHED_BATCHES + 1), send_offsets)
    assert error_of(api_key, *proxy.release()) == LATE[api_key]
    assert refused(broker) == before + 1
    producer.abort()
    run_transaction(producer, topic, range(10, 12), send_offsets)
    producer.commit()
    assert refused(broker) == before + 1


COMMITTED_AFTER_LATE_REQUEST = {f'v{number}' for number in (0, 1, 10, 11)}


def check_lost_answer(broker, proxy, producer, topic, send_offsets, api_key):
    """Lose the answer to a request, so that the client repeats the request. Check that the broker executes the request
    once, and does not refuse the repetition.
    """
    before = refused(broker)
    proxy.lose_answer(api_key)
    run_transaction(producer, topic, range(2), send_offsets)
    producer.commit()
    assert error_of(api_key, *proxy.answer()) == ErrorCode.NONE
    run_transaction(producer, topic, range(2, 4), send_offsets)
    producer.commit()
    assert refused(broker) == before


COMMITTED_AFTER_LOST_ANSWER = {f'v{number}' for number in range(4)}


def check_of_lines(broker, proxy, command, api_key, course):
    """Check a late request or a lost answer with a LineProducer, and then the committed records. `course` is `late` or
    `lost`.
    """
    check, committed = {'late': (check_late_request, COMMITTED_AFTER_LATE_REQUEST),
                        'lost': (check_lost_answer, COMMITTED_AFTER_LOST_ANSWER)}[course]
    topic = group = f'{api_key.name}-{course}'
    create_topic(broker.address, topic)

    def send_offsets(producer, offset):
        producer.send_offsets(group, topic, offset)

    with LineProducer([*command, proxy.address, topic]) as producer:
        check(broker, proxy, producer, topic, send_offsets, api_key)
    with Consumer(broker.address, isolation_level='read_committed', auto_offset_reset='earliest') as consumer:
        consumer.assign([(topic, 0)])
        found = []
        while len(found) < len(committed):
            found += [record.value.decode() for batch in consumer.poll(1000) for record in batch.records()]
        assert sorted(found) == sorted(committed)
    with Consumer(broker.address, group_id=group, isolation_level='read_committed') as consumer:    # awaits markers
        last = max(int(value[1:]) for value in committed) + 1
        assert consumer.committed([(topic, 0)])[topic, 0].offset == last
