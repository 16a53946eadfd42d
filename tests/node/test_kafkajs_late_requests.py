"""Requests of kafkajs that a network delays until its next transaction, and answers that it loses."""
import pytest
from kafkajs import script
from support.late_requests import LATE, broker_behind_proxy, check_of_lines

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]


@pytest.fixture(scope='module')
def proxied(tmp_path_factory):
    with broker_behind_proxy(tmp_path_factory.mktemp('late') / 'data') as found:
        yield found


@pytest.mark.parametrize('course', ['late', 'lost'])
@pytest.mark.parametrize('api_key', LATE, ids=lambda key: key.name)
def test_a_late_request_of_kafkajs_is_refused_and_one_without_an_answer_executed_once(proxied, api_key, course):
    check_of_lines(*proxied, ['node', script('producer.js')], api_key, course)
