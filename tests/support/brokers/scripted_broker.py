"""Small servers that stand in for a broker. Each runs in a thread, and ends when its test ends."""
import socket
import threading
from contextlib import contextmanager, suppress

from support.clients.raw_client import read_exactly as exactly

from kbroker.protocol import messages
from kbroker.protocol.api_keys import request_header_version, response_header_version
from kbroker.protocol.codec import decode, decode_prefix, encode

NAMES = ('ApiVersions', 'DescribeGroups', 'DescribeTransactions', 'Fetch', 'FindCoordinator', 'ListGroups',
         'ListOffsets', 'Metadata', 'SaslAuthenticate', 'SaslHandshake')
REQUESTS = {getattr(messages, f'{name}Request').api_key: name for name in NAMES}


@contextmanager
def serving(handle):
    """Listen, and call `handle(connection)` for each connection in a thread. Yield the port."""
    listener = socket.create_server(('127.0.0.1', 0))
    connections, threads = [], []

    def run(connection):
        with connection, suppress(OSError):
            handle(connection)

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            threads.append(threading.Thread(target=run, args=(connection,), daemon=True))
            threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield listener.getsockname()[1]
    finally:
        for plug in [listener, *connections]:
            with suppress(OSError):
                plug.shutdown(socket.SHUT_RDWR)
            plug.close()
        for thread in [acceptor, *threads]:
            thread.join(120)


class ScriptedBroker:
    """A broker whose answers a test defines: `answers['Metadata'] = lambda request: MetadataResponse(...)`.

    An answer of None closes the connection. `asked` lists the names of the received requests in order.
    """

    def __init__(self, versions=None):
        self.versions = versions or {name: getattr(messages, f'{name}Request').versions for name in REQUESTS.values()}
        self.asked = []
        self.port = 0
        self.answers = {'ApiVersions': self.api_versions, 'Metadata': self.metadata}

    def api_versions(self, request):
        return messages.ApiVersionsResponse(api_keys=[
            messages.ApiVersionsResponse.ApiVersion(api_key=key, min_version=self.versions[name][0],
                                                    max_version=self.versions[name][1])
            for key, name in REQUESTS.items() if name in self.versions])

    def metadata(self, request):
        response = messages.MetadataResponse
        return response(
            brokers=[response.MetadataResponseBroker(node_id=1, host='127.0.0.1', port=self.port)], controller_id=1,
            topics=[response.MetadataResponseTopic(name=topic.name, partitions=[
                response.MetadataResponsePartition(partition_index=0, leader_id=1, replica_nodes=[1], isr_nodes=[1])])
                for topic in request.topics or ()])

    def __call__(self, connection):
        while True:
            frame = exactly(connection, int.from_bytes(exactly(connection, 4)))
            key, version = int.from_bytes(frame[:2]), int.from_bytes(frame[2:4])
            name = REQUESTS[key]
            header, end = decode_prefix(messages.RequestHeader, frame, request_header_version(key, version))
            self.asked.append(name)
            last = self.versions['ApiVersions'][1]
            if name == 'ApiVersions' and version > last:
                answer, version = self.api_versions(None), 0
                answer.error_code = 35
            else:
                answer = self.answers[name](decode(getattr(messages, f'{name}Request'), frame, version, end))
            if answer is None:
                return
            head = encode(messages.ResponseHeader(correlation_id=header.correlation_id),
                          response_header_version(key, version))
            body = head + encode(answer, version)
            connection.sendall(len(body).to_bytes(4) + body)


@contextmanager
def running(broker):
    with serving(broker) as port:
        broker.port = port
        yield broker
