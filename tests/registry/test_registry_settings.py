"""The settings of a schema registry's client: Confluent's names, and errors without passwords."""
import pickle

import pytest

from kbroker.base.errors import ConfigError
from kbroker_tools.registry.settings import RegistrySettings

URL = {'schema.registry.url': 'http://localhost:8081'}


def headers(settings):
    return dict(RegistrySettings.of(settings).headers)


def test_several_urls_are_kept_in_their_order():
    assert RegistrySettings.of({'schema.registry.url': 'http://a:1/x/ , https://[::1]'}).urls == (
        'http://a:1/x', 'https://[::1]')


def test_the_name_of_python_s_client_and_the_prefix_of_java_s_are_accepted():
    assert RegistrySettings.of({'url': 'http://a'}).urls == ('http://a',)
    assert headers({**URL, 'schema.registry.basic.auth.user.info': 'me:pass'}) == {
        'Authorization': 'Basic bWU6cGFzcw=='}


def test_the_user_may_be_in_the_url_and_is_not_kept_there():
    settings = RegistrySettings.of({'schema.registry.url': 'http://me:p%40ss@a:1'})
    assert settings.urls == ('http://a:1',)
    assert dict(settings.headers) == {'Authorization': 'Basic bWU6cEBzcw=='}


def test_a_bearer_token_is_sent_with_the_names_of_the_cluster_and_the_pool():
    assert headers({**URL, 'bearer.auth.credentials.source': 'STATIC_TOKEN', 'bearer.auth.token': 't0k',
                    'bearer.auth.logical.cluster': 'lsrc-1', 'bearer.auth.identity.pool.id': 'p'}) == {
        'Authorization': 'Bearer t0k', 'target-sr-cluster': 'lsrc-1', 'Confluent-Identity-Pool-Id': 'p'}


def test_a_url_of_the_command_takes_precedence(tmp_path):
    (tmp_path / 'r.properties').write_text('schema.registry.url=http://a\nbasic.auth.user.info=u:p\n')
    assert RegistrySettings.load(tmp_path / 'r.properties', 'http://b').urls == ('http://b',)


def test_the_text_of_the_settings_has_no_password_and_a_pickle_has():
    settings = RegistrySettings.of({**URL, 'basic.auth.user.info': 'me:secret'})
    assert repr(settings) == 'RegistrySettings(http://localhost:8081)'
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        ({}, 'schema.registry.url: found none'),
        ({'url': 'ftp://me:secret@a'}, 'found a text that is not a URL of a registry, expected http://HOST:PORT'),
        ({'url': 'http://me:secret@a:x'}, 'schema.registry.url: found a text that is not a URL'),
        ({**URL, 'basic.auth.user.inf': 'me:secret'}, 'did you mean basic.auth.user.info?'),
        ({**URL, 'ssl.truststore.locatoin': 'x'}, 'did you mean ssl.truststore.location?'),
        ({**URL, 'basic.auth.user.info': 'secret'}, 'found a text without a colon, expected USER:PASSWORD'),
        ({'url': 'http://u:secret@a', 'basic.auth.user.info': 'u:secret'}, 'expected one of them'),
        ({**URL, 'basic.auth.credentials.source': 'SASL_INHERIT'}, 'found SASL_INHERIT, expected URL or USER_INFO'),
        ({**URL, 'basic.auth.credentials.source': 'USER_INFO'}, 'basic.auth.user.info: found none'),
        ({**URL, 'bearer.auth.credentials.source': 'OAUTHBEARER'}, 'found OAUTHBEARER, expected STATIC_TOKEN'),
        ({**URL, 'bearer.auth.credentials.source': 'STATIC_TOKEN'}, 'bearer.auth.token: found none'),
        ({**URL, 'bearer.auth.token': 'secret', 'basic.auth.user.info': 'u:secret'}, 'expected one of them'),
        ({**URL, 'bearer.auth.logical.cluster': 'c'}, 'bearer.auth.token: found none'),
        ({**URL, 'bearer.auth.token': 'secret\r\nx: y'}, 'expected printable ASCII'),
        ({**URL, 'max.retries': '-1'}, "max.retries: found '-1', expected 0 to 100"),
        ({**URL, 'http.read.timeout.ms': '1s'}, "http.read.timeout.ms: found '1s'"),
        ({**URL, 'ssl.enabled.protocols': 'SSLv3'}, 'ssl.enabled.protocols'),
    ],
)
def test_a_wrong_setting_is_named_and_no_password_is_shown(settings, message):
    with pytest.raises(ConfigError) as raised:
        RegistrySettings.of(settings)
    assert message in str(raised.value)
    assert 'secret' not in str(raised.value)
    assert '\n' not in str(raised.value)


def test_a_malformed_file_is_named(tmp_path):
    (tmp_path / 'r.properties').write_text('schema.registry.url=\\u00\n')
    with pytest.raises(ConfigError, match=r'r\.properties: line 1'):
        RegistrySettings.load(tmp_path / 'r.properties')
