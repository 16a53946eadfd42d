# ruff: noqa: F821 -- this text is appended to a conftest.py, which has the imports and the class KafkaServer
@pytest.fixture(scope='session')
def kafka_image(request):
    return request.config.getoption('--docker-image')


@pytest.fixture(scope='session')
def docker():
    """No client of Docker: there are no containers."""


@pytest.fixture(scope='class')
def kerberos_utils():
    """No Kerberos: the tests of SASL need a container with its server."""


@pytest.fixture(scope='session')
def ssl_folder(tmp_path_factory):
    import shutil

    from kbroker.testing.access import USER, make_certificates
    folder = make_certificates(tmp_path_factory.mktemp('certificates'))
    shutil.copy(folder / 'ca.pem', folder / 'ca.crt')
    for kind in ('crt', 'key'):
        shutil.copy(folder / f'{USER}.pem', folder / f'client.{kind}')
    return folder


@pytest.fixture(scope='session')
def kafka_server(ssl_folder):
    from kbroker.testing import Broker
    # As in Apache Kafka, an acknowledgement does not wait for the disk: some tests wait for 1 s only.
    settings = {'num.partitions': '2', 'kbroker.durability': 'page-cache',
                'ssl.keystore.location': str(ssl_folder / 'broker.pem'),
                'ssl.truststore.location': str(ssl_folder / 'ca.pem'), 'ssl.client.auth': 'required'}
    with Broker(listeners={'PLAINTEXT': 'PLAINTEXT', 'SSL': 'SSL'}, settings=settings) as broker:
        host, port = broker.bootstrap_servers.split(':')
        ssl_port = int(broker.address('SSL').split(':')[1])
        yield KafkaServer(host, int(port), ssl_port, 0, 0, None)
