"""The client names the right that lacks, where the answer of the broker has no text."""
import pytest

from kbroker.base.errors import ErrorCode
from kbroker.client.errors import DENIALS, error_of
from kbroker.client.rights import RIGHTS
from kbroker.protocol import messages


@pytest.mark.parametrize(('api', 'code', 'right'), [
    ('Produce', ErrorCode.TOPIC_AUTHORIZATION_FAILED, 'WRITE on the topic'),
    ('Fetch', ErrorCode.TOPIC_AUTHORIZATION_FAILED, 'READ on the topic'),
    ('JoinGroup', ErrorCode.GROUP_AUTHORIZATION_FAILED, 'READ on the group'),
    ('EndTxn', ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, 'WRITE on the transactional id')])
def test_an_error_without_a_text_names_the_right(api, code, right):
    assert str(error_of(code, 'payments-0', None, api)) == (
        f'payments-0: {code.name}: the user of this client needs {right}')


def test_the_text_of_the_broker_is_better():
    assert str(error_of(29, 'payments', 'User:alice needs WRITE on topic payments', 'Produce')) == (
        'payments: TOPIC_AUTHORIZATION_FAILED: User:alice needs WRITE on topic payments')


def test_an_api_without_a_row_has_the_text_of_the_error():
    assert str(error_of(29, 'payments')) == 'payments: TOPIC_AUTHORIZATION_FAILED: Access to the topic is denied.'


def test_the_table_has_names_of_apis_and_errors_of_rights():
    assert all(hasattr(messages, f'{api}Request') for api in RIGHTS)
    assert {code for rights in RIGHTS.values() for code in rights} <= set(DENIALS)
