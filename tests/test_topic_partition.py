"""A partition is written as `payments:0` or, as Kafka prints it, as `payments-0`."""
import pytest

from kbroker.base.topic_partition import named_partition, parse_topic_partition


@pytest.mark.parametrize(('text', 'topics', 'found'), [
    ('payments:0', ['payments'], ('payments', 0)), ('payments-0', ['payments'], ('payments', 0)),
    ('payments', ['payments'], ('payments', None)), ('payments-0', ['payments', 'payments-0'], ('payments-0', None)),
    ('payments-0:1', ['payments', 'payments-0'], ('payments-0', 1)), ('a-b-12', ['a-b', 'a'], ('a-b', 12)),
    ('payments-0', [], ('payments-0', None)), ('payments-x', ['payments'], ('payments-x', None)),
    ('-0', ['payments'], ('-0', None)), ('payments-', ['payments'], ('payments-', None))])
def test_a_name_with_a_dash_is_a_partition_only_where_no_topic_has_the_name(text, topics, found):
    assert named_partition(*parse_topic_partition(text), topics) == found


@pytest.mark.parametrize('text', ['', ':0', 'payments:', 'payments:x', 'payments:-1', 'payments:0:1',
                                  'payments:\u0663'])
def test_another_text_is_refused_with_what_was_found_and_expected(text):
    with pytest.raises(ValueError, match='expected TOPIC:PARTITION or TOPIC, such as payments:0') as caught:
        parse_topic_partition(text)
    assert repr(text) in str(caught.value)
