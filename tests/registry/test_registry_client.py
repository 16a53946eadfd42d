"""The client of a schema registry: its requests, cache, retries and errors."""
import json
import pickle
import socket

import pytest
from support.clients.certificates import make_certificates
from support.registry.scripted_registry import ScriptedRegistry

from kbroker_tools.registry import client as module
from kbroker_tools.registry.client import RegistryClient, Schema
from kbroker_tools.registry.errors import RegistryError, RegistryUnavailable
from kbroker_tools.registry.settings import RegistrySettings
from kbroker_tools.spark.failures import passes_by_itself


def asked(registry):
    return [f'{method} {path}' for method, path, _ in registry.requests]


def test_a_schema_is_asked_once_by_its_id_and_its_guid(registry, connected):
    number, client = registry.add('a-value', '"int"'), connected()
    for key in (number, registry.guid(number)):
        assert client.schema(key) == client.schema(key) == Schema('avro', '"int"', (), 1)
    assert asked(registry) == ['GET /schemas/ids/1', f'GET /schemas/guids/{registry.guid(1)}']


def test_an_unknown_id_is_asked_again_after_a_while(registry, connected):
    now = [100.0]
    client = connected(clock=lambda: now[0])
    assert client.schema(1) is client.schema(1) is None
    registry.add('a-value', '"int"')
    assert client.schema(1) is None
    now[0] += module.UNKNOWN_S
    assert client.schema(1) is not None
    assert len(registry.requests) == 2


def test_the_cache_is_bounded_by_its_bytes(registry, connected, monkeypatch):
    monkeypatch.setattr(module, 'MOST_CACHED_BYTES', 2000)
    client = connected()
    for each in range(4):
        client.schema(registry.add('a', json.dumps({'type': 'int', 'doc': f'{each}' * 400})))
    assert client._known_bytes <= 2000
    assert list(client._known) == [3, 4]


def test_the_cache_of_unknown_ids_is_bounded(connected, monkeypatch):
    monkeypatch.setattr(module, 'MOST_UNKNOWN', 2)
    client = connected()
    assert [client.schema(each) for each in (1, 2, 3)] == [None] * 3
    assert list(client._unknown) == [2, 3]


def test_the_newest_version_of_a_subject_is_not_cached(registry, connected):
    client = connected()
    assert client.newest('a/b') is None
    registry.add('a/b', '"int"')
    assert client.newest('a/b').text == '"int"'
    registry.add('a/b', '"long"')
    assert client.newest('a/b').text == '"long"'
    assert client.version('a/b', 1).text == '"int"'


def test_references_come_in_the_order_of_their_use(registry, connected):
    registry.add('base', '"int"')
    registry.add('middle', '"x"', references=[{'name': 'Base', 'subject': 'base', 'version': 1}])
    registry.add('top', '"y"', references=[{'name': 'Middle', 'subject': 'middle', 'version': 1},
                                           {'name': 'Base', 'subject': 'base', 'version': 1}])
    client = connected()
    assert list(client.references(client.newest('top'))) == ['Base', 'Middle']


@pytest.mark.parametrize(
    ('references', 'message'),
    [([{'name': 'A', 'subject': 'gone', 'version': 3}], 'version 3 of subject gone, which the registry does not have'),
     ([{'name': 'A', 'subject': 'a', 'version': 1}], 'uses itself: A -> A')])
def test_a_reference_without_a_schema_or_to_itself_is_named(registry, connected, references, message):
    registry.add('a', '"int"', references=references)
    client = connected()
    with pytest.raises(RegistryError, match=message):
        client.references(client.newest('a'))


def test_a_schema_is_registered_with_its_kind_and_references(registry, connected):
    reference = module.Reference('b.proto', 'b', 1)
    client = connected()
    assert client.register('a', Schema('protobuf', 'syntax = "proto3";', (reference,))) == 1
    assert registry.schemas == [{'schema': 'syntax = "proto3";', 'schemaType': 'PROTOBUF',
                                 'references': [{'name': 'b.proto', 'subject': 'b', 'version': 1}]}]


def test_a_refused_registration_has_the_registry_s_words(registry, connected):
    registry.answers['/subjects/a/versions'] = 409, {}, {
        'error_code': 409, 'message': 'it is\n\x1b[1mincompatible'}
    with pytest.raises(RegistryError, match=r'found HTTP status 409 \(it is \\x1b\[1mincompatible\), expected 200$'):
        connected().register('a', Schema('avro', '"int"'))


def test_a_failure_that_passes_is_tried_again(registry, connected):
    registry.add('a', '"int"')
    registry.failures, client = 2, connected(retries_wait_ms='1000')
    assert client.schema(1)
    first, second = client.waits
    assert 0.5 <= first <= 1 <= second <= 2


def test_a_failure_that_stays_is_an_outage(registry, connected):
    registry.failures, client = 99, connected(max_retries='2')
    with pytest.raises(RegistryUnavailable, match=r'status 503 \(the store is not ready\), .* after 2 retries$'):
        client.schema(1)
    registry.failures = 0
    assert client.schema(1) is None, 'an outage is not cached'


def test_an_outage_in_a_task_of_spark_passes_by_itself():
    """Spark passes on the text of a task's exception."""
    kind = f'{RegistryUnavailable.__module__}.{RegistryUnavailable.__qualname__}'
    failed = Exception(f'Job aborted\nTraceback (most recent call last):\n  File x\n{kind}: http://r: refused\n')
    assert passes_by_itself(failed)
    assert passes_by_itself(RegistryUnavailable('http://r: refused'))
    assert not passes_by_itself(RegistryError('http://r: found HTTP status 401'))


def test_the_next_url_is_tried_and_then_kept(registry):
    registry.add('a', '"int"')
    with socket.socket() as closed:
        closed.bind(('127.0.0.1', 0))
        gone = f'http://127.0.0.1:{closed.getsockname()[1]}'
        client = RegistryClient(RegistrySettings.of({'url': f'{gone},{registry.url}'}))
        assert client.schema(1)
        assert client.name == registry.url


def test_a_registry_that_is_down_is_an_outage(connected, registry):
    with socket.socket() as closed:
        closed.bind(('127.0.0.1', 0))
        client = RegistryClient(RegistrySettings.of({'url': f'http://127.0.0.1:{closed.getsockname()[1]}',
                                                     'max.retries': '0'}))
        with pytest.raises(RegistryUnavailable, match='/schemas/ids/1: Connection refused'):
            client.schema(1)


def test_a_registry_that_does_not_answer_is_an_outage():
    with socket.create_server(('127.0.0.1', 0)) as silent:
        client = RegistryClient(RegistrySettings.of({
            'url': f'http://127.0.0.1:{silent.getsockname()[1]}', 'max.retries': '0', 'http.read.timeout.ms': '50'}))
        with pytest.raises(RegistryUnavailable, match='did not answer in time'):
            client.schema(1)


@pytest.mark.parametrize('answer', [(404, {}, b'<html>'), (200, {}, b'<html>'), (200, {}, {'hello': 1}),
                                    (200, {}, b'[' * 100_000), (200, {}, {'schema': 1}), (200, {}, [1])])
def test_another_server_is_not_taken_for_a_registry(registry, connected, answer):
    registry.answers['/schemas/ids/1'] = answer
    with pytest.raises(RegistryError, match='expected the API of a schema registry'):
        connected().schema(1)


def test_a_huge_answer_is_refused(registry, connected, monkeypatch):
    monkeypatch.setattr(module, 'MOST_ANSWER_BYTES', 100)
    registry.add('a', json.dumps('x' * 200))
    with pytest.raises(RegistryError, match='found more than 100 bytes'):
        connected().schema(1)


@pytest.mark.parametrize('status', [401, 403])
def test_a_refused_login_is_no_unknown_schema(registry, connected, status):
    registry.answers['/schemas/ids/1'] = status, {}, {'error_code': status, 'message': 'no'}
    with pytest.raises(RegistryError, match=rf'found HTTP status {status} \(no\): the registry refuses the login'):
        connected(basic_auth_user_info='me:secret').schema(1)


def test_the_login_is_sent(registry, connected):
    connected(bearer_auth_token='t').schema(1)
    assert registry.requests[0][2]['Authorization'] == 'Bearer t'


def test_a_redirect_on_the_same_server_is_followed(registry, connected):
    registry.add('a', '"int"')
    registry.answers['/schemas/ids/7'] = 302, {'Location': '/schemas/ids/1'}, b''
    assert connected().schema(7).text == '"int"'


def test_a_redirect_to_another_server_does_not_get_the_password(registry, connected):
    with ScriptedRegistry().running() as other:
        registry.answers['/schemas/ids/1'] = 307, {'Location': f'{other.url}/schemas/ids/1'}, b''
        with pytest.raises(RegistryError, match='does not get the credentials'):
            connected(basic_auth_user_info='me:secret').schema(1)
        assert other.requests == []


def test_redirects_in_a_circle_end(registry, connected):
    registry.answers['/schemas/ids/1'] = 302, {'Location': '/schemas/ids/1'}, b''
    with pytest.raises(RegistryError, match='found more than 3 redirects'):
        connected().schema(1)


def test_a_client_can_be_pickled(registry, connected):
    registry.add('a', '"int"')
    assert pickle.loads(pickle.dumps(connected())).schema(1).text == '"int"'


def test_tls_checks_the_registry_and_shows_the_client_s_certificate(tmp_path):
    make_certificates(tmp_path)
    with ScriptedRegistry(tmp_path / 'server.pem', tmp_path / 'ca.pem').running() as registry:
        registry.add('a', '"int"')
        url = {'url': registry.url, 'max.retries': '0'}
        with pytest.raises(RegistryError, match='/schemas/ids/1: the certificate is not accepted'):
            RegistryClient(RegistrySettings.of(url)).schema(1)
        trusting = {**url, 'ssl.ca.location': str(tmp_path / 'ca.pem')}
        with pytest.raises(RegistryUnavailable):
            RegistryClient(RegistrySettings.of(trusting)).schema(1)
        shown = {f'ssl.{name}.location': str(tmp_path / f'client.{end}')
                 for name, end in [('certificate', 'crt'), ('key', 'key')]}
        assert RegistryClient(RegistrySettings.of({**trusting, **shown})).schema(1).text == '"int"'
