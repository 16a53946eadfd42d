"""The examples of docs/client.md run and print what the page shows, and the page's tables are complete."""
import re

import pytest
from support.runner.pages import rows_of_table, text_of

from kbroker.client import Consumer, Producer
from kbroker.client.config import CONNECTION_SETTINGS, ClientConfig
from kbroker.client.opening import CLIENT_ID
from kbroker.client.statistics import CONSUMER_COUNTS, PRODUCER_COUNTS
from kbroker.client.stream_settings import ConsumerSettings, ProducerSettings

PAGE = 'docs/client.md'
EXAMPLE = re.compile(r'^```python\n(.*?)^```\n(?:\nIt prints:\n\n```text\n(.*?)^```\n)?', re.MULTILINE | re.DOTALL)


@pytest.fixture
def address(start_broker):
    return start_broker({'transaction.two.phase.commit.enable': 'true'}).address


def test_the_examples_print_what_the_page_says(address, capsys):
    examples = EXAMPLE.findall(text_of(PAGE))
    assert len(examples) > 8
    for program, expected in examples:
        exec(compile(program.replace('localhost:9092', address), PAGE, 'exec'), {'__name__': 'example'})
        assert capsys.readouterr().out == expected, program


@pytest.mark.parametrize(('head', 'defaults'), [
    ('producer setting', ProducerSettings.defaults()), ('consumer setting', ConsumerSettings.defaults())])
def test_the_page_has_every_setting_with_its_default(head, defaults):
    named = {name: default for names, default, _ in rows_of_table(PAGE, head) for name in re.findall('`(.+?)`', names)}
    assert named == defaults


def test_the_page_has_every_setting_of_connections_with_its_default():
    named = {names.strip('`'): default for names, default, _ in rows_of_table(PAGE, 'connection setting')}
    assert tuple(named) == CONNECTION_SETTINGS
    config = ClientConfig.from_settings({'bootstrap.servers': 'h:1'})
    assert named.pop('client.id') == CLIENT_ID
    del named['bootstrap.servers']
    for name, default in named.items():
        field = name.replace('.', '_').removeprefix('socket_')
        assert str(getattr(config, field)) == default, name


def test_the_page_has_every_count():
    named = {name: owners.split(', ') for names, owners, _ in rows_of_table(PAGE, 'count')
             for name in re.findall('`(.+?)`', names)}
    assert {name for name, owners in named.items() if 'producer' in owners} == Producer('h:1').stats().keys()
    assert {name for name, owners in named.items() if 'consumer' in owners} == Consumer('h:1').stats().keys()
    assert {*PRODUCER_COUNTS, *CONSUMER_COUNTS} <= named.keys()
