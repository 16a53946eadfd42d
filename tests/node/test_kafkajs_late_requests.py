"""kafkajs on a network that delays a request until its next transaction, or loses an answer."""
import pytest
from kafkajs import script
from support.clients.late_requests import LATE, check_of_lines

from kbroker.protocol.api_keys import ApiKey

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]


REPEATED = [key for key in LATE if key is not ApiKey.END_TXN]
"""kafkajs does not repeat an EndTxn whose connection broke, and offers a program no way to repeat it."""


@pytest.mark.parametrize('course', ['late', pytest.param('lost', marks=pytest.mark.soak)])
@pytest.mark.parametrize('api_key', REPEATED, ids=lambda key: key.name)
def test_a_late_request_of_kafkajs_is_refused_and_one_without_an_answer_executed_once(proxied, api_key, course):
    check_of_lines(*proxied, ['node', script('producer.js')], api_key, course)
